"""When a client has waited for the first content of its stream."""

from collections.abc import AsyncIterator

import pytest

from chatapi.process_metrics import CLIENT_FIRST_TOKEN
from chatapi.web import responses
from chatapi.web.responses import PIECE_DELTAS
from chatapi.wire.deltas import AnyDelta, Reasoning, Started, Text, Usage
from chatapi.wire.protocols.chat.openai import OpenAI
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.sse import PING
from tests.chatapi.web.exchange_by_hand import Client

SIGNATURE = Reasoning("", signature="Chat completions have no place for it.")
END = Usage(1, 2)


@pytest.mark.parametrize(
    ("batches", "counts"),
    [
        ([[Started()], [], [SIGNATURE], [Text("a")], [Text("b"), END]], [0, 0, 0, 1, 1]),
        ([[Started(), Text("a"), END]], [1]),
        ([[Started(), *[Text("a")] * 3 * PIECE_DELTAS], [Text("b")], [END]], [1, 1, 1]),
        ([[Started()], [END]], [0, 0]),
    ],
)
async def test_it_is_counted_once_when_the_protocol_shows_content(
    monkeypatch: pytest.MonkeyPatch, batches: list[list[AnyDelta]], counts: list[int]
) -> None:
    monkeypatch.setattr(CLIENT_FIRST_TOKEN, "series", {})
    found: list[float] = []

    async def relayed() -> AsyncIterator[list[AnyDelta]]:
        for batch in batches:
            yield [*batch]
            found.append(sum(CLIENT_FIRST_TOKEN.series.get("m", [0, 0])[:-1]))

    exchange = Client().exchange("chat")
    exchange.timed_model = "m"
    await responses._stream(exchange, OpenAI(Answer("0" * 32, 0, "m")), relayed(), PING)
    assert found == counts
