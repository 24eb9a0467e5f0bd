"""Frames server-sent events, and parses them whatever way their bytes were split.

https://html.spec.whatwg.org/multipage/server-sent-events.html, sections 9.2.5 "Parsing an event stream" and 9.2.6
"Interpreting an event stream". Three differences, each because a chat completion is not a browser's feed: `id` and
`retry` are dropped (nothing here reconnects), data stays bytes (a JSON decoder reads it next), and an event without its
final blank line still counts, as `close` tells.
"""

import msgspec

MAX_EVENT_BYTES = 1 << 20
DEFAULT_TYPE = "message"
PING = b": ping\n\n"
"""A keep-alive. Clients take a comment well; a named or empty event makes SDKs raise a JSON error."""

_BOM = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """An event of the stream is larger than `MAX_EVENT_BYTES`."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event: its data lines joined by a newline, and its type."""

    data: bytes
    type: str = DEFAULT_TYPE


def frame(data: bytes) -> bytes:
    """One event's bytes; `data` must hold no newline, as compact JSON never does."""
    return b"data: " + data + b"\n\n"


def comment(text: bytes) -> bytes:
    """A comment's bytes, which every client ignores; `text` must hold no newline."""
    return b": " + text + b"\n\n"


class Parser:
    """Turns the bytes of one stream into events, however they are split; one instance per stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._ended_in_cr = False
        self._is_at_start = True

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes.

        Raises `EventTooLargeError` for an event over `MAX_EVENT_BYTES`, complete or not; the parser is of no use after it.
        """
        if self._ended_in_cr or b"\r" in data:
            data = self._with_newlines(data)
        if self._is_at_start:
            data = self._without_bom(data)
        data = self._rest + data
        blocks = data.split(b"\n\n")
        if len(data) > MAX_EVENT_BYTES and len(max(blocks, key=len)) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event is over {MAX_EVENT_BYTES} bytes")
        self._rest = blocks.pop()
        return _events(blocks)

    def close(self) -> list[Event]:
        """The event, if any, that the end of the input leaves without its blank line."""
        blocks, self._rest = [self._rest], b""
        return _events(blocks)

    def _with_newlines(self, data: bytes) -> bytes:
        """CRLF and CR as LF. A CR ends its line at once; an LF that comes first in the next read belongs to it."""
        if self._ended_in_cr and data.startswith(b"\n"):
            data = data[1:]
            self._ended_in_cr = False
        if data:
            self._ended_in_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _without_bom(self, data: bytes) -> bytes:
        """The stream's first bytes without a byte order mark, held back while they may be part of one."""
        start, self._rest = self._rest + data, b""
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._rest = start
            return b""
        self._is_at_start = False
        return start.removeprefix(_BOM)


def _events(blocks: list[bytes]) -> list[Event]:
    events = []
    for block in blocks:
        if block.startswith(b"data: ") and b"\n" not in block:  # what nearly every block is
            events.append(Event(block[6:]))
        elif (event := _interpret(block)) is not None:
            events.append(event)
    return events


def _interpret(block: bytes) -> Event | None:
    """The event of a block of lines, or None for one without data."""
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
