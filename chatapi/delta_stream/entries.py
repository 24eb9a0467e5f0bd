"""The entries of logs and inboxes: encodes and decodes them, and detects missing deltas; pure."""

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
        """Return the entry's bytes, which a server's script and `frames_of` read."""
        return (
            _FRAME.pack(self.id.hex.encode(), self.fence, self.first_seq, self.is_last, len(self.batch))
            + self.batch
        )


class Frame(NamedTuple):
    """An entry as it arrives in an inbox."""

    id: bytes
    """The generation's id, as 32 hexadecimal digits."""
    first_seq: int
    batch: bytes
    fence: int = 0

    @property
    def name(self) -> bytes:
        """The name of the frame's entry in the log."""
        return b"%d-%d" % (self.fence, self.first_seq)


# An entry as a server returns it: its name, `<fence>-<first seq>`, and its fields.
LogEntry = tuple[bytes, dict[bytes, bytes]]


class Batch(NamedTuple):
    """Consecutive deltas, and the number of the first one."""

    first_seq: int
    deltas: list[AnyDelta]

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.deltas) - 1


class Rest(NamedTuple):
    """The deltas after a position. They are consecutive, except that some may be missing before a failure."""

    deltas: list[AnyDelta]
    last_seq: int
    """The number of the last delta; without deltas, the position."""


class Sealed(msgspec.Struct, frozen=True):
    """The content of a sealed log."""

    deltas: list[AnyDelta]
    is_whole: bool
    """False if its beginning is missing: nothing was published, the server has lost it, or another version
    wrote it.
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
    """Decode the entries, except seals. Raises `StreamLost` for a batch of another version."""
    try:
        return [
            Batch(place_of(name)[1], deltas.decode(fields[b"d"])) for name, fields in entries if fields[b"d"]
        ]
    except msgspec.DecodeError as error:
        raise StreamLost(f"the log can't be read: {error}") from error


def deltas_behind(seq: int, held: Sequence[Batch]) -> Rest:
    """Return the deltas after number `seq`, in order. Raises `StreamLost` if some are lost."""
    found: list[AnyDelta] = []
    for batch in held:
        # Some may be missing right before a failure: a worker could not publish them, and they are not
        # charged. The failure keeps its number, because a client may have the missing ones.
        if batch.first_seq > seq + 1 and not isinstance(batch.deltas[0], Failed):
            raise StreamLost("a part of the log is lost")
        found += batch.deltas[max(0, seq + 1 - batch.first_seq) :]
        seq = max(seq, batch.last_seq)
    return Rest(found, seq)


def last_seq_of(entries: Sequence[LogEntry]) -> int:
    """Return the number of the last delta; 0 if there is none. Batches of another version count, too."""
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
    """Return the fence and the first seq in an entry's name, which order the log; zeros for an empty name."""
    fence, _, first_seq = name.partition(b"-")
    return int(fence or 0), int(first_seq or 0)
