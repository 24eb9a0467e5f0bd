"""The decoder of chunked request bodies: what it takes, what it refuses, and what a read may cost."""

import contextlib
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapi.web.server import refusals
from chatapi.web.server.chunked_body import FREE_CHUNKS, MIN_CHUNK_BYTES, BadChunks, ChunkedBody

READ_BYTES = 65_536


class Decoded:
    """What a decoder has handed over."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.behind: bytes | None = None
        self.decoder = ChunkedBody(self.pieces.append, self._end)

    def _end(self, behind: bytes) -> None:
        self.behind = behind

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def decode(wire: bytes, read_bytes: int = READ_BYTES) -> Decoded:
    decoded = Decoded()
    for start in range(0, len(wire), read_bytes):
        decoded.decoder.dataReceived(wire[start : start + read_bytes])
    return decoded


def encode(chunks: Iterable[bytes], end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(1, 60))
def test_it_joins_chunks_however_they_are_split(chunks: list[bytes], read_bytes: int) -> None:
    wire = encode(chunks)
    assert decode(wire, read_bytes).body == b"".join(chunks)
    assert decode(wire, read_bytes).behind == b""


def test_it_hands_over_one_piece_a_read_and_what_is_behind_the_body() -> None:
    decoded = decode(encode([b"a"] * 1_000) + b"GET / HTTP/1.1")
    assert decoded.pieces == [b"a" * 1_000]
    assert decoded.behind == b"GET / HTTP/1.1"


@pytest.mark.parametrize(
    "end", [b"0\r\n\r\n", b"000\r\n\r\n", b"0;a=b\r\n\r\n", b"0\r\nDigest: x\r\nX-Empty:\r\n\r\n"]
)
@pytest.mark.parametrize("read_bytes", [1, READ_BYTES])
def test_it_ignores_extensions_and_trailers(end: bytes, read_bytes: int) -> None:
    decoded = decode(b'3;sig="\xc3\xa4";x\r\nabc\r\n' + end, read_bytes)
    assert (decoded.body, decoded.behind) == (b"abc", b"")


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n",
        b"xyz\r\n",
        b"0x3\r\nabc\r\n",
        b"+3\r\nabc\r\n",
        b"-3\r\nabc\r\n",
        b" 3\r\nabc\r\n",
        b"3 \r\nabc\r\n",
        b"3_0\r\nabc\r\n",
        b"3\nabc\r\n",
        b"3;a\nb\r\nabc\r\n",
        b"3;a\x00b\r\nabc\r\n",
        b"3\r\nabcdef\r\n0\r\n\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"11111111111111111\r\nabc",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\nX-Nul: \x00\r\n\r\n",
        b"0\r\n folded: 1\r\n\r\n",
        b"0\r\nX-Bare: a\rb\r\n\r\n",
    ],
)
@pytest.mark.parametrize("read_bytes", [1, READ_BYTES])
def test_it_refuses_what_is_not_well_formed(wire: bytes, read_bytes: int) -> None:
    with pytest.raises(BadChunks) as caught:
        decode(wire + b"\r\n", read_bytes)
    assert caught.value.refusal is refusals.BAD_REQUEST


@pytest.mark.parametrize(
    "chunks",
    [
        [b"x"] * 500,
        [b"x"] * FREE_CHUNKS,
        [b"tokens"] * 6_000,  # as a JSON encoder writes a list of numbers
        [b"x" * MIN_CHUNK_BYTES] * 100_000,
        [b"x" * 1_000_000] * 8,
    ],
    ids=["byte by byte", "many", "numbers", "small", "large"],
)
def test_it_takes_what_honest_clients_send(chunks: list[bytes]) -> None:
    assert decode(encode(chunks)).body == b"".join(chunks)


@pytest.mark.parametrize(
    "wire",
    [
        encode([b"x"] * 100_000),
        encode([b"x" * (MIN_CHUNK_BYTES - 1)] * 100_000),
        b"3;" + b"e" * 5_000 + b"\r\nabc\r\n",
        b"3;" + b"e" * 5_000,
        b"3;ext\r\nabc\r\n" * 4_000,
        b"3\r\nabc\r\n0\r\n" + b"X: 1\r\n" * 1_000,
        b"3\r\nabc\r\n0\r\nX: " + b"1" * 5_000,
        b"3\r\nabc\r\n0\r\n" + b"X: 1\r\n" * 1_000 + b"\r\n",
    ],
)
@pytest.mark.parametrize("read_bytes", [1_000, READ_BYTES])
def test_it_refuses_what_is_mostly_framing(wire: bytes, read_bytes: int) -> None:
    with pytest.raises(BadChunks) as caught:
        decode(wire, read_bytes)
    assert caught.value.refusal is refusals.CHUNKS_TOO_SMALL


@pytest.mark.parametrize(
    "chunk",
    [b"1\r\nx\r\n", b"10\r\n" + b"x" * 16 + b"\r\n", b"1;" + b"e" * 500 + b"\r\nx\r\n"],
    ids=["tiny", "small", "extensions"],
)
def test_a_read_costs_few_milliseconds(chunk: bytes) -> None:
    """The bound is loose for busy machines; 3 MB of Twisted's took 3.5 s here, which is 76 ms a read."""
    wire = chunk * (READ_BYTES // len(chunk))
    costs = []
    for _ in range(5):
        began = time.process_time()
        with contextlib.suppress(BadChunks):
            decode(wire)
        costs.append(time.process_time() - began)
    assert min(costs) < 0.02
