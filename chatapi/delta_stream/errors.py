"""The errors of all transports: a reader or writer of streams does not know which one there is.

StreamUnavailable   the transport can't be reached now; the next call may succeed
StreamLost          deltas that should be there are lost, or can't be read; no call brings them back
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from accounts import loop_clock
from accounts.loop_clock import REPLY_TIMEOUT_S


class StreamUnavailable(Exception):
    """The server can't be reached, does not answer in time, or refuses a write, as a full one does."""


class StreamLost(Exception):
    """Deltas that should be there are missing or unreadable, or the server was away for too long."""


@asynccontextmanager
async def in_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise `StreamUnavailable` if the block takes longer, by default `REPLY_TIMEOUT_S`."""
    try:
        async with loop_clock.timeout(REPLY_TIMEOUT_S if timeout_s is None else timeout_s):
            yield
    except TimeoutError as error:
        raise StreamUnavailable("the server of the stream does not answer") from error
