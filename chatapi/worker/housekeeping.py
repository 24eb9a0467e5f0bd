"""What the books need now and then: their chain of seals, and an end to what is kept for a day only."""

import asyncio
import logging

from usage import idempotency, seals
from usage.errors import UsageError
from usage.group_commit import GroupCommit

log = logging.getLogger(__name__)

EVERY_S = 30.0


async def keep_house(commits: GroupCommit) -> None:
    """Do it every now and then, for ever; any number of processes may, beside each other."""
    while True:
        try:
            await commits.read(seals.seal)
            await commits.write(idempotency.forget_old, None)
        except UsageError as error:
            log.warning("housekeeping: %r", error)
        await asyncio.sleep(EVERY_S)
