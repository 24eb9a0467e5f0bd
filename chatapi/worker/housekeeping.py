"""What the books need now and then: their chain of seals, their days added up, and an end to what is kept for a day only."""

import asyncio
import logging
from collections.abc import Callable
from datetime import date

from usage import idempotency, seals
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError
from usage.rollups import closed_days, first_tokens

log = logging.getLogger(__name__)

EVERY_S = 30.0
DAYS_AT_ONCE = 31
"""The most that are added up in a row: an installation that has run without it for a year catches up beside its other work."""


async def keep_house(commits: GroupCommit) -> None:
    """Do it every now and then, for ever; any number of processes may, beside each other."""
    while True:
        try:
            await commits.read(seals.seal)
            await _for_some_days(commits, closed_days.close_next)
            await _for_some_days(commits, first_tokens.count_next)
            await commits.write(idempotency.forget_old, None)
        except UsageError as error:
            log.warning("housekeeping: %r", error)
        await asyncio.sleep(EVERY_S)


async def _for_some_days(commits: GroupCommit, step: Callable[[], date | None]) -> None:
    """Take the days that are over, each in a transaction of its own, while there are such."""
    for _ in range(DAYS_AT_ONCE):
        if await commits.read(step) is None:
            return
