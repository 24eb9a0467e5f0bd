"""Holds the deltas of an answer that its client gets in one piece, to publish few of them instead of many."""

from collections.abc import Sequence
from typing import Final

from chatapi.wire.deltas import TERMINAL, AnyDelta, Reasoning, Started, Text
from chatapi.worker.runs.publisher import MAX_ENTRY_DELTAS

# The most that is held: if the worker dies, it is lost, and not charged.
MAX_CHARS: Final = 16 << 10


class HeldAnswer:
    """The deltas that are not published yet; texts that follow each other are joined."""

    def __init__(self) -> None:
        self.taken_pieces = 0
        """The number of deltas with content that are not held any more."""
        self._deltas: list[AnyDelta] = []
        # Texts of one kind and choice, which follow `_deltas`.
        self._texts: list[str] = []
        self._kind: type[Text | Reasoning] = Text
        self._index = 0
        self._pieces = 0
        self._chars = 0

    def add(self, batch: Sequence[AnyDelta]) -> list[AnyDelta]:
        """Hold the batch (not empty); return what is to be published now: nothing, or all that is held."""
        for delta in batch:
            if (type(delta) is Text and delta.logprobs is None) or (
                type(delta) is Reasoning and not delta.signature and not delta.redacted
            ):
                # What is longer was cut, because a reader decodes one delta in one step.
                is_long = self._chars > MAX_CHARS
                if is_long or type(delta) is not self._kind or delta.index != self._index:
                    self._join()
                    self._kind, self._index = type(delta), delta.index
                self._texts.append(delta.text)
                self._chars += len(delta.text)
                self._pieces += 1
            else:
                self._join()
                self._deltas.append(delta)
                self._chars += delta.content_chars
                self._pieces += type(delta) is not Started
        is_full = self._chars > MAX_CHARS or len(self._deltas) >= MAX_ENTRY_DELTAS
        return self.take() if is_full or isinstance(batch[-1], TERMINAL) else []

    def take(self) -> list[AnyDelta]:
        """Return all that is held, and hold nothing."""
        self._join()
        held, self._deltas = self._deltas, []
        self.taken_pieces += self._pieces
        self._pieces = self._chars = 0
        return held

    def _join(self) -> None:
        if self._texts:
            self._deltas.append(self._kind("".join(self._texts), self._index))
            self._texts = []
