"""A generation's stream again: replayed from its log, then followed until its end.

For whoever resumes, each frame has an SSE id, `<delta>-<frame of that delta>`, so that the remainder is byte-identical wherever the
connection broke. The log is read again and again rather than waited for: a blocked read holds a connection, and few clients resume.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import NamedTuple
from uuid import UUID

from redis.exceptions import RedisError

from chatapi import errors
from chatapi.delta_stream import StreamUnavailable
from chatapi.web.relay import LOST, terminal_of
from chatapi.web.services import Services
from chatapi.wire.deltas import TERMINAL, AnyDelta
from chatapi.wire.dialects import OpenAI
from chatapi.wire.invalid_request import InvalidRequest
from usage import reports
from usage.errors import DatabaseUnavailable
from usage.models import Generation, Outcome, State

POLL_S = 0.05
ASK_BOOKS_S = 1.0
"""How long the log may be silent before the books are asked whether the generation has ended."""

_POSITION = re.compile(r"(\d{1,9})(?:-(\d{1,4}))?", re.ASCII)


class Position(NamedTuple):
    """The last frame that a client has: of which delta, and which of its frames; (0, 0) is before the first."""

    seq: int
    frame: int | None
    """None: all frames of that delta."""

    def is_before(self, seq: int, frame: int) -> bool:
        """Whether that frame is still to be sent."""
        return seq > self.seq or (seq == self.seq and self.frame is not None and frame > self.frame)


def position(text: str, param: str) -> Position:
    """The position that a client names: `17` or `17-1`; raises `InvalidRequest` naming `param`."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"Invalid value for '{param}': expected the id of an event, such as 17-1, or a delta's number.", param)
    return Position(int(match[1]), None if match[2] is None else int(match[2]))


async def remainder(services: Services, encoder: OpenAI, generation_id: UUID, after: Position) -> AsyncIterator[bytes]:
    """The frames behind that position, as they come; ends with the generation's end."""
    seq = 0
    async for batch in follow(services, generation_id):
        frames: list[bytes] = []
        for delta in batch:
            seq += 1
            frames += _frames(encoder, delta, seq, after)
        if frames:
            yield b"".join(frames)


def _frames(encoder: OpenAI, delta: AnyDelta, seq: int, after: Position) -> list[bytes]:
    """Every delta is encoded, for encoders remember; those that the client has are dropped."""
    events = encoder.encode([delta]).split(b"\n\n")[:-1]
    return [b"id: %d-%d\n%b\n\n" % (seq, frame, event) for frame, event in enumerate(events, start=1) if after.is_before(seq, frame)]


async def follow(services: Services, generation_id: UUID, ping_ms: int = 0) -> AsyncIterator[list[AnyDelta]]:
    """The generation's batches from the first delta up to and including a terminal one, from its log and, where that ends, the books.

    An empty batch means: so many ms have passed in silence, if any were asked for.
    """
    loop = asyncio.get_running_loop()
    read_up_to, seq, heard = b"", 0, loop.time()
    pinged = heard
    while True:
        batch: list[AnyDelta] = []
        try:
            read_up_to, batch = await services.stream.tail(generation_id, read_up_to, seq)
            if not batch and loop.time() - heard > ASK_BOOKS_S:
                heard = loop.time()
                batch = await _missing_end(services, generation_id, seq)
        except (RedisError, OSError, StreamUnavailable, DatabaseUnavailable):
            batch = [LOST]
        if batch:
            seq, heard = seq + len(batch), loop.time()
            yield batch
            if isinstance(batch[-1], TERMINAL):
                return
            continue
        if ping_ms and (loop.time() - max(pinged, heard)) * 1_000 >= ping_ms:
            pinged = loop.time()
            yield []
        await asyncio.sleep(POLL_S)


async def is_kept(services: Services, row: Generation) -> bool:
    """Whether its stream can be had again: while it is open, and for some minutes after its end. Raises `StreamUnavailable`."""
    if row.state != State.SETTLED:
        return True
    try:
        _, held = await services.stream.tail(row.id, b"", 0)
    except (RedisError, OSError) as error:
        raise StreamUnavailable(str(error)) from error
    return bool(held)


async def _missing_end(services: Services, generation_id: UUID, seq: int) -> list[AnyDelta]:
    """The end that the log should have had by now; a good one must not follow a text that is lost."""
    end = await services.commits.read(reports.end_of, generation_id)
    if end is None:
        # A row that is gone, by restoring a backup or by hand, will never end.
        is_open = await services.commits.read(Generation.objects.filter(id=generation_id).exists)
        return [] if is_open else [errors.generation_not_found().failure]
    return [LOST] if end.outcome == Outcome.COMPLETED and not seq else terminal_of(end)
