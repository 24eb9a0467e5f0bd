"""What the entries of a generation's log hold: batches of deltas in order, or the fact that some are lost.
Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Failed

# As Redis returns it: its name, `<fence>-<first seq>`, and its fields.
LogEntry = tuple[bytes, dict[bytes, bytes]]


class StreamUnavailable(Exception):
    """Redis can't be reached, or has lost what should be there."""


class Batch(NamedTuple):
    """Consecutive deltas, and the number of the first one."""

    first_seq: int
    deltas: list[AnyDelta]

    @property
    def last_seq(self) -> int:
        """The number of the last one."""
        return self.first_seq + len(self.deltas) - 1


class Sealed(msgspec.Struct, frozen=True):
    """The content of a sealed log."""

    deltas: list[AnyDelta]
    last_seq: int
    is_whole: bool
    """False when its beginning is missing: nothing was published, Redis has lost it, or another version has
    written it.
    """


def batches(entries: Sequence[LogEntry]) -> list[Batch]:
    """Decode the entries, without seals. Raises `StreamUnavailable` for a batch of another version."""
    try:
        return [
            Batch(_first_seq(name), deltas.decode(fields[b"d"])) for name, fields in entries if fields[b"d"]
        ]
    except msgspec.DecodeError as error:
        raise StreamUnavailable(f"the log can't be read: {error}") from error


def behind(seq: int, held: Sequence[Batch]) -> list[AnyDelta]:
    """Return the deltas after that number, in order; raises `StreamUnavailable` when some of them are lost.

    Only right before a failure may some be missing: deltas that a worker could not publish cost nothing, and
    the failure is their end.
    """
    found: list[AnyDelta] = []
    for first_seq, batch in held:
        known = seq + len(found)
        if first_seq > known + 1 and not isinstance(batch[0], Failed):
            raise StreamUnavailable("Redis has lost a part of the log")
        found += batch[max(0, known + 1 - first_seq) :]
    return found


def sealed(entries: Sequence[LogEntry]) -> Sealed:
    """Return the content of a whole log. Raises as `batches`."""
    held = batches(entries)
    first_seq = held[0].first_seq if held else 0
    found = [delta for batch in held for delta in batch.deltas]
    return Sealed(found, max(0, first_seq - 1) + len(found), is_whole=first_seq == 1)


def last_seq(entries: Sequence[LogEntry]) -> int:
    """Return the number of the last delta; 0 if there is none. Another version's batches are counted, too."""
    name, batch = next(
        ((name, fields[b"d"]) for name, fields in reversed(entries) if fields[b"d"]), (b"", b"")
    )
    if not batch:
        return 0
    try:
        return _first_seq(name) + len(msgspec.msgpack.decode(batch, type=list[msgspec.Raw])) - 1
    except msgspec.DecodeError:
        return _first_seq(name)


def _first_seq(name: bytes) -> int:
    return int(name.partition(b"-")[2])
