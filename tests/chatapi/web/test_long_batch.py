"""Many deltas at once, as after a client's long silence: they go out in pieces, and a client that leaves
between two of them is noticed.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chatapi.web import responses
from chatapi.web.responses import PIECE_DELTAS
from chatapi.wire.deltas import AnyDelta, Started, Text, Usage
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.sse import PING
from tests.chatapi.web.exchange_by_hand import Client

LONG: list[AnyDelta] = [Started(), *(Text(f"{number} ") for number in range(3 * PIECE_DELTAS)), Usage(1, 2)]


def encoder() -> ChatEncoder:
    return ChatEncoder(Answer("0" * 32, 0, "m"))


def streaming(client: Client) -> "asyncio.Task[Any]":
    return asyncio.create_task(responses._stream(client.exchange("chat"), encoder(), batches(), PING))


def pieces(client: Client) -> list[bytes]:
    return [message["body"] for message in client.messages if "body" in message]


async def batches() -> AsyncIterator[list[AnyDelta]]:
    yield [*LONG]


async def test_a_long_batch_is_sent_in_pieces() -> None:
    client = Client()
    await streaming(client)
    assert b"".join(pieces(client)) == encoder().encode(LONG)
    # The last delta brings the stream's end with it.
    assert max(piece.count(b"\n\n") for piece in pieces(client)) <= PIECE_DELTAS + 1


async def test_a_batch_is_not_kept_while_its_client_does_not_read() -> None:
    class Unread(Client):
        async def send(self, message: Any) -> None:
            await super().send(message)
            if "body" in message:
                await asyncio.get_running_loop().create_future()

    client = Unread()
    batch: list[AnyDelta] = [Started(), Text("a")]

    async def one() -> AsyncIterator[list[AnyDelta]]:
        yield batch

    answering = asyncio.create_task(responses._stream(client.exchange("chat"), encoder(), one(), PING))
    while not pieces(client):
        await asyncio.sleep(0)
    assert not batch
    answering.cancel()


async def test_a_client_that_leaves_meanwhile_is_sent_no_more() -> None:
    client = Client()
    answering = streaming(client)
    while not pieces(client):
        await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert len(b"".join(pieces(client))) < len(encoder().encode(LONG))
