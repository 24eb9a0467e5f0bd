"""The engine's connections: used again, dead, left, or broken beneath HTTP."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from accounts.loop_clock import clock
from chatapi.wire.deltas import Finished, Started, Text, Usage
from chatapi.worker.engines import EngineError, Timeouts, openai_compatible
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from tests.chatapi.worker.test_openai_compatible import (
    ANSWER,
    HEAD,
    STREAM_HEAD,
    call_of,
    deltas_of,
    failed,
    read_request,
    tcp_server,
)
from tests.fake_upstream import Upstream


def block(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)


@pytest.mark.parametrize("script", ["", "as_json", "crlf,usage_after_done,split=3", "status=500"])
async def test_it_uses_a_connection_again_after_a_whole_answer(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_compatible, "REUSE_GRACE_S", 10.0)
    with suppress(EngineError):
        await deltas_of(engine, call_of(upstream.url, script))
    await deltas_of(engine, call_of(upstream.url))
    assert len({call.client_port for call in upstream.calls}) == 1


async def test_it_never_uses_a_connection_again_that_was_not_read_to_its_end(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    await deltas_of(engine, call_of(upstream.url, "rate=200,ignore_max_tokens", max_output_tokens=2))
    await deltas_of(engine, call_of(upstream.url))
    assert len({call.client_port for call in upstream.calls}) == 2


async def test_it_gives_one_batch_for_all_that_one_read_brought(engine: OpenAICompatibleEngine) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + ANSWER)
        writer.close()

    async with tcp_server(answer) as address:
        batches = [batch async for batch in engine.stream(call_of(f"http://{address}"))]
    assert batches == [[Started(), Text("a"), Finished("stop")]]


@asynccontextmanager
async def answering_once(asked: list[str], when_asked: int) -> AsyncIterator[str]:
    """Start an upstream whose connections end at their second request; yield its URL.

    The answers to first requests wait until it has been asked `when_asked` times.
    """
    may_answer = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.append("new")
        if len(asked) == when_asked:
            may_answer.set()
        await may_answer.wait()
        writer.write(HEAD + ANSWER)
        with suppress(asyncio.IncompleteReadError):
            await read_request(reader)
            asked.append("old")
        writer.close()

    async with tcp_server(answer) as address:
        yield address


@pytest.mark.parametrize("turns", [1, 2, 4, 6, 9, 14, 20])
async def test_a_loop_that_was_blocked_takes_no_upstream_for_silent(
    engine: OpenAICompatibleEngine, upstream: Upstream, turns: int
) -> None:
    """The loop is blocked while it connects, waits for the head, or between deltas; every time limit ends
    before it reads its sockets.
    """
    timeouts = Timeouts(connect_ms=800, first_delta_ms=900, between_deltas_ms=900)
    clock.start(asyncio.get_running_loop())
    await asyncio.sleep(0.05)
    try:
        asking = asyncio.ensure_future(
            deltas_of(engine, call_of(upstream.url, "tokens=20,rate=1000", timeouts=timeouts))
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        block(1.5)
        deltas = await asking
    finally:
        clock.stop()
    assert len([delta for delta in deltas if isinstance(delta, Text)]) == 20


async def test_it_asks_again_when_an_old_connection_is_dead(engine: OpenAICompatibleEngine) -> None:
    asked: list[str] = []
    async with answering_once(asked, when_asked=1) as address:
        call = call_of(f"http://{address}")
        assert await deltas_of(engine, call) == await deltas_of(engine, call)
        await engine.close()
    assert asked == ["new", "old", "new"]


async def test_it_asks_again_until_a_connection_is_new(engine: OpenAICompatibleEngine) -> None:
    asked: list[str] = []
    async with answering_once(asked, when_asked=2) as address:
        call = call_of(f"http://{address}")
        first, second = await asyncio.gather(deltas_of(engine, call), deltas_of(engine, call))
        assert await deltas_of(engine, call) == first == second
        await engine.close()
    assert asked == ["new", "new", "old", "old", "new"]


async def test_it_asks_again_only_while_connections_are_old(engine: OpenAICompatibleEngine) -> None:
    asked: list[str] = []

    async def answer_the_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.append("new")
        if len(asked) == 1:
            writer.write(HEAD + ANSWER)
            with suppress(asyncio.IncompleteReadError):
                await read_request(reader)
        writer.close()

    async with tcp_server(answer_the_first) as address:
        call = call_of(f"http://{address}")
        await deltas_of(engine, call)
        _, error = await failed(engine, call)
        await engine.close()
    assert (asked, error.failure.code) == (["new", "new"], "upstream_disconnected")


async def test_it_asks_once_when_a_new_connection_dies(engine: OpenAICompatibleEngine) -> None:
    asked: list[str] = []

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.append("new")
        writer.close()

    async with tcp_server(never_answer) as address:
        _, error = await failed(engine, call_of(f"http://{address}"))
    assert (asked, error.failure.code, error.is_retryable) == (["new"], "upstream_disconnected", True)


async def test_an_answer_that_nobody_asked_for_reaches_nobody(engine: OpenAICompatibleEngine) -> None:
    asked: list[str] = []
    has_said_more = asyncio.Event()

    async def say_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.append("new")
        if len(asked) == 1:
            writer.write(HEAD + ANSWER)
            await asyncio.sleep(0.05)
            writer.write(HEAD + ANSWER.replace(b'"a"', b'"z"'))
            await asyncio.sleep(0.05)
            has_said_more.set()
            with suppress(asyncio.IncompleteReadError):
                await read_request(reader)
        writer.close()

    async with tcp_server(say_more) as address:
        call = call_of(f"http://{address}")
        await deltas_of(engine, call)
        await has_said_more.wait()
        deltas, error = await failed(engine, call)
        await engine.close()
    assert (deltas, error.failure.code, asked) == ([], "upstream_disconnected", ["new", "new"])


@asynccontextmanager
async def stalling(*parts: bytes) -> AsyncIterator[str]:
    """Start a server that sends these parts, and then keeps the connection and sends nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        await reader.read()
        writer.close()

    async with tcp_server(serve) as address:
        yield f"http://{address}"


