"""The sandbox's embeddings: unit vectors, nearer to each other the more words their texts share. Pure.

Each word adds to some places of the vector, which its hash chooses, and the whole text a little to all of
them, so that different texts have different vectors. A request for fewer dimensions gets the first ones.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import sqrt
from typing import Final

from chatapi.wire.deltas import AnyDelta, Finished, Vector
from chatapi.wire.prompts import Inputs
from chatapi.worker.engines.sandbox.request import prompt_text
from chatapi.worker.engines.sandbox.script import without_markers

DIMENSIONS: Final = 1_536
# The most words of all inputs that are read: they cost nothing, so they are bounded.
MAX_WORDS: Final = 100_000
# What a word adds to or takes from each of its eight places; the whole text adds from -4 to 4 to all.
WORD_WEIGHT: Final = 128.0

_WORD = re.compile(r"\w+")


class DimensionsError(ValueError):
    """A request for longer vectors than there are; the message says what is allowed."""


class Embeddings:
    """The answer to a request for embeddings, used like an `Answer`: one vector a round, and no choices."""

    choices_count = 1
    completion_tokens = 0
    reasoning_tokens = 0
    finished: Sequence[Finished] = ()

    def __init__(self, inputs: Inputs) -> None:
        """Raises `DimensionsError`."""
        if (inputs.dimensions or 0) > DIMENSIONS:
            raise DimensionsError(f"The sandbox's embeddings have at most {DIMENSIONS} dimensions")
        self._prompts = inputs.prompts
        self._dimensions = inputs.dimensions or DIMENSIONS

    def rounds(self) -> Iterator[list[AnyDelta]]:
        most_words = max(1, MAX_WORDS // len(self._prompts))
        for index, prompt in enumerate(self._prompts):
            text = without_markers(prompt_text(prompt))
            words = (found.group().lower() for found in islice(_WORD.finditer(text), most_words))
            values = _values(text, words)[: self._dimensions]
            # Of length 1, as the embeddings of most models are.
            length = sqrt(sum(value * value for value in values)) or 1.0
            yield [Vector(array("f", [value / length for value in values]).tobytes(), index)]


def _values(text: str, words: Iterable[str]) -> list[float]:
    digest = hashlib.shake_256(text.encode("utf-8", "replace")).digest(DIMENSIONS)
    values = [byte / 32 - 4.0 for byte in digest]
    for word in words:
        places = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=16).digest()
        for place in range(0, len(places), 2):
            number = places[place] << 8 | places[place + 1]
            # The first places of a word are at the vector's beginning, so that short vectors have them, too.
            within = min(DIMENSIONS, 8 << place)
            values[(number >> 1) % within] += WORD_WEIGHT if number & 1 else -WORD_WEIGHT
    return values
