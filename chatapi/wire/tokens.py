"""Counts tokens safely for any text: no download, linear time, no panic.

Byte-pair encoding costs 0.1 to 0.5 s per MB, so there are three answers:

    upper_bound   nothing to compute    never too low          for the reservations of admission
    estimate      at most about 15 ms   within a few percent   for rate limits
    count         0.1 to 0.5 s per MB   exact                  for charges, if the upstream sends no usage

tiktoken is superlinear on a long run of one character and panics on about 10^6 spaces (tiktoken#15, #195). So
a text is cut into pieces of at most 4096 characters. A cut falls before a space that follows a non-space: no
token of either vocabulary reaches over that place, so the sum over the pieces is exact. Only a run of 1024
characters without such a place is cut anywhere, and then the sum may be wrong by a token or two per cut.

Special tokens (`<|endoftext|>`) in a text are plain text here, as they are for a model behind an API.
"""

import codecs
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Final

import tiktoken

DEFAULT_ENCODING: Final = "o200k_base"

_VOCABULARY = Path(__file__).parent / "vocabulary"
# Encoding: the file name that tiktoken looks for (SHA-1 of its URL), and the SHA-256 of its content. See
# vocabulary/README.md.
_FILES = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
ENCODINGS: Final = tuple(_FILES)

_PIECE_CHARS = 4096
# Deltas are joined into one string in groups of this size: a string for each takes ten times the memory.
_JOINED_DELTAS = 32
_PIECE = re.compile(
    rf".{{{_PIECE_CHARS - 1024},{_PIECE_CHARS}}}(?<=\S)(?= )|.{{1,{_PIECE_CHARS}}}", re.DOTALL
)

# An estimate reads at most 16,384 characters, spread over a longer text: 15 ms for the worst input.
_SAMPLES, _SAMPLE_CHARS = 32, 512

_loaded: dict[str, tiktoken.Encoding] = {}
_loading = Lock()


class VocabularyError(RuntimeError):
    """A vocabulary file is missing, or is not the published one."""


def warm(*encodings: str) -> None:
    """Load these encodings before the first request; without arguments the default one: 0.4 s, 45 MB."""
    for encoding in encodings or (DEFAULT_ENCODING,):
        _encoding(encoding)


def count(text: str, encoding: str = DEFAULT_ENCODING) -> int:
    """Return the number of tokens. For a long text call it in a thread: it releases the GIL while it works.

    Raises `ValueError` for an unknown encoding, `VocabularyError` if its file is missing or damaged.
    """
    encode = _encoding(encoding).encode_ordinary
    return sum(len(encode(piece)) for piece in _pieces(text))


def parts(text: str, least_chars: int) -> Iterator[str]:
    """Yield the text in parts of at least `least_chars` characters; the last one may be shorter. Their tokens
    add up to the text's.
    """
    start = end = 0
    for piece in _pieces(text):
        end += len(piece)
        if end - start >= least_chars:
            yield text[start:end]
            start = end
    if start < end:
        yield text[start:end]


def estimate(text: str) -> int:
    """Return the approximate number of tokens, in bounded time: exact up to 16,384 characters, then from 32
    samples at fixed places.
    """
    if len(text) <= _SAMPLES * _SAMPLE_CHARS:
        return count(text)
    stride = len(text) // _SAMPLES
    samples = [text[start : start + _SAMPLE_CHARS] for start in range(0, stride * _SAMPLES, stride)]
    sampled_tokens = sum(map(count, samples))
    return round(sampled_tokens * len(text) / (_SAMPLES * _SAMPLE_CHARS))


def upper_bound(n_bytes: int) -> int:
    """Return the most tokens that a text of `n_bytes` bytes of UTF-8 has, in any byte-level vocabulary: every
    token covers at least one byte.
    """
    return n_bytes