async def test_it_does_not_wait_behind_broken_framing(engine: OpenAICompatibleEngine) -> None:
    head = STREAM_HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
    said = ANSWER.replace(b'"stop"', b"null").partition(b"data: [DONE]")[0]
    async with (
        stalling(head, b"%x\r\n%s\r\n" % (len(said), said), b"no length\r\n") as url,
        asyncio.timeout(5),
    ):
        deltas, error = await failed(engine, call_of(url))
    assert (deltas, error.failure.code) == ([Started(), Text("a")], "upstream_disconnected")


async def test_it_does_not_wait_for_the_words_of_an_error(
    engine: OpenAICompatibleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_compatible, "ERROR_GRACE_S", 0.1, raising=False)
    head = (
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\nRetry-After: 3\r\n\r\n"
    )
    async with stalling(head + b'{"error": ') as url, asyncio.timeout(5):
        _, error = await failed(engine, call_of(url))
    assert (error.failure.code, error.failure.retry_after_ms) == ("upstream_rate_limited", 3_000)


@pytest.mark.parametrize("way", ["cancel", "aclose"])
async def test_a_consumer_that_leaves_closes_the_upstream(
    engine: OpenAICompatibleEngine, upstream: Upstream, way: str
) -> None:
    has_started = asyncio.Event()

    async def consume() -> None:
        async with aclosing(
            engine.stream(call_of(upstream.url, "tokens=1000,rate=50", max_output_tokens=1000))
        ) as stream:
            async for _ in stream:
                has_started.set()
                if way == "aclose":
                    return

    task = asyncio.create_task(consume())
    await has_started.wait()
    if way == "cancel":
        task.cancel()
    await asyncio.wait([task])
    async with asyncio.timeout(2):
        received = await upstream.closed()
    assert received.is_peer_gone
    assert received.tokens < 100


async def test_a_consumer_that_leaves_before_the_first_delta_closes_the_upstream(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    task = asyncio.create_task(deltas_of(engine, call_of(upstream.url, "ttft_ms=30000")))
    async with asyncio.timeout(2):
        await upstream.received()
        task.cancel()
        assert (await upstream.closed()).is_peer_gone


async def test_it_stops_an_upstream_that_ignores_max_tokens(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    call = call_of(
        upstream.url, "tokens=1000,rate=200,ignore_max_tokens,usage_every_chunk", max_output_tokens=3
    )
    assert await deltas_of(engine, call) == [
        Started("fp_fake", prompt_usage=Usage(7, 0)),
        Text(" the"),
        Text(" of"),
        Text(" and"),
        Finished("length"),
    ]
    async with asyncio.timeout(2):
        assert (await upstream.closed()).is_peer_gone


# What an upstream compresses, though it is asked not to


GZIP_HEAD = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
PINGS = gzip.compress(b": ping\n\n" * (2 << 20))


@asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """Yield the longest time, in seconds, for which no other task could run."""
    longest = [0.0]

    async def look() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0)
            longest[0] = max(longest[0], time.monotonic() - began)

    task = asyncio.create_task(look())
    await asyncio.sleep(0)
    yield longest
    task.cancel()


@asynccontextmanager
async def compressed(answer: bytes) -> AsyncIterator[str]:
    """Start a server that answers with these gzipped bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        with suppress(ConnectionError):
            writer.write(GZIP_HEAD + answer)
            await writer.drain()
        writer.close()

    async with tcp_server(serve) as address:
        yield f"http://{address}"


async def test_it_reads_gzip(engine: OpenAICompatibleEngine) -> None:
    async with compressed(gzip.compress(ANSWER)) as url:
        assert await deltas_of(engine, call_of(url)) == [Started(), Text("a"), Finished("stop")]


async def test_much_that_says_nothing_holds_nobody_up_and_is_not_read_forever(
    engine: OpenAICompatibleEngine,
) -> None:
    async with compressed(PINGS) as url, longest_turn() as longest:
        _, error = await failed(engine, call_of(url, timeouts=Timeouts(first_delta_ms=300)))
    assert error.failure.code == "upstream_timeout"
    assert longest[0] < 0.5
