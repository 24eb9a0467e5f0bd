"""The entries of logs and inboxes: what is written, what is read, and whether deltas are missing; pure."""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from chatapi.delta_stream.errors import StreamLost
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Failed

# The highest number of a delta that a client can name (`web/resumption.py`); no generation has that many.
MAX_SEQ = 999_999_999

# Generation in hex, fence, first seq, 1 for a generation's last batch, length of the batch that follows.
_FRAME = struct.Struct(">32sQIBI")


class Entry(msgspec.Struct, frozen=True):
    """A batch on its way to a server: the deltas `first_seq…` of one generation, under its holder's fence."""

    id: UUID
    fence: int
    first_seq: int
    batch: bytes
    inbox: str = ""
    is_last: bool = False

    def frame(self) -> bytes:
        """Return the entry as `frames_of` reads it, and a server's script."""
        return (
            _FRAME.pack(self.id.hex.encode(), self.fence, self.first_seq, self.is_last, len(self.batch))
            + self.batch
        )


class Frame(NamedTuple):
    """An entry as it arrives in an inbox."""

    id: bytes
    """32 hex digits."""
    first_seq: int
    batch: bytes
    fence: int = 0

    @property
    def name(self) -> bytes:
        """The name of its entry in the log."""
        return b"%d-%d" % (self.fence, self.first_seq)


# As a server returns it: its name, `<fence>-<first seq>`, and its fields.
LogEntry = tuple[bytes, dict[bytes, bytes]]


class Batch(NamedTuple):
    """Consecutive deltas, and the number of the first one."""

    first_seq: int
    deltas: list[AnyDelta]

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.deltas) - 1


class Rest(NamedTuple):
    """The deltas behind a position: consecutive, but before a failure some may be missing."""

    deltas: list[AnyDelta]
    last_seq: int
    """The number of the last one; without deltas, the position."""


class Sealed(msgspec.Struct, frozen=True):
    """The content of a sealed log."""

    deltas: list[AnyDelta]
    is_whole: bool
    """False when its beginning is missing: nothing was published, the server has lost it, or another version
    has written it.
    """


def frames_of(data: bytes) -> list[Frame]:
    frames, at = [], 0
    while at < len(data):
        generation_id, fence, first_seq, _, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        frames.append(Frame(generation_id, first_seq, data[at : at + length], fence))
        at += length
    return frames


def batches_of(entries: Sequence[LogEntry]) -> list[Batch]:
    """Decode the entries, without seals. Raises `StreamLost` for a batch of another version."""
    try:
        return [
            Batch(place_of(name)[1], deltas.decode(fields[b"d"])) for name, fields in entries if fields[b"d"]
        ]
    except msgspec.DecodeError as error:
        raise StreamLost(f"the log can't be read: {error}") from error


def deltas_behind(seq: int, held: Sequence[Batch]) -> Rest:
    """Return the deltas after that number, in order; raises `StreamLost` when some are lost."""
    found: list[AnyDelta] = []
    for batch in held:
        # Right before a failure some may be missing: deltas that a worker could not publish cost nothing, and
        # the failure is their end. It keeps its number: a client may have the missing ones.
        if batch.first_seq > seq + 1 and not isinstance(batch.deltas[0], Failed):
            raise StreamLost("a part of the log is lost")
        found += batch.deltas[max(0, seq + 1 - batch.first_seq) :]
        seq = max(seq, batch.last_seq)
    return Rest(found, seq)


def last_seq_of(entries: Sequence[LogEntry]) -> int:
    """Return the number of the last delta; 0 if there is none. Another version's batches are counted, too."""
    name, batch = next(
        ((name, fields[b"d"]) for name, fields in reversed(entries) if fields[b"d"]), (b"", b"")
    )
    if not batch:
        return 0
    try:
        return place_of(name)[1] + len(msgspec.msgpack.decode(batch, type=list[msgspec.Raw])) - 1
    except msgspec.DecodeError:
        return place_of(name)[1]


def place_of(name: bytes) -> tuple[int, int]:
    """Return the fence and the first seq of a log's entry, by which its log is ordered; zeros of no name."""
    fence, _, first_seq = name.partition(b"-")
    return int(fence or 0), int(first_seq or 0)
