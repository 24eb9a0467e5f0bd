"""Deletes jobs and logs of settled generations whose terminal delta was never published.

That happens if the process that settled the generation crashed before it published the terminal delta.
"""

import logging
from functools import partial

from django.conf import settings

from chatapi.concurrency import repeat
from chatapi.delta_stream import DeltaStream, StreamUnavailable
from usage.books import reports
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError

log = logging.getLogger(__name__)

# Limits of the pause between two looks.
LEAST_S, MOST_S = 1.0, 60.0


async def collect_garbage(commits: GroupCommit, stream: DeltaStream) -> None:
    """Look for ever, often enough that nothing stays longer than `STREAM_TTL_MS`.

    Any number of processes may do it at the same time.
    """
    duty = partial(delete_settled, commits, stream)
    await repeat(_pause_s(), "garbage collection", duty, expected=(UsageError, StreamUnavailable))


async def delete_settled(commits: GroupCommit, stream: DeltaStream) -> None:
    """Delete the jobs of settled generations, and let their logs expire `STREAM_TTL_MS` after the settlement.

    Raises `UsageError` or `StreamUnavailable` when the books or Redis are away.
    """
    async for ids in stream.lasting():
        settled_ms_ago = await commits.read(reports.settled_ms_ago, ids) if ids else {}
        left_ms = {
            generation_id: max(0, settings.STREAM_TTL_MS - age_ms)
            for generation_id, age_ms in settled_ms_ago.items()
            if age_ms > _pause_s() * 1_000  # the terminal delta of a younger one may still be published
        }
        if left_ms:
            await stream.forget(left_ms)
        for generation_id in left_ms:
            log.warning("%s is deleted: it is settled, but its end was never published", generation_id.hex)


def _pause_s() -> float:
    """Return a third of the time that streams are kept, within limits: a log is found by the second look."""
    third_s: float = settings.STREAM_TTL_MS / 3_000
    return min(max(LEAST_S, third_s), MOST_S)
