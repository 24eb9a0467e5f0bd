"""Maintains the database: seals and checks the ledger, closes days, issues statements, deletes old rows."""

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from accounts.sign_in import sessions
from chatapi import response_store
from chatapi.concurrency import repeat
from usage.books import idempotency
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable, UsageError
from usage.models import LedgerCheck
from usage.rollups import closing, refused_requests
from usage.statements import issuing, itemizing
from usage.verification import Check, checks, ledger_checks, seals
from usage.verification.invariants import Difference
from usage.verification.ledger_checks import Found

log = logging.getLogger(__name__)

EVERY_S = 30.0
# The most days closed in a row, so that catching up with a year does not delay the other duties.
DAYS_AT_ONCE = 31


async def keep_house(commits: GroupCommit) -> None:
    """Perform all duties every `EVERY_S`, until cancelled. Several processes may do so at the same time."""
    duties = [
        _seal,
        _close_days,
        _itemize_days,
        _issue_statements,
        _forget_old,
        _delete_responses,
        _check_books,
    ]
    bound = (partial(duty, commits) for duty in duties)
    await repeat(EVERY_S, "housekeeping", *bound, expected=(UsageError,))


async def _seal(commits: GroupCommit) -> None:
    """Seal all entries that may be sealed now, one block at a time."""
    while (sealed := await commits.read(seals.seal)) is not None and sealed.entries_count == seals.BLOCK:
        pass


async def _close_days(commits: GroupCommit) -> None:
    for _ in range(DAYS_AT_ONCE):
        day = await commits.read(closing.next_day)
        if day is None:
            return
        first_tokens = closing.FirstTokens()
        # A read has the time limit of a transaction, in which the charges of a busy day can't be read.
        parts = closing.parts(day)
        while part := await commits.read(next, parts, None):
            first_tokens += await commits.read(closing.count_first_tokens, part)
        await commits.read(closing.close, day, first_tokens)


async def _itemize_days(commits: GroupCommit) -> None:
    for _ in range(DAYS_AT_ONCE):
        day = await commits.read(itemizing.next_day)
        if day is None:
            return
        items: itemizing.Items = {}
        # In parts, because of the time limit of a read, as in `_close_days`.
        parts = closing.parts(day)
        while part := await commits.read(next, parts, None):
            itemizing.add(items, (await commits.read(itemizing.items_of_part, part)).items())
        await commits.read(itemizing.write, day, items)


async def _issue_statements(commits: GroupCommit) -> None:
    """Issue all statements that are due; each round issues the next month of each organization."""
    is_any_issued = True
    # A statement that can't be issued stays due: a round that issues none is the last one.
    while is_any_issued:
        due = await commits.read(issuing.due)
        is_any_issued = any([await _issue(commits, which) for which in due])


async def _issue(commits: GroupCommit, which: issuing.Due) -> bool:
    """Issue a statement. If that fails, it stays due, and other organizations get theirs."""
    try:
        return await commits.read(issuing.issue, which) is not None
    except Exception as error:
        log.exception("the statement %s of organization %s is not issued", which.month, which.organization_id)
        # While the database is away, nothing is wrong with the statement, and no event can be written.
        if not isinstance(error, DatabaseUnavailable):
            await _report_failure(commits, which, f"{type(error).__name__}, which the reaper's log explains")
        return False


async def _report_failure(commits: GroupCommit, which: issuing.Due, reason: str) -> None:
    """Write the operators' event. If that fails, the next round tries again, and the others get theirs."""
    try:
        await commits.read(issuing.report_failure, which, reason)
    except Exception:
        log.exception("the failed statement of organization %s has no event", which.organization_id)


async def _forget_old(commits: GroupCommit) -> None:
    while await commits.write(idempotency.delete_expired, None):
        pass
    while await commits.write(sessions.delete_expired, None):
        pass
    await commits.write(refused_requests.forget_old, None)


async def _delete_responses(commits: GroupCommit) -> None:
    while await commits.write(response_store.delete_expired, None):
        pass


async def _check_books(commits: GroupCommit) -> None:
    """Check the books, if this hour's check has not begun yet.

    Raises `DatabaseUnavailable` if even the shortest window takes too long.
    """
    begun = await commits.write(ledger_checks.begin, None)
    if begun is None:
        return
    found = await _look(commits, begun)
    if found.differences:
        count, first = len(found.differences), found.differences[0]
        log.error("the books are not right (run verifyledger), %s differences: %s …", count, first)
    await commits.write(ledger_checks.record, found)


async def _look(commits: GroupCommit, begun: LedgerCheck) -> Found:
    """Check each invariant, over the longest window that does not take too long."""
    starts = [begun.checked_at - window for window in ledger_checks.WINDOWS]
    found: list[Difference] = []
    narrowest = starts[0]
    # Each round has the checks of one invariant, the longest window first. Each check is a separate read, so
    # that other reads and the shutdown wait for one check at most.
    for of_one_invariant in zip(*map(checks, starts), strict=True):
        by_start = list(zip(starts, of_one_invariant, strict=True))
        since, differences = await _check_longest(commits, by_start)
        narrowest = max(narrowest, since)
        found += differences
    return Found(begun, narrowest, await commits.read(ledger_checks.settled_since, narrowest), found)


async def _check_longest(
    commits: GroupCommit, by_start: Sequence[tuple[datetime, Check]]
) -> tuple[datetime, list[Difference]]:
    """Make the first check that is fast enough; return the start of its window and the differences."""
    *longer, (shortest, last) = by_start
    for since, check in longer:
        try:
            return since, await commits.read(ledger_checks.look, check)
        except DatabaseUnavailable:
            log.info("checking the rows since %s takes too long: trying a shorter window", since)
    return shortest, await commits.read(ledger_checks.look, last)
