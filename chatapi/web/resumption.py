"""A generation's stream again: replayed from its log, then followed until its end.

For whoever resumes, each frame of the log has an SSE id, `<delta>-<frame of that delta>`, so that the
remainder is byte-identical wherever the connection broke. What is told from elsewhere, because the log ends
before the stream does, has none: the next delta of the log would get the same, and who resumes behind it
would miss that one.

The log is read again and again rather than waited for: a blocked read holds a connection, and few clients
resume.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from accounts import loop_clock
from accounts.errors import AccountsError
from chatapi import errors
from chatapi.delta_log import StreamUnavailable
from chatapi.delta_stream import NOT_STARTED, WORKER_LOST
from chatapi.redis_client import REPLY_TIMEOUT_S
from chatapi.web.inbox import PART_FRAMES, Inbox
from chatapi.web.relay import CLOSING, LAST_LOOK_S, LOST, end_of_broken, is_to_be_told, terminal_of
from chatapi.web.services import Services
from chatapi.web.silence import Finding
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed
from chatapi.wire.dialects import OpenAI
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.sse import PING, PING_LINE
from usage.books import reports
from usage.errors import DatabaseUnavailable
from usage.models import Generation, State

POLL_S = 0.05
PAGE_DELTAS = 128
"""About so many deltas are read at once."""
POLL_S_EACH = 0.001
"""Between two looks at a log, for each log that the same organization follows: so many of them cost as much
as 50 do.
"""
ASK_RIGHTS_S = 2.0
"""How often it is asked whether the caller may still look: a revoked key's streams end within 5 s."""
ANSWER_S = 1.0
"""How long the answer may take; without one the caller may look until it is asked again."""

Authorize = Callable[[], Awaitable[None]]
"""Raises an `AccountsError` when the caller may not look any more."""

_POSITION = re.compile(r"(\d{1,9})(?:-(\d{1,4}))?", re.ASCII)


class Position(NamedTuple):
    """The last frame that a client has: of which delta, and which of its frames; (0, 0) is before the first."""

    seq: int
    frame: int | None
    """None: all frames of that delta."""
    param: str = ""
    """Where the client has named it."""

    def is_before(self, seq: int, frame: int) -> bool:
        """Whether that frame is still to be sent."""
        return seq > self.seq or (seq == self.seq and self.frame is not None and frame > self.frame)


class Part(NamedTuple):
    """Deltas of a stream that came together."""

    deltas: list[AnyDelta]
    first_seq: int | None = None
    """The first one's number in the log; None: they are not in the log."""

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return bool(self.deltas) and isinstance(self.deltas[-1], TERMINAL)


NOTHING = Part([])


def position(text: str, param: str) -> Position:
    """The position that a client names: `17` or `17-1`; raises `InvalidRequest` naming `param`."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"Invalid value for '{param}': expected the id of an event, such as 17-1, or a delta's number.",
            param,
        )
    return Position(int(match[1]), None if match[2] is None else int(match[2]), param)


async def check_reached(services: Services, generation_id: UUID, after: Position) -> None:
    """Raises `InvalidRequest` for a position that the stream has not reached by now, `StreamUnavailable` when
    Redis is away.
    """
    if not after.seq:
        return
    try:
        last_seq = await services.stream.last_seq(generation_id)
        # What loses a log that has begun loses its job, too; the follower is told of the loss.
        is_known = bool(last_seq) or await services.stream.has_job(generation_id)
    except (RedisError, OSError) as error:
        raise StreamUnavailable(str(error)) from error
    if is_known and after.seq > last_seq:
        far = f"its last event is of delta {last_seq}" if last_seq else "it has no event yet"
        raise InvalidRequest(
            f"Invalid value for '{after.param}': the stream has not come so far; {far}.", after.param
        )


async def remainder(
    services: Services,
    encoder: OpenAI,
    row: Generation,
    after: Position,
    authorize: Authorize | None = None,
    ping_ms: int = 0,
) -> AsyncIterator[bytes]:
    """The frames behind that position, as they come; ends with the generation's end, or when the caller may
    not look any more.

    After `ping_ms` of silence comes a keep-alive; with 0 never.
    """
    sent_at, ping = time.monotonic(), PING
    async for part in _parts(services, row, authorize):
        frames = _frames(encoder, part, after)
        if frames:
            ping = PING_LINE
        elif ping_ms and (time.monotonic() + POLL_S - sent_at) * 1_000 >= ping_ms:
            frames = ping
        if frames:
            sent_at = time.monotonic()
            yield frames


def _frames(encoder: OpenAI, part: Part, after: Position) -> bytes:
    """Every delta is encoded, for encoders remember; those that the client has are dropped."""
    if part.first_seq is None:
        return encoder.encode(part.deltas)
    frames: list[bytes] = []
    for seq, delta in enumerate(part.deltas, start=part.first_seq):
        encoded = encoder.encode([delta])
        if isinstance(delta, TERMINAL) and after.seq > seq:
            return b"".join(
                [*frames, encoded]
            )  # of a log that has lost what came before: the client was further, and has no end yet
        events = encoded.split(b"\n\n")[:-1]
        frames += [
            b"id: %d-%d\n%b\n\n" % (seq, frame, event)
            for frame, event in enumerate(events, start=1)
            if after.is_before(seq, frame)
        ]
    return b"".join(frames)


async def follow(services: Services, row: Generation, ping_ms: int = 0) -> AsyncIterator[list[AnyDelta]]:
    """The generation's batches from the first delta up to and including a terminal one, from its log and,
    where that ends, the books.

    An empty batch means: so many ms have passed in silence, if any were asked for. Nobody is asked whether
    the caller may still look: what a key has asked for ends with that key.
    """
    heard = time.monotonic()
    async for part in _parts(services, row):
        if part.deltas or (ping_ms and (time.monotonic() + POLL_S - heard) * 1_000 >= ping_ms):
            heard = time.monotonic()
            yield part.deltas


async def is_kept(services: Services, row: Generation) -> bool:
    """Whether its stream can be had again: while it is open, and for some minutes after its end. Raises
    `StreamUnavailable`.
    """
    if row.state != State.SETTLED:
        return True
    try:
        # The job is asked for first: the end comes with the job's going.
        return await services.stream.has_job(row.id) or await services.stream.has_log(row.id)
    except (RedisError, OSError) as error:
        raise StreamUnavailable(str(error)) from error


async def _parts(
    services: Services, row: Generation, authorize: Authorize | None = None
) -> AsyncIterator[Part]:
    """What every look at the log has found, nothing as well, up to and including a terminal delta."""
    log, asked = _Log(services, row), time.monotonic()
    services.log_readers[row.organization_id] += 1
    try:
        while True:
            if authorize is not None and time.monotonic() - asked > ASK_RIGHTS_S:
                if refusal := await _refusal(authorize):
                    yield Part([refusal])
                    return
                # Not before the answer: many who began together drift apart, and find the answer that the
                # first of them got.
                asked = time.monotonic()
            part = await log.next()
            yield part
            if part.is_last:
                return
            if services.is_closing:
                # Whoever leaves this stream cancels nothing: the generation is not abandoned.
                yield Part([CLOSING])
                return
            if not part.deltas:
                await asyncio.sleep(max(POLL_S, services.log_readers[row.organization_id] * POLL_S_EACH))
    finally:
        services.log_readers[row.organization_id] -= 1


async def _refusal(authorize: Authorize) -> Failed | None:
    """What the caller is told who may not look any more."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await authorize()
    except (DatabaseUnavailable, TimeoutError):
        return None
    except AccountsError as error:
        return errors.from_exception(error).failure
    return None


