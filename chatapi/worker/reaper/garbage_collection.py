"""Forgets what was said where whoever settled a generation died before telling its end: nobody else comes
back to what is settled.
"""

import asyncio
import logging

from django.conf import settings
from redis.exceptions import RedisError

from chatapi.delta_stream import DeltaStream
from usage.books import reports
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError

log = logging.getLogger(__name__)

LEAST_S, MOST_S = 1.0, 60.0
"""Between two looks, however short or long streams are kept."""


async def collect_garbage(commits: GroupCommit, stream: DeltaStream) -> None:
    """Look every now and then, for ever, so often that nothing outlasts `STREAM_TTL_MS`; any number of
    processes may, beside each other.
    """
    while True:
        try:
            await delete_settled(commits, stream)
        except (UsageError, RedisError, OSError) as error:
            log.warning("forgetting: %r", error)
        await asyncio.sleep(_pause_s())


async def delete_settled(commits: GroupCommit, stream: DeltaStream) -> None:
    """Drop the jobs of all that has been settled for a while, and their logs when every settled one's goes.

    Raises `UsageError`, `RedisError` or OSError when the books or Redis are away.
    """
    async for ids in stream.lasting():
        settled_ms_ago = await commits.read(reports.settled_ms_ago, ids) if ids else {}
        # Whoever has just settled one is about to tell its end.
        untold = {
            generation_id: age_ms
            for generation_id, age_ms in settled_ms_ago.items()
            if age_ms > _pause_s() * 1_000
        }
        if untold:
            await stream.forget(
                {
                    generation_id: max(0, settings.STREAM_TTL_MS - age_ms)
                    for generation_id, age_ms in untold.items()
                }
            )
        for generation_id in untold:
            log.warning("%s is forgotten: it is settled, and nobody has told its end", generation_id.hex)


def _pause_s() -> float:
    """A third of the time that streams are kept: what is settled is found by the second look, when its log
    may still stay for a while.
    """
    third_s: float = settings.STREAM_TTL_MS / 3_000
    return min(max(LEAST_S, third_s), MOST_S)
