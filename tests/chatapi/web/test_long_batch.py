"""Many deltas at once, as after a client's long silence: they go out in pieces, and whoever leaves between
two of them is seen to.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from chatapi.web.completions import PIECE_DELTAS
from chatapi.web.consumers import ChatCompletions
from chatapi.wire.deltas import AnyDelta, Started, Text, Usage
from chatapi.wire.dialects import Answer, OpenAI

LONG: list[AnyDelta] = [Started(), *(Text(f"{number} ") for number in range(3 * PIECE_DELTAS)), Usage(1, 2)]


class Client:
    """Takes what it is sent."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.has_some = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        """The application's `send`, which has nothing to wait for."""
        if piece := message.get("body", b""):
            self.pieces.append(piece)
            self.has_some.set()


def encoder() -> OpenAI:
    return OpenAI(Answer("0" * 32, 0, "m"))


def streaming(client: Client) -> "asyncio.Task[None]":
    consumer = ChatCompletions()
    consumer.base_send = cast(Any, client.send)
    consumer.is_started, consumer.is_complete = True, False
    consumer.answer = encoder()
    return asyncio.create_task(consumer._stream(batches()))


async def batches() -> AsyncIterator[list[AnyDelta]]:
    yield LONG


async def test_a_long_batch_is_sent_in_pieces() -> None:
    client = Client()
    await streaming(client)
    assert b"".join(client.pieces) == encoder().encode(LONG)
    assert (
        max(piece.count(b"\n\n") for piece in client.pieces) <= PIECE_DELTAS + 1
    )  # the last delta brings the stream's end with it


async def test_who_leaves_meanwhile_is_sent_no_more() -> None:
    client = Client()
    answering = streaming(client)
    await client.has_some.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert len(b"".join(client.pieces)) < len(encoder().encode(LONG))
