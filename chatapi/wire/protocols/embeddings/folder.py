"""Writes the answer to a request for embeddings: OpenAI's `CreateEmbeddingResponse`."""

import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Final

import msgspec

from chatapi.wire.deltas import AnyDelta, Failed, Started, Usage, Vector
from chatapi.wire.protocols.protocol import Answer

# The approximate size of a piece: 12 MiB of vectors are up to 70 MiB of JSON.
PIECE_BYTES: Final = 64 << 10
CANCELLED: Final = Failed(
    "The request was cancelled before all embeddings were made. Nothing was charged.",
    code="cancelled",
    status=409,
)


class EmbeddingsFolder:
    """Collects the vectors of one answer, as bytes, and writes them as one object."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._inputs: int | None = None
        self._is_base64 = False
        self._vectors: dict[int, bytes] = {}
        self._failure: Failed | None = None
        self.usage: Usage | None = None

    @property
    def failure(self) -> Failed | None:
        """The reason why there is no answer. A missing vector is one, because clients match vectors to inputs
        by position.
        """
        is_whole = len(self._vectors) == self._inputs
        return CANCELLED if self.usage is not None and not is_whole else self._failure

    def add(self, delta: AnyDelta) -> None:
        match delta:
            case Started():
                self._inputs = delta.context.get("inputs")
                self._is_base64 = delta.context.get("encoding_format") == "base64"
            case Vector():
                self._vectors[delta.index] = delta.values
            case Usage():
                self.usage = delta
            case Failed():
                self._failure = delta

    def body(self) -> bytes | Iterator[bytes]:
        """Return the object, in pieces if it is large."""
        if sum(map(len, self._vectors.values())) < PIECE_BYTES:
            return b"".join(self._pieces())
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        assert self.usage is not None
        piece = bytearray(b'{"object":"list","data":[')
        for index in range(len(self._vectors)):
            vector = self._written(self._vectors[index])
            piece += b'%b{"object":"embedding","index":%d,"embedding":%b}' % (
                b"," * (index > 0),
                index,
                vector,
            )
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        tokens = self.usage.prompt_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        tail = {"model": self._answer.model, "usage": usage}
        yield bytes(piece + b"]," + msgspec.json.encode(tail)[1:])

    def _written(self, values: bytes) -> bytes:
        if self._is_base64:
            return b'"%b"' % b64encode(values)
        return msgspec.json.encode(struct.unpack(f"<{len(values) // 4}f", values))