class _Log:
    """A generation's log as one reader has read it so far, and what the books say when nothing more comes."""

    def __init__(self, services: Services, row: Generation) -> None:
        self._services, self._id, self._party = services, row.id, row.organization_id
        self._read_up_to, self._seq = b"", 0
        self._page_entries = 1
        self._failing_s = 0.0
        """How long Redis has been failing to answer; 0 when it did answer last."""
        self._watch = services.silence.watch(row.id)

    async def next(self) -> Part:
        """What has come since; neither Redis nor the database need be there."""
        try:
            part = await self._from_log()
            finding = None if part.deltas else self._watch.take()
            return part if finding is None else await self._found(finding)
        except StreamUnavailable:
            return Part(await self._broken_off())
        except (RedisError, OSError):
            return Part(await self._broken_off()) if self._failing_s > Inbox.LOST_AFTER_S else NOTHING
        except (DatabaseUnavailable, TimeoutError):
            return NOTHING

    async def _from_log(self) -> Part:
        reply_s = Inbox.PROBE_S if self._failing_s else REPLY_TIMEOUT_S
        began = loop_clock.monotonic()
        try:
            async with loop_clock.timeout(reply_s):
                self._read_up_to, found = await self._services.stream.tail(
                    self._id, self._read_up_to, self._seq, most_entries=self._page_entries
                )
        except (RedisError, OSError, TimeoutError) as error:
            self._failing_s += loop_clock.monotonic() - began + POLL_S
            raise RedisConnectionError(str(error)) from error
        self._failing_s = 0.0
        await self._services.turns.take(self._party, 1 + len(found))
        # A reader that does not read keeps a page in memory; where entries are large it is one of few.
        if found:
            fitting_entries = self._page_entries * PAGE_DELTAS // len(found)
            self._page_entries = max(1, min(fitting_entries, 2 * self._page_entries, PART_FRAMES))
        return self._read(found)

    def _read(self, found: list[AnyDelta]) -> Part:
        if not found:
            return NOTHING
        part = Part(found, self._seq + 1)
        self._seq += len(found)
        self._watch.heard()
        return part

    async def _found(self, finding: Finding) -> Part:
        """The end of a stream whose generation is in that state; nothing while it is about to be told by
        somebody else.
        """
        if finding is Finding.SETTLED:
            async with loop_clock.timeout(LAST_LOOK_S):
                return await self._settled()
        if finding is Finding.EXPIRED:
            return Part([NOT_STARTED]) if await self._services.expire(self._id) else NOTHING
        if finding is Finding.NO_ROW:
            # By restoring a backup or by hand: it will never end.
            return Part([errors.generation_not_found().failure])
        return Part([WORKER_LOST if finding is Finding.WORKER_LOST else LOST])

    async def _settled(self) -> Part:
        """The rest of the log, or else the end that this should have had by now."""
        end = await self._services.commits.read(reports.end_of, self._id)
        if end is None:
            return NOTHING
        if missed := await self._services.stream.replay(self._id, self._seq):
            return self._read(missed)
        if not self._seq and await is_to_be_told(self._services, self._id, end):
            return NOTHING
        # A log that is not there can't be told from one to which nothing was written.
        return Part(terminal_of(end) if self._seq else end_of_broken(end))

    async def _broken_off(self) -> list[AnyDelta]:
        """The end of a stream whose log is lost or out of reach."""
        try:
            async with loop_clock.timeout(LAST_LOOK_S):
                end = await self._services.commits.read(reports.end_of, self._id)
        except (DatabaseUnavailable, TimeoutError):
            return [LOST]
        return [LOST] if end is None else end_of_broken(end)