def split(text: str, encoding: str = DEFAULT_ENCODING) -> Iterator[tuple[str, int]]:
    """Yield the text token by token, as pairs of (text, tokens), lazily.

    A pair is more than one token only where a character needs several.
    """
    vocabulary = _encoding(encoding)
    for piece in _pieces(text):
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        tokens = 0
        for token in vocabulary.encode_ordinary(piece):
            tokens += 1
            whole = decoder.decode(vocabulary.decode_single_token_bytes(token))
            if whole:
                yield whole, tokens
                tokens = 0


def decode(token_ids: Iterable[int], encoding: str = DEFAULT_ENCODING) -> str:
    """Return the text of token ids; unknown ids and bytes that are not UTF-8 become U+FFFD."""
    byte_values = _encoding(encoding).decode_single_token_bytes
    return b"".join(_bytes_or_replacement(byte_values, token_id) for token_id in token_ids).decode(
        "utf-8", "replace"
    )


class Counter:
    """Counts a stream of deltas at almost no cost per delta: text is encoded when `tokens` is read.

    `encode_pieces` encodes the text before the last safe cut once, and forgets it.
    """

    def __init__(self, encoding: str = DEFAULT_ENCODING) -> None:
        self._encoding = encoding
        self._encoded_tokens = 0
        self._tail: list[str] = []
        self._latest: list[str] = []
        self._tail_chars = 0
        self._known_tokens = 0
        self._known_bytes = 0
        self._text_bytes = 0

    def add(self, text: str) -> None:
        self._latest.append(text)
        if len(self._latest) == _JOINED_DELTAS:
            self._join()

    def _join(self) -> None:
        if self._latest:
            text = "".join(self._latest)
            self._latest.clear()
            self._tail.append(text)
            self._tail_chars += len(text)
            self._text_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))

    @property
    def text_bytes(self) -> int:
        """The length of everything added so far, in UTF-8."""
        self._join()
        return self._text_bytes

    @property
    def uncounted_chars(self) -> int:
        """The number of characters that reading `tokens` would encode."""
        return self._tail_chars if self.text_bytes > self._known_bytes else 0

    def encode_pieces(self) -> None:
        """Encode all but the end, which may still grow: 1 to 4 ms for 4 KiB. For a long text call it in a
        thread.
        """
        self._join()
        if self._tail_chars >= 2 * _PIECE_CHARS:
            *whole, last = _pieces("".join(self._tail))
            self._encoded_tokens += sum(count(piece, self._encoding) for piece in whole)
            self._tail, self._tail_chars = [last], len(last)

    @property
    def tokens(self) -> int:
        """Tokens of everything added so far, as `count` counts them. Encodes what is not encoded yet."""
        if self.text_bytes > self._known_bytes:
            self._known_tokens = self._encoded_tokens + count("".join(self._tail), self._encoding)
            self._known_bytes = self.text_bytes
        return self._known_tokens


def _bytes_or_replacement(byte_values: Callable[[int], bytes], token_id: int) -> bytes:
    try:
        return byte_values(token_id)
    except (KeyError, OverflowError):
        return b"\xef\xbf\xbd"


def _pieces(text: str) -> Iterator[str]:
    return (found.group() for found in _PIECE.finditer(text))


def _encoding(name: str) -> tiktoken.Encoding:
    found = _loaded.get(name)
    if found is not None:
        return found
    with _loading:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def _load(name: str) -> tiktoken.Encoding:
    """Check our file, and load the encoding from it: tiktoken replaces a damaged file by a download."""
    if name not in _FILES:
        raise ValueError(f"unknown encoding {name!r}: choose one of {', '.join(ENCODINGS)}")
    file_name, sha256 = _FILES[name]
    path = _VOCABULARY / file_name
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise VocabularyError(f"{path} is missing or damaged: it is {name} of tiktoken with SHA-256 {sha256}")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(_VOCABULARY)
    encoding = tiktoken.get_encoding(name)
    # This copy is needed only to pickle the encoding, and takes a third of its memory.
    encoding._mergeable_ranks.clear()
    return encoding
