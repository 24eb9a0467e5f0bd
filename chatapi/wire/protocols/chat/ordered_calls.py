"""Puts the tool calls of one choice one after the other.

OpenAI's streams have one open call, and openai-python's `stream()` decodes the arguments of a strict tool
when the next call begins. So a call that begins while another is incomplete is held back until the choice
ends.
"""

from chatapi.wire.deltas import ToolCall
from chatapi.wire.json_guard import as_object


class OrderedCalls:
    """The tool calls of one choice: deltas in, and those out that may be sent."""

    def __init__(self) -> None:
        # The number of the call that began last; None: there is no call yet.
        self._open: int | None = None
        # Its arguments, because their pieces would take 15 times the memory. None: a custom tool takes any
        # text, so its end is not visible.
        self._arguments: bytearray | None = None
        # The pieces of calls that are held back, by number.
        self._held: dict[int, list[ToolCall]] = {}

    def add(self, delta: ToolCall) -> list[ToolCall]:
        """Return the delta, unless it is held back."""
        number = delta.call_index
        if self._open is None or (number > self._open and not self._held and self._is_whole):
            self._open = number
            self._arguments = None if delta.kind == "custom" else bytearray()
        if number > self._open:
            self._held.setdefault(number, []).append(delta)
            return []
        if number == self._open and self._arguments is not None:
            self._arguments += delta.arguments.encode()
        return [delta]

    def release(self) -> list[ToolCall]:
        """Return the calls that are held back, each in one piece, at the end of the choice or its failure."""
        held, self._held = self._held, {}
        return [delta for first, *rest in held.values() for delta in first.joined(rest)]

    @property
    def _is_whole(self) -> bool:
        return self._arguments is None or as_object(self._arguments.decode()) is not None
