"""When a client has waited for the first content of its stream."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chatapi.process_metrics import CLIENT_FIRST_TOKEN
from chatapi.web import responses
from chatapi.web.responses import PIECE_DELTAS
from chatapi.wire.deltas import AnyDelta, Finished, Reasoning, Started, Text, Usage
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.messages.encoder import MessagesEncoder
from chatapi.wire.protocols.protocol import Answer, Encoder
from chatapi.wire.protocols.text_completions.encoder import TextEncoder
from chatapi.wire.sse import PING
from tests.chatapi.web.exchange_by_hand import Client

SIGNATURE = Reasoning("", signature="Chat completions have no place for it.")
REDACTED = Reasoning("", redacted="Nor for this.")
THOUGHT = Reasoning("Text completions have no place for it.")
END = Usage(1, 2)
ANSWER = Answer("0" * 32, 0, "m", choices_count=2)


def count() -> float:
    return sum(CLIENT_FIRST_TOKEN.series.get("m", [0, 0])[:-1])


async def stream(client: Client, encoder: Encoder, batches: AsyncIterator[list[AnyDelta]]) -> None:
    exchange = client.exchange("chat")
    exchange.timed_model = "m"
    await responses._stream(exchange, encoder, batches, PING)


@pytest.mark.parametrize(
    ("encoder", "batches", "counts"),
    [
        (ChatEncoder, [[Started()], [], [SIGNATURE], [Text("a")], [Text("b"), END]], [0, 0, 0, 1, 1]),
        (ChatEncoder, [[Started(), Text("a"), END]], [1]),
        (ChatEncoder, [[Started(), *[Text("a")] * 3 * PIECE_DELTAS], [Text("b")], [END]], [1, 1, 1]),
        (ChatEncoder, [[Started()], [END]], [0, 0]),
        (ChatEncoder, [[Started(), SIGNATURE], [Text("a")], [END]], [0, 1, 1]),
        (ChatEncoder, [[Started(), REDACTED], [Text("a")], [END]], [0, 1, 1]),
        (ChatEncoder, [[Started(), SIGNATURE, Finished("stop"), END]], [0]),
        (ChatEncoder, [[Started(), SIGNATURE, Text("a"), SIGNATURE, END]], [1]),
        (TextEncoder, [[Started(), THOUGHT], [Text("a")], [END]], [0, 1, 1]),
        (MessagesEncoder, [[Started(), REDACTED], [Text("a")], [Finished("stop"), END]], [1, 1, 1]),
        # Long batches: their last pieces show no content, or only these do.
        (ChatEncoder, [[Started(), *[Text("a")] * (PIECE_DELTAS - 1), SIGNATURE], [END]], [1, 1]),
        (ChatEncoder, [[Started(), *[SIGNATURE] * PIECE_DELTAS, Text("a")], [END]], [1, 1]),
        (ChatEncoder, [[Started(), *[SIGNATURE] * PIECE_DELTAS], [END]], [0, 0]),
        (MessagesEncoder, [[Started(), *[Text("a")] * (PIECE_DELTAS - 1), Finished("stop")], [END]], [1, 1]),
    ],
)
async def test_it_is_counted_once_when_the_protocol_shows_content(
    monkeypatch: pytest.MonkeyPatch,
    encoder: type[ChatEncoder | MessagesEncoder],
    batches: list[list[AnyDelta]],
    counts: list[int],
) -> None:
    monkeypatch.setattr(CLIENT_FIRST_TOKEN, "series", {})
    found: list[float] = []

    async def relayed() -> AsyncIterator[list[AnyDelta]]:
        for batch in batches:
            yield [*batch]
            found.append(count())

    client = Client()
    await stream(client, encoder(ANSWER), relayed())
    assert found == counts
    sent = b"".join([message.get("body", b"") for message in client.messages])
    assert sent.replace(PING, b"") == encoder(ANSWER).encode([delta for batch in batches for delta in batch])


async def test_a_long_batch_is_counted_with_its_first_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLIENT_FIRST_TOKEN, "series", {})
    found: list[float] = []

    class Counting(Client):
        async def send(self, message: Any) -> None:
            if message.get("body"):
                found.append(count())

    async def relayed() -> AsyncIterator[list[AnyDelta]]:
        yield [Started(), *[Text("a")] * 2 * PIECE_DELTAS, END]

    await stream(Counting(), ChatEncoder(ANSWER), relayed())
    assert found == [1, 1, 1]
