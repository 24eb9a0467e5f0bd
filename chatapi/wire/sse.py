"""Frames server-sent events, and parses them from bytes that are split anywhere.

https://html.spec.whatwg.org/multipage/server-sent-events.html, sections 9.2.5 "Parsing an event stream" and
9.2.6 "Interpreting an event stream". Four differences:

1. `id` and `retry` are dropped: nothing here reconnects.
2. Data stays bytes: a JSON decoder reads it next.
3. The last event may lack its blank line: `close` returns it.
4. A line break alone may separate two JSON documents: Bitseek's documents print streams without blank lines,
   and their parser reads every `data:` line as an event.
"""

import msgspec

# Room for a delta of 1 MiB, its JSON escapes, and the chunk around it.
MAX_EVENT_BYTES = 2 << 20
DEFAULT_TYPE = "message"
PING = b": ping\n\n"
"""A keep-alive: a comment, because a named or an empty event makes SDKs raise a JSON error."""
# A keep-alive for streams with ids. It has no blank line: once OpenAI's SDKs have seen an id, they take a
# blank line for an empty event.
PING_LINE = b": ping\n"

_BOM = b"\xef\xbb\xbf"
# If a bracket follows, it begins a second JSON document: inside one document, a comma would separate the two.
_SEAM = b"}\ndata: "


class EventTooLargeError(ValueError):
    """An event of the stream is larger than `MAX_EVENT_BYTES`."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event: its data lines joined by a newline, and its type."""

    data: bytes
    type: str = DEFAULT_TYPE


def frame(data: bytes) -> bytes:
    """One event's bytes; `data` must hold no newline, as compact JSON never does."""
    return b"data: " + data + b"\n\n"


class Parser:
    """Turns the bytes of one stream into events, however they are split; one instance per stream."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._ended_in_cr = False
        self._is_at_start = True

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes.

        Raises `EventTooLargeError` for an event over `MAX_EVENT_BYTES`, complete or not; the parser can't be
        used after it.
        """
        if self._ended_in_cr or b"\r" in data:
            data = self._with_newlines(data)
        if self._is_at_start:
            data = self._without_bom(data)
        if self._rest:
            data = self._with_rest(data)
        blocks = data.split(b"\n\n")
        if len(data) > MAX_EVENT_BYTES and len(max(blocks, key=len)) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event is over {MAX_EVENT_BYTES} bytes")
        if rest := blocks.pop():
            if _SEAM in rest:
                blocks += _parted(rest)
                rest = blocks.pop()
            self._rest += rest
        return _events(blocks)

    def close(self) -> list[Event]:
        """Return the events that the end of the input leaves without a blank line, mostly none."""
        rest = bytes(self._rest)
        self._rest.clear()
        return _events([rest])

    def _with_rest(self, data: bytes) -> bytes:
        """Return the rest of earlier reads and this data; empty as long as no event ends in them.

        So a long event that comes in many small reads is not copied and searched for each of them.
        """
        rest = self._rest
        start = max(0, len(rest) + 1 - len(_SEAM))
        rest += data
        if len(rest) <= MAX_EVENT_BYTES and rest.find(b"\n\n", start) < 0 and rest.find(_SEAM, start) < 0:
            return b""
        whole = bytes(rest)
        rest.clear()
        return whole

    def _with_newlines(self, data: bytes) -> bytes:
        """Replace CRLF and CR by LF. A CR ends its line at once; an LF at the start of the next read belongs
        to it.
        """
        if self._ended_in_cr and data.startswith(b"\n"):
            data = data[1:]
            self._ended_in_cr = False
        if data:
            self._ended_in_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, data: bytes) -> bytes:
        """Remove a byte order mark from the stream's first bytes; hold back bytes that may be part of it."""
        start = bytes(self._rest) + data
        self._rest.clear()
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._rest += start
            return b""
        self._is_at_start = False
        return start.removeprefix(_BOM)


def _events(blocks: list[bytes]) -> list[Event]:
    events = []
    for block in blocks:
        if block.startswith(b"data: ") and b"\n" not in block:  # nearly every block
            events.append(Event(block[6:]))
        else:
            events += [event for part in _parted(block) if (event := _interpret(part)) is not None]
    return events


def _parted(block: bytes) -> list[bytes]:
    """Return the block, split where a line break alone separates two JSON documents."""
    if _SEAM not in block:
        return [block]
    for bracket in (b"{", b"["):
        block = block.replace(_SEAM + bracket, b"}\n\ndata: " + bracket)
    return block.split(b"\n\n")


def _interpret(block: bytes) -> Event | None:
    """Return the event of a block of lines, or None if the block has no data."""
    data: list[bytes] = []
    event_type = b""
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event_type = value
    if not data:
        return None
    return Event(b"\n".join(data), event_type.decode("utf-8", "replace") or DEFAULT_TYPE)
