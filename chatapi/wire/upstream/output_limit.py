"""Counts what an upstream says in one choice against the limit that it was given, for it may ignore the
limit.
"""

from collections.abc import Sequence
from itertools import islice

from chatapi.wire import tokens
from chatapi.wire.deltas import AnyDelta, Reasoning, Text

# A text that is longer is rarely one token.
MAX_TOKEN_CHARACTERS = 16
# Our vocabulary is not the upstream's: only an answer in which we count this many times the limit is
# certainly beyond it.
TOLERANCE = 2


class OutputLimit:
    """How much of its limit one choice has used.

    Chunks are counted, because each has at least one token. Texts of more than 16 characters may have
    several, so their bytes are added up, too; the tokenizer runs only when the bytes exceed the tokens
    allowed.
    """

    def __init__(self, max_chunks: int) -> None:
        self._max_chunks = max_chunks
        self._chunks = 0
        self._tokens = 0
        self._uncounted: list[str] = []
        self._uncounted_bytes = 0

    @property
    def is_used_up(self) -> bool:
        """Whether the upstream may say no more."""
        return self._chunks >= self._max_chunks

    def allows(self, said: Sequence[AnyDelta]) -> bool:
        """Count a chunk's content; whether the choice is still within its limit."""
        self._chunks += 1
        if self._chunks > self._max_chunks:
            return False
        first = said[0]
        if (
            len(said) == 1 and type(first) is Text and len(first.text) <= MAX_TOKEN_CHARACTERS
        ):  # what nearly every chunk is
            return True
        texts = [delta.counted_text or "" for delta in said]
        return self._allows_texts([text for text in texts if len(text) > MAX_TOKEN_CHARACTERS])

    def beginning(self, said: Sequence[AnyDelta]) -> list[AnyDelta]:
        """Return what is shown of a chunk beyond the limit: nothing, but of an answer in one piece the tokens
        that it may have.
        """
        first = said[0]
        if self._chunks > 1 or not isinstance(first, Text | Reasoning):
            return []
        text = "".join(token for token, _ in islice(tokens.split(first.text), self._max_chunks))
        if not text:
            return []
        return [Reasoning(text, first.index) if isinstance(first, Reasoning) else Text(text, first.index)]

    def _allows_texts(self, texts: Sequence[str]) -> bool:
        most = TOLERANCE * self._max_chunks
        self._uncounted += texts
        self._uncounted_bytes += sum(len(text.encode("utf-8", "replace")) for text in texts)
        if self._tokens + tokens.upper_bound(self._uncounted_bytes) > most:
            self._tokens += tokens.estimate("".join(self._uncounted))
            self._uncounted, self._uncounted_bytes = [], 0
        return self._tokens <= most
