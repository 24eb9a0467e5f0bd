"""The scripted upstream does what the model's name says, seen through the load generator's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from bench.client import Client, Exchange
from bench.load import Load, check_all
from bench.upstream import Counters, UpstreamConnection


@asynccontextmanager
async def upstream(counters: Counters) -> AsyncIterator[str]:
    """Yield a running upstream's base URL."""
    numbers = count(1)
    server = await asyncio.get_running_loop().create_server(
        lambda: UpstreamConnection(counters, numbers), "127.0.0.1", 0
    )
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def answers(
    model: str, *, is_stream: bool = True, timeout_seconds: float = 10
) -> tuple[dict[str, int], list[Exchange], Counters]:
    """Return the problems of three requests on one connection, the exchanges themselves, and the upstream's
    counters.
    """
    counters = Counters()
    async with upstream(counters) as url:
        load = Load(url, "none", model, 1, 3, 1, 0, 0, timeout_seconds, is_stream, {})
        client = Client(url, load.key, model, is_stream=is_stream, timeout_seconds=timeout_seconds)
        for _ in range(3):
            await client.request()
        client.close()
    problems, _timings = check_all(client, load)
    return problems, client.exchanges, counters


@pytest.mark.parametrize("model", ["tok64-d0", "tok20-d1", "tok20-b16"])
async def test_streams_are_right(model: str) -> None:
    problems, exchanges, counters = await answers(model)
    assert not problems
    assert [exchange.letter for exchange in exchanges] == ["a", "b", "c"]
    assert (counters.requests, counters.completed, counters.aborted) == (3, 3, 0)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_each_choice_has_all_tokens(is_stream: bool) -> None:
    async with upstream(Counters()) as url:
        client = Client(url, "none", "tok3-d1", is_stream=is_stream, timeout_seconds=10, choices=5)
        exchange = await client.request()
        client.close()
    body = b"".join(part for _, part in exchange.parts)
    assert [body.count(b'"index":%d,' % index) for index in range(6)] == [5 if is_stream else 1] * 5 + [0]
    assert b'"completion_tokens":15' in body


async def test_whole_answers_are_right_and_take_as_long_as_a_stream() -> None:
    problems, exchanges, _ = await answers("tok5-d4-f20", is_stream=False)
    assert not problems
    assert all(exchange.ended_at - exchange.sent_at >= 0.03 for exchange in exchanges)


async def test_tokens_keep_their_distance() -> None:
    _, exchanges, _ = await answers("tok10-d5-f20")
    assert all(exchange.ended_at - exchange.sent_at >= 0.06 for exchange in exchanges)


async def test_a_dropped_connection_is_noticed_on_both_sides() -> None:
    problems, exchanges, counters = await answers("tok64-x10")
    assert problems == {"connection lost": 3}
    assert b"a9" in b"".join(part for _, part in exchanges[0].parts)
    assert counters.aborted == 3


async def test_an_injected_status_is_named() -> None:
    problems, _, _ = await answers("tok64-e429")
    assert problems == {"status 429 error: invalid_request_error": 3}


async def test_an_unknown_model_is_not_found() -> None:
    counters = Counters()
    async with upstream(counters) as url:
        client = Client(url, "none", "gpt-4o", is_stream=True, timeout_seconds=10)
        await client.request()
        client.close()
    assert client.exchanges[0].status == 404


async def test_a_client_that_gives_up_counts_as_a_timeout() -> None:
    problems, _, counters = await answers("tok2-d0-f5000", timeout_seconds=0.05)
    assert problems == {"timeout": 3}
    assert counters.completed == 0
