"""From a follower's deltas to one answer's end, whatever dies on the way: pings in silence, the row where the
end does not come.
"""

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import cast
from uuid import UUID

from redis.exceptions import RedisError

from accounts import loop_clock
from chatapi.delta_log import StreamUnavailable
from chatapi.delta_stream import CANCELLED, NOT_STARTED, WORKER_LOST
from chatapi.web.inbox import Follower
from chatapi.web.services import Services
from chatapi.web.silence import Finding, Watch
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed, Finished, FinishReason, Usage
from chatapi.wire.upstream_errors import STOPPED
from usage.books import reports
from usage.errors import DatabaseUnavailable
from usage.models import Outcome

LOST = Failed(
    "The connection to the model was lost. What was generated is charged; see the receipt.",
    code="stream_unavailable",
    status=503,
)
CLOSING = Failed(
    "The server is shutting down. What was generated is charged; see the receipt.",
    code="server_shutting_down",
    status=503,
)
TELLING_MS = 2_000
"""How long after a settlement its end may still come: far longer than a worker takes that lives."""
LAST_LOOK_S = 1.0
"""How long the row and the log are looked at for an end, when either may be out of reach."""


async def relay(services: Services, follower: Follower, ping_ms: int) -> AsyncIterator[list[AnyDelta]]:
    """The generation's batches up to and including a terminal delta; an empty one means: the client has
    waited for a ping.

    With `ping_ms` 0 the client is never pinged. Silence is noticed at the inbox's ticks: it is the last one
    before this that counts.
    """
    watch = services.silence.watch(follower.id, follower.wake)
    pinged = time.monotonic()
    while True:
        batch = await _next(services, follower, watch)
        now = time.monotonic()
        if batch:
            watch.heard()
            pinged = now
            yield batch
            if isinstance(batch[-1], TERMINAL):
                return
        elif ping_ms and now + services.inbox.tick_s - pinged > ping_ms / 1_000:
            pinged = now
            yield []


async def _next(services: Services, follower: Follower, watch: Watch) -> list[AnyDelta]:
    """What has come, or the failure that ends the stream when nothing can come any more."""
    try:
        batch = await follower.next()
        if not batch:
            services.inbox.check(follower)
    except (StreamUnavailable, RedisError):
        return await _in_time(_from_row(services, follower)) or _given_up(services, follower, LOST)
    if services.is_closing and not (batch and isinstance(batch[-1], TERMINAL)):
        return [*batch, *_given_up(services, follower, CLOSING)]
    if not batch and (finding := watch.take()) is not None:
        return await _found(services, follower, finding)
    return batch


async def _found(services: Services, follower: Follower, finding: Finding) -> list[AnyDelta]:
    """The end of a stream whose generation is in that state; nothing while it is about to be told by somebody
    else.
    """
    if finding is Finding.SETTLED:
        return await _in_time(_from_row(services, follower))
    if finding is Finding.EXPIRED:
        return [NOT_STARTED] if await services.expire(follower.id) else []
    if finding is Finding.WORKER_LOST:
        missed = await _in_time(_missed(follower))
        has_ended = bool(missed) and isinstance(missed[-1], TERMINAL)
        return missed if has_ended else [*missed, *_given_up(services, follower, WORKER_LOST)]
    return _given_up(services, follower, LOST)


async def _missed(follower: Follower) -> list[AnyDelta]:
    """What the log holds beyond what was handed out, as far as Redis can tell."""
    try:
        return await follower.catch_up()
    except (StreamUnavailable, RedisError):
        return []


async def _in_time(looking: Awaitable[list[AnyDelta]]) -> list[AnyDelta]:
    """What is found within `LAST_LOOK_S`; else nothing, because a client that has waited for long must hear
    its end.
    """
    with suppress(TimeoutError):
        async with loop_clock.timeout(LAST_LOOK_S):
            return await looking
    return []


def _given_up(services: Services, follower: Follower, failure: Failed) -> list[AnyDelta]:
    """The failure that ends this stream before its generation has ended, which nobody waits for any more."""
    services.abandon(follower.id)
    return [failure]


async def _from_row(services: Services, follower: Follower) -> list[AnyDelta]:
    """When the books say that the generation has ended: the rest of its log, or at least its end; else
    nothing.
    """
    try:
        end = await services.commits.read(reports.end_of, follower.id)
    except DatabaseUnavailable:
        return []
    if end is None:
        return []
    try:
        missed = await follower.catch_up()
        if not follower.seq and await is_to_be_told(services, follower.id, end):
            return []
    except (StreamUnavailable, RedisError):
        return end_of_broken(end)
    if missed and isinstance(missed[-1], TERMINAL):
        return missed
    # A log that is not there can't be told from one to which nothing was written.
    return [*missed, *terminal_of(end)] if follower.seq else end_of_broken(end)


async def is_to_be_told(services: Services, generation_id: UUID, end: reports.End) -> bool:
    """Whether it has been settled just now, and whoever did has yet to publish its end, or dies in this
    moment. Raises `RedisError`.
    """
    return end.settled_ms_ago < TELLING_MS and await services.stream.has_job(generation_id)


def end_of_broken(end: reports.End) -> list[AnyDelta]:
    """The end as the row tells it; but a good one must not follow a text that may lack its last words."""
    told = terminal_of(end)
    return [LOST] if isinstance(told[-1], Usage) else told


def terminal_of(end: reports.End) -> list[AnyDelta]:
    """The end as the row tells it: content is in the log before it is charged, so nothing but the end can be
    missing.
    """
    if end.outcome == Outcome.CLIENT_CANCELLED and not end.has_finished:
        return [CANCELLED]
    if end.error_code == STOPPED.code:
        return [STOPPED]
    if end.error_code:
        return [Failed(end.error_message, code=end.error_code, status=502)]
    finishes = [
        Finished(cast(FinishReason, reason), index) for index, reason in enumerate(end.finish_reasons)
    ]
    used = end.tokens
    return [
        *finishes,
        Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens, used.reasoning_tokens),
    ]
