"""A generation's stream again: replayed from its log, then followed until its end.

For a client that resumes, each frame of the log has an SSE id, `<delta>-<frame of that delta>`, so that the
remainder is byte-identical wherever the connection broke. An end that is not in the log has no id: the log's
next delta would get the same one, and a client that resumes behind it would miss that delta.
"""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple
from uuid import UUID

from chatapi.web.following.follower import Follower
from chatapi.web.relay import Authorize, Pace, relay
from chatapi.web.services import Services
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols.protocol import Encoder
from usage.books.ledger import Admission
from usage.models import Generation, State

# Up to `delta_stream.MAX_SEQ`.
_POSITION = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class Position(NamedTuple):
    """The last frame that a client has, as its delta and its number within that delta; 0 is before all."""

    seq: int
    frame: int | None
    """The frame's number; None: the client has all frames of the delta."""
    param: str = ""
    """The parameter or header in which the client sent the position."""

    def is_before(self, seq: int, frame: int) -> bool:
        """Return whether that frame is still to be sent."""
        return seq > self.seq or (seq == self.seq and self.frame is not None and frame > self.frame)


def position(text: str, param: str) -> Position:
    """Return the position that a client names, `17` or `17-1`; raises `InvalidRequest` naming `param`."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"Invalid value for '{param}': expected the id of an event, such as 17-1, or a delta's number.",
            param,
        )
    return Position(int(match[1]), None if match[2] is None else int(match[2]), param)


async def check_reached(services: Services, generation_id: UUID, after: Position) -> None:
    """Raise `InvalidRequest` for a position that the stream has not reached, `StreamUnavailable` without
    Redis.
    """
    if not after.seq:
        return
    stream = services.streams.of(generation_id)
    last_seq = await stream.last_seq(generation_id)
    # A Redis that has lost a log has lost its job, too; the stream then ends with that error.
    is_known = bool(last_seq) or await stream.has_job(generation_id)
    if is_known and after.seq > last_seq:
        far = f"its last event is of delta {last_seq}" if last_seq else "it has no event yet"
        raise InvalidRequest(
            f"Invalid value for '{after.param}': the stream has not come so far; {far}.", after.param
        )


async def is_kept(services: Services, row: Generation) -> bool:
    """Return whether the stream can be read again: while it is open, and some minutes after its end. Raises
    `StreamUnavailable`.
    """
    if row.state != State.SETTLED:
        return True
    # The job first: it goes when the terminal delta is written to the log.
    stream = services.streams.of(row.id)
    return await stream.has_job(row.id) or await stream.has_log(row.id)


async def follow(
    services: Services, row: Generation | Admission, ping_ms: int = 0, authorize: Authorize | None = None
) -> AsyncIterator[list[AnyDelta]]:
    """Yield what `relay` does, from the generation's beginning, for a client that attaches to it."""
    with _follower(services, row) as follower:
        async for batch in relay(services, follower, ping_ms, authorize):
            yield batch


async def snapshot(services: Services, row: Generation) -> AsyncIterator[list[AnyDelta]]:
    """Yield what the log holds now; of a generation that has ended, all up to its end."""
    if row.state == State.SETTLED:
        async for batch in follow(services, row):
            yield batch
        return
    with _follower(services, row) as follower:
        while batch := await follower.next():
            yield batch


async def remainder(
    services: Services,
    encoder: Encoder,
    row: Generation,
    after: Position,
    authorize: Authorize | None = None,
    ping_ms: int = 0,
) -> AsyncIterator[bytes]:
    """Yield the frames behind that position, as they come, up to the generation's end; no bytes stand for a
    keep-alive. Raises what `relay` does.
    """
    seq, pace = 0, Pace(ping_ms)
    with _follower(services, row) as follower:
        async for batch in relay(services, follower, ping_ms, authorize):
            in_log = batch[: follower.seq - seq]
            # Numbers may be missing only before the last delta, which is then a failure.
            numbers = [*range(seq + 1, seq + len(in_log)), follower.seq]
            frames = _numbered(encoder, zip(numbers, in_log, strict=False), after)
            for delta in batch[len(in_log) :]:  # without numbers, so they must not flush what is held back
                frames += encoder.failed(delta) if isinstance(delta, Failed) else encoder.encode([delta])
            seq = follower.seq
            if pace.needs_keep_alive(batch, has_frames=bool(frames)) or frames:
                yield frames


def _follower(services: Services, row: Generation | Admission) -> AbstractContextManager[Follower]:
    return services.inboxes.of(row.id).resuming(row.id, row.organization_id)


def _numbered(encoder: Encoder, deltas: Iterable[tuple[int, AnyDelta]], after: Position) -> bytes:
    """Encode all deltas, because encoders have state; drop the frames that the client has."""
    frames: list[bytes] = []
    for seq, delta in deltas:
        encoded = encoder.encode([delta])
        if isinstance(delta, TERMINAL) and after.seq > seq:
            # The log has lost deltas that the client has, but the client does not have this end.
            return b"".join([*frames, encoded])
        events = encoded.split(b"\n\n")[:-1]
        frames += [
            b"id: %d-%d\n%b\n\n" % (seq, frame, event)
            for frame, event in enumerate(events, start=1)
            if after.is_before(seq, frame)
        ]
    return b"".join(frames)
