"""What waits until the open item of a response is whole."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from chatapi.wire.deltas import Annotations, AnyDelta, Text, ToolCall


class Held:
    """Deltas in the order of their items. Those of one item are joined: its last event has them all."""

    def __init__(self) -> None:
        self._groups: dict[tuple[type[AnyDelta], int], list[AnyDelta]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, delta: AnyDelta) -> None:
        group = type(delta), delta.call_index if isinstance(delta, ToolCall) else 0
        self._groups.setdefault(group, []).append(delta)

    def take(self) -> list[AnyDelta]:
        """Return a delta for each item, and hold nothing any more."""
        groups, self._groups = self._groups, {}
        return [_joined(deltas) for deltas in groups.values()]


def _joined(deltas: Sequence[Any]) -> AnyDelta:
    """Return one delta that says what these of one item say."""
    first: AnyDelta = deltas[0]
    match first:
        case ToolCall():
            return replace(first, arguments="".join(each.arguments for each in deltas))
        case Annotations():
            return replace(first, annotations=[one for each in deltas for one in each.annotations])
        case Text():
            logprobs = [one for each in deltas for one in each.logprobs or ()]
            return replace(first, text="".join(each.text for each in deltas), logprobs=logprobs or None)
    return replace(first, text="".join(each.text for each in deltas))
