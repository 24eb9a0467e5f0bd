"""What a generation's log holds: batches of deltas in order, or the fact that some of them are lost. Pure."""

from collections.abc import Sequence

import msgspec

from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Failed

Entry = tuple[bytes, dict[bytes, bytes]]
"""As Redis answers it: its name, `<fence>-<first seq>`, and its fields."""


class StreamUnavailable(Exception):
    """Redis can't be reached, or has lost what should be there."""


def batches(entries: Sequence[Entry]) -> list[tuple[int, list[AnyDelta]]]:
    """The log's entries as (first seq, deltas); a seal carries none. Raises `StreamUnavailable` for what
    another version has written.
    """
    try:
        return [(_first_seq(name), deltas.decode(fields[b"d"])) for name, fields in entries if fields[b"d"]]
    except msgspec.DecodeError as error:
        raise StreamUnavailable(f"the log can't be read: {error}") from error


def behind(seq: int, held: Sequence[tuple[int, list[AnyDelta]]]) -> list[AnyDelta]:
    """The deltas after that one, in order; raises `StreamUnavailable` when some of them are lost.

    Only right before a failure may some be missing: what a worker could not publish costs nothing, and the
    failure tells of it.
    """
    found: list[AnyDelta] = []
    for first_seq, batch in held:
        known = seq + len(found)
        if first_seq > known + 1 and not isinstance(batch[0], Failed):
            raise StreamUnavailable("Redis has lost a part of the log")
        found += batch[max(0, known + 1 - first_seq) :]
    return found


def _first_seq(name: bytes) -> int:
    return int(name.partition(b"-")[2])


def last_seq(entries: Sequence[Entry]) -> int:
    """The number of the last delta, of which there must be one; also of a log that another version has
    written.

    How many deltas a batch has is known of any MessagePack.
    """
    name, fields = [entry for entry in entries if entry[1][b"d"]][-1]
    try:
        return _first_seq(name) + len(msgspec.msgpack.decode(fields[b"d"], type=list[msgspec.Raw])) - 1
    except msgspec.DecodeError:
        return _first_seq(name)
