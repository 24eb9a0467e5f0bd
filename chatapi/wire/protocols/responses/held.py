"""What waits until the open item of a response is whole."""

from typing import Any

from chatapi.wire.deltas import Content, ToolCall


class Held:
    """Deltas in the order of their items. Those of one item are joined: its last event has them all."""

    def __init__(self) -> None:
        self._groups: dict[tuple[type[Content], int], list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, delta: Content) -> None:
        group = type(delta), delta.call_index if isinstance(delta, ToolCall) else 0
        self._groups.setdefault(group, []).append(delta)

    def take(self) -> list[Content]:
        """Return what is held, item by item, and hold nothing any more."""
        groups, self._groups = self._groups, {}
        return [delta for first, *following in groups.values() for delta in first.joined(following)]
