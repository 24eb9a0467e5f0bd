"""The errors that every transport raises, so that readers and writers of streams depend on none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from accounts import loop_clock
from accounts.loop_clock import REPLY_TIMEOUT_S


class StreamUnavailable(Exception):
    """The server can't be reached, does not answer in time, or refuses a write, as it does when it is full.

    The next call may succeed.
    """


class StreamLost(Exception):
    """Deltas of the log are missing or unreadable, or the server was away for too long.

    Another call does not help.
    """


@asynccontextmanager
async def in_time(timeout_s: float | None = None) -> AsyncIterator[None]:
    """Raise `StreamUnavailable` if the block takes longer, by default `REPLY_TIMEOUT_S`."""
    try:
        async with loop_clock.timeout(REPLY_TIMEOUT_S if timeout_s is None else timeout_s):
            yield
    except TimeoutError as error:
        raise StreamUnavailable("the server of the stream does not answer") from error
