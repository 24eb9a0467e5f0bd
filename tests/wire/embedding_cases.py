"""The embeddings that the golden transcripts hold.

`python -m tests.wire.embedding_cases` writes the transcripts anew; what has changed in them is then to be
read as a change of the wire.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from chatapi.wire.deltas import AnyDelta, Started, Usage, Vector
from chatapi.wire.protocols import Answer
from chatapi.wire.protocols.embeddings import EMBEDDINGS
from tests.wire.dialect_cases import FAILURE, TRANSCRIPTS, refused

FOLDER = TRANSCRIPTS / "embeddings"
ANSWER = Answer("0193ba5e0a7c7d1e8c3b5f2a9d4e6c80", 1_700_000_000, "m", 0)
VECTORS = [[1.0, 0.0], [0.25, -0.5]]
_VALUES = [struct.pack("<2f", *vector) for vector in VECTORS]


def body(encoding_format: str) -> bytes:
    """The answer in one piece."""
    context = {"encoding_format": encoding_format, "inputs": len(VECTORS)}
    deltas: list[AnyDelta] = [Started(context=context)]
    deltas += [Vector(values, index) for index, values in enumerate(_VALUES)]
    folder = EMBEDDINGS.dialect("").folder(ANSWER)
    for delta in [*deltas, Usage(3, 0)]:
        folder.add(delta)
    found = folder.body()
    return found if isinstance(found, bytes) else b"".join(found)


def transcripts() -> Iterator[tuple[Path, bytes]]:
    """Every golden file and what has to be in it."""
    for encoding_format in ("float", "base64"):
        yield FOLDER / f"{encoding_format}.json", body(encoding_format) + b"\n"
    yield refused(FOLDER, EMBEDDINGS.dialect(""), FAILURE)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in transcripts():
        path.write_bytes(content)
