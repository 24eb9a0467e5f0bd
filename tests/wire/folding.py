"""Folds the deltas of a generation, for tests that compare whole answers."""

from collections.abc import Iterable

from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta


def collect(deltas: Iterable[AnyDelta]) -> Completion:
    """Fold a generation's deltas into one `Completion`."""
    completion = Completion()
    for delta in deltas:
        completion.add(delta)
    return completion
