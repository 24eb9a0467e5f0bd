"""Counts an upstream's output for one choice against the limit that it was given, which it may ignore."""

from collections.abc import Sequence
from itertools import islice

from chatapi.wire import tokens
from chatapi.wire.deltas import AnyDelta, Reasoning, Text

# A longer text is rarely one token.
MAX_TOKEN_CHARACTERS = 16
# Our vocabulary is not the upstream's: an answer is certainly over the limit only if we count this many times
# the limit.
TOLERANCE = 2


class OutputLimit:
    """The part of its limit that one choice has used.

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
        """Whether no further chunk is allowed."""
        return self._chunks >= self._max_chunks

    def allows(self, said: Sequence[AnyDelta]) -> bool:
        """Count a chunk's content; return whether the choice is still within its limit."""
        self._chunks += 1
        if self._chunks > self._max_chunks:
            return False
        first = said[0]
        if (
            len(said) == 1 and type(first) is Text and len(first.text) <= MAX_TOKEN_CHARACTERS
        ):  # nearly every chunk
            return True
        texts = [delta.counted_text or "" for delta in said]
        return self._allows_texts([text for text in texts if len(text) > MAX_TOKEN_CHARACTERS])

    def beginning(self, said: Sequence[AnyDelta]) -> list[AnyDelta]:
        """Return the part to show of a chunk that exceeds the limit: of the first chunk, the tokens that the
        choice may have; of others, nothing.
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
