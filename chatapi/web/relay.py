"""Streams a follower's deltas up to the terminal one, with keep-alives in silence.

If the terminal delta never comes, the log and the row tell the end (`following/silence.py` notices). A
generation whose process has died or whose log is lost gets an error as its end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import cast

from django.conf import settings

from accounts import loop_clock
from accounts.errors import AccountsError
from chatapi import errors
from chatapi.delta_stream import CANCELLED, NOT_STARTED, WORKER_LOST, StreamLost, StreamUnavailable, in_time
from chatapi.web.following.follower import Follower
from chatapi.web.following.silence import Finding, Watch
from chatapi.web.services import Services
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed, Finished, FinishReason, Started, Usage
from chatapi.wire.protocols.protocol import Encoder
from chatapi.wire.upstream.upstream_errors import STOPPED
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
# How long after a settlement its terminal delta may still come: far longer than a living worker takes.
PUBLISHING_MS = 2_000
# The time limit of the last read of the row or the log, before the stream ends without them.
LAST_LOOK_S = 1.0
# How often a follower's rights are checked: a revoked key's streams end within 5 s.
ASK_RIGHTS_S = 1.5
# How long that check may take; without an answer the stream goes on until the next check.
RIGHTS_ANSWER_S = 1.0

# Raises an `APIError` or an `AccountsError` when the caller may not read the stream any more.
Authorize = Callable[[], Awaitable[None]]


class Pace:
    """Decides when a stream needs a keep-alive: in silence, and while its encoder holds everything back."""

    def __init__(self, ping_ms: int) -> None:
        self._ping_ms = ping_ms
        self._sent_at = time.monotonic()

    def needs_keep_alive(self, batch: list[AnyDelta], *, has_frames: bool) -> bool:
        """Return whether to send a keep-alive now, after a batch of `relay` with or without frames."""
        now = time.monotonic()
        is_late = bool(self._ping_ms) and (now - self._sent_at) * 1_000 >= self._ping_ms
        is_needed = not has_frames and (not batch or is_late)
        if has_frames or is_needed:
            self._sent_at = now
        return is_needed


async def relay(
    services: Services, follower: Follower, ping_ms: int, authorize: Authorize | None = None
) -> AsyncIterator[list[AnyDelta]]:
    """Yield the generation's batches up to and including a terminal delta; an empty one is a keep-alive.

    A keep-alive comes before the silence exceeds `ping_ms`; with 0 there is none. Without `authorize`, rights
    are not checked, because the generation itself ends when its key is revoked.

    Raises an `APIError` when `authorize` refuses: only this stream ends, the generation goes on.
    """
    watch = services.silence.watch(follower.id, follower.wake)
    sent_at = asked_at = time.monotonic()
    while True:
        if authorize is not None and time.monotonic() - asked_at > ASK_RIGHTS_S:
            await _check_rights(authorize)
            # Set after the answer: streams that began together drift apart, and find a cached answer.
            asked_at = time.monotonic()
        batch = await _next(services, follower, watch)
        now = time.monotonic()
        if batch:
            sent_at = now
            watch.heard(now)
            is_last = isinstance(batch[-1], TERMINAL)
            yield batch
            if is_last:
                return
            del batch  # it must not stay in memory until the next one comes
        elif ping_ms and (now + follower.tick_s - sent_at) * 1_000 >= ping_ms:
            sent_at = now
            yield []


def frames_of(encoder: Encoder, deltas: list[AnyDelta]) -> bytes:
    """Return the frames of a batch that `relay` has yielded.

    A failure of this stream alone does not flush what the encoder holds back: that comes when the stream is
    read again.
    """
    last = deltas[-1] if deltas else None
    if isinstance(last, Failed) and last in (LOST, CLOSING):
        return encoder.encode(deltas[:-1]) + encoder.failed(last)
    return encoder.encode(deltas)


async def _check_rights(authorize: Authorize) -> None:
    """Raise the refusal as an `APIError`; no answer in time is no refusal."""
    try:
        async with asyncio.timeout(RIGHTS_ANSWER_S):
            await authorize()
    except (DatabaseUnavailable, TimeoutError):
        pass
    except AccountsError as error:
        raise errors.from_exception(error) from None


async def _next(services: Services, follower: Follower, watch: Watch) -> list[AnyDelta]:
    """Return the next deltas; none in silence. Adds an end if the log will never have one."""
    try:
        batch = await follower.next()
        if not batch and (finding := watch.take()) is not None:
            batch = await _end_after(services, follower, finding)
    except StreamLost:
        # The log is lost or out of reach; the row may have the end.
        end = None
        with suppress(DatabaseUnavailable, TimeoutError):
            async with loop_clock.timeout(LAST_LOOK_S):
                end = await services.commits.read(reports.end_of, follower.id)
        batch = _give_up(services, follower, LOST) if end is None else _end_of_broken(end)
    except (StreamUnavailable, DatabaseUnavailable):
        batch = []
    if services.is_closing and not (batch and isinstance(batch[-1], TERMINAL)):
        return [*batch, *_give_up(services, follower, CLOSING)]
    return batch


async def _end_after(services: Services, follower: Follower, finding: Finding) -> list[AnyDelta]:
    """Return the end of a stream that `following/silence.py` has looked into; nothing while it may still be
    published.

    Raises `StreamLost`, `StreamUnavailable` or `DatabaseUnavailable`.
    """
    if finding is Finding.SETTLED:
        async with in_time(LAST_LOOK_S):
            return await _end_of_settled(services, follower)
    if finding is Finding.EXPIRED:
        try:
            return [NOT_STARTED] if await services.queue.expire(follower.id) else []
        except DatabaseUnavailable:
            # The database takes no write, perhaps for hours. The reaper closes the books later, or a worker
            # does, which asks no upstream without the request.
            services.queue.forget(follower.id, log_ms=settings.STREAM_TTL_MS)
            return _give_up(services, follower, LOST)
    if finding is Finding.WORKER_LOST:
        missed: list[AnyDelta] = []
        with suppress(StreamLost, StreamUnavailable):
            async with in_time(LAST_LOOK_S):
                missed = await follower.catch_up()
        has_ended = bool(missed) and isinstance(missed[-1], TERMINAL)
        return missed if has_ended else [*missed, *_give_up(services, follower, WORKER_LOST)]
    if finding is Finding.NO_ROW and not follower.is_owner:
        return [errors.generation_not_found().failure]
    return _give_up(services, follower, LOST)


def _give_up(services: Services, follower: Follower, failure: Failed) -> list[AnyDelta]:
    """Return the failure that ends this stream before its generation has ended."""
    if follower.is_owner:
        services.cancellations.abandon(follower.id)
    return [failure]


async def _end_of_settled(services: Services, follower: Follower) -> list[AnyDelta]:
    """Return the rest of the log and, if that has no end, the row's; nothing if the row is not settled."""
    # The row first: all that is charged is in the log, so a log that is read after it lacks no content.
    end = await services.commits.read(reports.end_of, follower.id)
    if end is None:
        return []
    missed = await follower.catch_up()
    if missed and isinstance(missed[-1], TERMINAL):
        return missed
    if follower.seq:
        return [*missed, *terminal_of(end)]
    stream = services.streams.of(follower.id)
    if end.settled_ms_ago < PUBLISHING_MS and await stream.has_job(follower.id):
        return []  # the terminal delta, whose publication deletes the job, is still to come
    if end.outcome == Outcome.CLIENT_CANCELLED and not end.tokens.completion_tokens:
        # Cancelled before its first token: no text can be missing.
        deltas = terminal_of(end)
        return [Started(), *deltas] if isinstance(deltas[-1], Usage) else deltas
    # Nothing of the log was read: it may never have been written, or be lost.
    return _end_of_broken(end)


def _end_of_broken(end: reports.End) -> list[AnyDelta]:
    """Return the row's end, or `LOST` instead of a success: the text before may lack its last words."""
    deltas = terminal_of(end)
    return [LOST] if isinstance(deltas[-1], Usage) else deltas


def terminal_of(end: reports.End) -> list[AnyDelta]:
    """Return the row's end. Content is in the log before it is charged, so only the end can be missing."""
    if end.error_code == STOPPED.code:
        return [STOPPED]
    if end.outcome == Outcome.CLIENT_CANCELLED and not end.has_finished:
        return [CANCELLED]
    if end.error_code:
        return [Failed(end.error_message, code=end.error_code, status=502)]
    is_cancelled = end.outcome == Outcome.CLIENT_CANCELLED
    finishes = [
        Finished(cast(FinishReason, reason), index, is_cancelled=is_cancelled)
        for index, reason in enumerate(end.finish_reasons)
    ]
    completed_at = int(end.settled_at.timestamp())
    return [*finishes, Usage(**end.tokens.columns(), completed_at=completed_at)]  # type: ignore[arg-type]
