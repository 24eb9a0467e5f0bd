"""What the books need now and then: their chain of seals, their days added up, a check, and an end to what is
kept for a day only.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime

from usage.books import idempotency
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable, UsageError
from usage.models import LedgerCheck
from usage.rollups import closing, refused_requests
from usage.verification import Check, checks, ledger_checks, seals
from usage.verification.differences import Difference
from usage.verification.ledger_checks import Found

log = logging.getLogger(__name__)

EVERY_S = 30.0
DAYS_AT_ONCE = 31
"""Days that are closed in a row at most, so that catching up with a year keeps no other duty waiting."""


async def keep_house(commits: GroupCommit) -> None:
    """Do it every now and then, for ever; any number of processes may, beside each other."""
    while True:
        for duty in (_seal, _close_days, _forget_old, _check_books):
            try:
                await duty(commits)
            except UsageError as error:
                log.warning("housekeeping: %r", error)
            except Exception:
                # A bug in one must not keep the others from being done.
                log.exception("housekeeping: %s failed", duty.__name__)
        await asyncio.sleep(EVERY_S)


async def _seal(commits: GroupCommit) -> None:
    """All that may be sealed now, a block at a time."""
    while (sealed := await commits.read(seals.seal)) is not None and sealed.entries_count == seals.BLOCK:
        pass


async def _close_days(commits: GroupCommit) -> None:
    for _ in range(DAYS_AT_ONCE):
        day = await commits.read(closing.next_day)
        if day is None:
            return
        first_tokens = closing.FirstTokens()
        # A read has the time limit of a transaction, in which the charges of a busy day can't be read.
        for hour in closing.hours_of(day):
            first_tokens += await commits.read(closing.count_first_tokens, hour)
        await commits.read(closing.close, day, first_tokens)


async def _forget_old(commits: GroupCommit) -> None:
    await commits.write(idempotency.delete_expired, None)
    await commits.write(refused_requests.forget_old, None)


async def _check_books(commits: GroupCommit) -> None:
    """The hour's check, if no other process has begun it; raises `DatabaseUnavailable` when all that it could
    look at takes too long.
    """
    begun = await commits.write(ledger_checks.begin, None)
    if begun is None:
        return
    found = await _look(commits, begun)
    if found.differences:
        log.error(
            "the books are not right (run verifyledger), %s differences: %s …",
            len(found.differences),
            found.differences[0],
        )
    await commits.write(ledger_checks.record, found)


async def _look(commits: GroupCommit, begun: LedgerCheck) -> Found:
    """One invariant at a time: nothing waits longer for the reading thread, or for the process to end, than
    one of them takes.
    """
    starts = [begun.checked_at - window for window in ledger_checks.WINDOWS]
    found: list[Difference] = []
    narrowest = starts[0]
    for same in zip(*map(checks, starts), strict=True):
        since, differences = await _look_back(commits, list(zip(starts, same, strict=True)))
        narrowest = max(narrowest, since)
        found += differences
    return Found(begun, narrowest, await commits.read(ledger_checks.settled_since, narrowest), found)


async def _look_back(
    commits: GroupCommit, ways: Sequence[tuple[datetime, Check]]
) -> tuple[datetime, list[Difference]]:
    """What an invariant finds, and since when, by the first of these ways that does not take too long."""
    *long, (shortest, last) = ways
    for since, check in long:
        try:
            return since, await commits.read(ledger_checks.look, check)
        except DatabaseUnavailable:
            log.info("what was written since %s takes too long to check, so it is a shorter time", since)
    return shortest, await commits.read(ledger_checks.look, last)
