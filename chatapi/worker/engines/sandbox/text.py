"""The sandbox's text: prose with one token a word, invented log probabilities, and stop strings. Pure.

A piece is a text and its number of tokens, as `tokens.split` returns them; pieces may be endless.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from math import exp, log
from zlib import crc32

from chatapi.wire.deltas import TokenLogprob, TopLogprob

Piece = tuple[str, int]


def _spaced(text: str) -> tuple[str, ...]:
    return tuple(f" {word}" for word in text.split())


_STARTS = ("The", "This", "That", "Every", "Some", "One", "Our", "Their")
_ARTICLES = _spaced("the this that every some one our their")
_ADJECTIVES = _spaced("silver golden copper quiet gentle bright early simple narrow distant")
_NOUNS = _spaced(
    "morning river harbor light stone garden window letter summer winter "
    "market bridge road forest island paper music story kitchen table"
)
_VERBS = _spaced("carries follows finds keeps opens turns brings leaves watches remembers")
_PREPOSITIONS = _spaced("over under beyond between before after near with without across")
_SENTENCE = (
    *(_STARTS, _ADJECTIVES, _NOUNS, _VERBS),
    *(_ARTICLES, _ADJECTIVES, _NOUNS, _PREPOSITIONS, _ARTICLES, _NOUNS),
    (".",),
)

REFUSAL = "I'm sorry, but I can't help with that."


def prose(seed: int) -> Iterator[Piece]:
    """Yield endless sentences; a piece is one token in o200k_base and cl100k_base, alone and in the text."""
    for position in count():
        place = position % len(_SENTENCE)
        word = _choose(_SENTENCE[place], seed, position)
        yield (f" {word}" if place == 0 and position > 0 else word), 1


def words(seed: int) -> Iterator[str]:
    """Yield endless single words, for the strings inside JSON."""
    return (_choose(_NOUNS, seed, position).strip() for position in count())


def at_most(tokens: int, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces that fit into this number of tokens."""
    for text, cost in pieces:
        tokens -= cost
        if tokens < 0:
            return
        yield text, cost


def until_stop(
    stops: Sequence[str], pieces: Iterable[Piece], on_stop: Callable[[str], object]
) -> Iterator[Piece]:
    """Yield the pieces before the first stop string, then call `on_stop` with it; without one, yield all.

    A piece that contains the beginning of the stop string is shortened. Pieces are held back as long as their
    text could be the beginning of one.
    """
    if not stops:
        yield from pieces
        return
    longest = max(map(len, stops))
    held: deque[Piece] = deque()
    for piece in pieces:
        held.append(piece)
        text = "".join(held_text for held_text, _ in held)
        found = min(((text.find(stop), stop) for stop in stops if stop in text), default=None)
        if found is not None:
            left, stop = found
            for held_text, cost in held:
                if left <= 0:
                    break
                yield held_text[:left], cost
                left -= len(held_text)
            on_stop(stop)
            return
        while held and len(text) - len(held[0][0]) >= longest - 1:
            text = text[len(held[0][0]) :]
            yield held.popleft()
    yield from held


def logprob(token: str, top: int) -> TokenLogprob:
    """Return a plausible log probability, always the same for a token.

    It has `top` alternatives, the token itself first.
    """
    chosen = -(1 + crc32(token.encode()) % 500) / 1000
    ranked = [TopLogprob(token, chosen, _bytes(token))]
    rest = 1 - exp(chosen)
    others = (word for word in _NOUNS if word != token)
    for other in (next(others) for _ in range(top - 1)):
        # Each takes half of what is left: the probabilities add up to less than 1, in falling order.
        rest /= 2
        ranked.append(TopLogprob(other, round(log(rest), 6), _bytes(other)))
    return TokenLogprob(token, chosen, _bytes(token), ranked[:top])


def _choose(options: Sequence[str], seed: int, position: int) -> str:
    # CRC-32 maps neighbouring seeds to different first words, so the choices of one request differ from the
    # first token on.
    return options[(seed + crc32(b"%d:%d" % (seed if position else 0, position))) % len(options)]


def _bytes(token: str) -> list[int]:
    return list(token.encode())
