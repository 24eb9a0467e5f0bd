"""The engine against a real HTTP server that misbehaves in every way it knows."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta, Failed, Finished, Started, Text, Usage
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.upstream.upstream_errors import TIMED_OUT, UNREACHABLE
from chatapi.worker.engines import Call, EngineError, Target, Timeouts, openai_compatible
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from tests import fake_upstream
from tests.certificates import make_certificate
from tests.fake_upstream import Upstream
from tests.wire.folding import collect

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]'
FIVE_WORDS = " the of and to in"


# With it, `CHAT` has 120 tokens.
LONG_FUNCTION = b'{"name": "f", "description": "%s"}' % (b"word " * 94)
LONG_TOOL = b', "tools": [{"type": "function", "function": %s}]' % LONG_FUNCTION


def call_of(
    url: str, script: str = "", *, more: bytes = b"", max_output_tokens: int = 100, **target: object
) -> Call:
    """Return a chat request for the fake upstream's model `fake:<script>`; `more` is added to its JSON."""
    request = parse_chat(CHAT + more + b"}")
    values = {"engine": "openai_compatible", "base_url": url, "upstream_model": f"fake:{script}", **target}
    return Call("gen", request, Target(**values), max_output_tokens)  # type: ignore[arg-type]


async def deltas_of(engine: OpenAICompatibleEngine, call: Call) -> list[AnyDelta]:
    return [delta async for batch in engine.stream(call) for delta in batch]


async def completion_of(engine: OpenAICompatibleEngine, call: Call) -> Completion:
    return collect(await deltas_of(engine, call))


async def failed(engine: OpenAICompatibleEngine, call: Call) -> tuple[list[AnyDelta], EngineError]:
    """Return the deltas before the failure, and the failure."""
    deltas: list[AnyDelta] = []

    async def consume() -> None:
        async for batch in engine.stream(call):
            deltas.extend(batch)

    with pytest.raises(EngineError) as raised:
        await consume()
    return deltas, raised.value


@asynccontextmanager
async def tcp_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Start a server that can do what HTTP servers do not; yield its base URL. All its connections end."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        async with server:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        # asyncio hands an accepted connection over within three turns.
        for _ in range(3):
            await asyncio.sleep(0)
        for writer in writers:
            writer.transport.abort()


ANSWER = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


async def read_request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))


@pytest.mark.parametrize(
    "script",
    ["", "crlf", "comments", "split=1", "split=7,crlf", "null_choices", "no_index", "repeat_role",
     "fin_without_done", "usage_on_finish", "usage_every_chunk", "as_json", "rate=500"],
)  # fmt: skip
async def test_it_reads_every_deviation_alike(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: str
) -> None:
    deltas = await deltas_of(engine, call_of(upstream.url, script))
    early = Usage(7, 0) if script == "usage_every_chunk" else None
    assert deltas[0] == Started("fp_fake", prompt_usage=early)
    assert deltas[-2:] == [Finished("stop"), Usage(7, 5)]
    assert collect(deltas).choice(0).text == FIVE_WORDS


@pytest.mark.parametrize(
    ("script", "usage"), [("no_usage", None), ("usage_after_done", None), ("zero_usage", Usage(0, 0))]
)
async def test_it_passes_the_upstreams_usage_on(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: str, usage: Usage | None
) -> None:
    assert (await completion_of(engine, call_of(upstream.url, script))).usage == usage


async def test_it_reads_choices_reasoning_and_logprobs(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    call = call_of(upstream.url, "reasoning=2,reasoning_field=reasoning", more=b', "n": 2, "logprobs": true')
    for choice in (await completion_of(engine, call)).choices.values():
        assert (choice.reasoning, choice.text, len(choice.logprobs or [])) == (" the of", FIVE_WORDS, 5)


@pytest.mark.parametrize(
    "script", ["tool_index=right", "tool_index=zero", "tool_index=none", "repeat_tool_names"]
)
async def test_it_puts_tool_calls_in_order(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: str
) -> None:
    choice = (await completion_of(engine, call_of(upstream.url, f"tool_calls=2,{script}"))).choice(0)
    assert [(call.id, call.name, call.arguments) for call in choice.tool_calls.values()] == [
        ("call_up_0", "lookup", '{"city":" the"}'),
        ("call_up_1", "lookup", '{"city":" the"}'),
    ]


async def test_it_reads_text_completions(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    request = parse_text(b'{"model": "m", "prompt": "hi"}')
    call = Call(
        "gen", request, Target(engine="openai_compatible", base_url=upstream.url, upstream_model="fake"), 100
    )
    assert (await completion_of(engine, call)).choice(0).text == FIVE_WORDS
    assert upstream.calls[0].path == "/v1/completions"


async def test_an_echo_of_the_prompt_does_not_count_as_output(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    request = parse_text(b'{"model": "m", "prompt": " the", "echo": true, "max_tokens": 0}')
    target = Target(
        engine="openai_compatible", base_url=upstream.url, upstream_model="fake:tokens=1,ignore_max_tokens"
    )
    deltas = await deltas_of(engine, Call("gen", request, target, 0))
    assert deltas == [Started("fp_fake"), Text(" the"), Finished("stop"), Usage(7, 1)]


# Refusals: nothing was started, so the client gets a status


@pytest.mark.parametrize(
    ("script", "status", "code", "is_retryable"),
    [
        ("status=400", 400, None, False),
        ("status=400,error_message=maximum context length is 8", 400, "context_length_exceeded", False),
        ("status=413", 413, "request_too_large", False),
        ("status=401", 502, "upstream_authentication", True),
        ("status=404,error_code=model_not_found", 502, "upstream_model_not_found", True),
        ("status=429,retry_after=3", 429, "upstream_rate_limited", True),
        ("status=500", 502, "upstream_error", True),
        ("status=503,html", 503, "upstream_unavailable", True),
        ("html", 502, "upstream_invalid_response", True),
        ("error_frame=0", 400, None, False),
        ("error_frame=0,flat_error,error_type=server_error", 502, "upstream_error", True),
        ("bad_json=0", 502, "upstream_invalid_response", True),
        ("huge_frame=0", 502, "upstream_invalid_response", True),
        ("rst_after=0", 502, "upstream_disconnected", True),
        ("fin_after=0", 502, "upstream_disconnected", True),
    ],
)
async def test_it_refuses_before_it_starts(
    engine: OpenAICompatibleEngine,
    upstream: Upstream,
    script: str,
    status: int,
    code: str | None,
    is_retryable: bool,
) -> None:
    deltas, error = await failed(engine, call_of(upstream.url, script))
    assert (deltas, error.failure.status, error.failure.code, error.is_retryable) == (
        [],
        status,
        code,
        is_retryable,
    )
    assert "nginx" not in error.failure.message


async def test_it_keeps_retry_after(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    _, error = await failed(engine, call_of(upstream.url, "status=429,retry_after=3"))
    assert error.failure.retry_after_ms == 3000


async def test_it_never_follows_a_redirect(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    async with fake_upstream.serve() as other:
        call = call_of(upstream.url, f"redirect={other.url}/chat/completions", api_key="sk-fake")
        _, error = await failed(engine, call)
        assert (error.failure.code, other.calls) == ("upstream_invalid_response", [])


# Failures in mid-stream


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("rst_after=2", "upstream_disconnected"),
        ("fin_after=2", "upstream_disconnected"),
        ("finish_reason=none,tokens=2", "upstream_invalid_response"),
        ("finish_reason=none,fin_without_done,tokens=2", "upstream_disconnected"),
        ("error_frame=2,error_type=server_error", "upstream_error"),
        ("bad_json=2", "upstream_invalid_response"),
        ("huge_frame=2", "upstream_invalid_response"),
        ("stall_after=2", "upstream_timeout"),
    ],
)
async def test_it_fails_after_what_it_could_read(
    engine: OpenAICompatibleEngine, upstream: Upstream, fault: str, code: str
) -> None:
    timeouts = Timeouts(between_deltas_ms=300)
    deltas, error = await failed(engine, call_of(upstream.url, f"rate=50,{fault}", timeouts=timeouts))
    assert deltas == [Started("fp_fake"), Text(" the"), Text(" of")]
    assert error.failure.code == code


# Unreachable, slow


async def test_it_tells_an_upstream_that_is_not_there(engine: OpenAICompatibleEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    _, error = await failed(engine, call_of(f"http://127.0.0.1:{port}/v1"))
    assert (error.failure.status, error.failure.code, error.is_retryable) == (
        503,
        "upstream_unreachable",
        True,
    )
    assert str(port) not in error.failure.message
    assert error.cause == "Connection refused"


@pytest.mark.parametrize("host", ["two..dots", "a" * 64 + ".example"])
async def test_it_tells_an_address_that_no_dns_has(engine: OpenAICompatibleEngine, host: str) -> None:
    _, error = await failed(engine, call_of(f"http://{host}/v1"))
    assert (error.failure.status, error.failure.code, error.is_retryable) == (
        503,
        "upstream_unreachable",
        True,
    )


async def test_it_tells_an_upstream_without_tls(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    _, error = await failed(engine, call_of(upstream.url.replace("http:", "https:")))
    assert error.failure.code == "upstream_unreachable"
    assert "WRONG_VERSION_NUMBER" in error.cause


async def test_it_tells_an_upstream_whose_certificate_nobody_trusts(
    engine: OpenAICompatibleEngine, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = make_certificate(tmp_path)
    context.load_cert_chain(made, made.with_name("key"))
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, error = await failed(engine, call_of(f"https://127.0.0.1:{port}/v1"))
    assert (error.failure.code, error.is_retryable) == ("upstream_unreachable", True)
    assert "certificate" in error.cause


@pytest.mark.parametrize(
    ("scheme", "timeouts", "failure"),
    [
        ("https", Timeouts(connect_ms=100), UNREACHABLE),
        ("http", Timeouts(first_delta_ms=100), TIMED_OUT),
        ("http", Timeouts(total_ms=100), TIMED_OUT),
    ],
)
async def test_it_does_not_wait_for_a_silent_upstream(
    engine: OpenAICompatibleEngine, scheme: str, timeouts: Timeouts, failure: Failed
) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()

    async with tcp_server(say_nothing) as address:
        _, error = await failed(engine, call_of(f"{scheme}://{address}", timeouts=timeouts))
    assert (error.failure, error.is_retryable) == (failure, True)


async def test_it_ends_a_stream_that_goes_on_beyond_its_time(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    deltas, error = await failed(
        engine, call_of(upstream.url, "tokens=1000,rate=50", timeouts=Timeouts(total_ms=1000))
    )
    assert error.failure.code == "upstream_timeout"
    assert deltas[0] == Started("fp_fake")


async def test_comments_do_not_put_off_a_timeout(engine: OpenAICompatibleEngine) -> None:
    async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD)
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b": ping\n\n")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.02)
        writer.close()

    async with tcp_server(ping) as address:
        _, error = await failed(engine, call_of(f"http://{address}", timeouts=Timeouts(first_delta_ms=200)))
    assert error.failure.code == "upstream_timeout"


async def test_a_slow_consumer_is_not_the_upstreams_fault(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    call = call_of(upstream.url, "tokens=20,rate=100", timeouts=Timeouts(between_deltas_ms=150))
    deltas: list[AnyDelta] = []
    async for batch in engine.stream(call):
        if not deltas:
            await asyncio.sleep(0.4)
        deltas += batch
    assert deltas[-1] == Usage(7, 20)


async def test_a_whole_answer_does_not_wait_for_ever_for_its_usage(
    engine: OpenAICompatibleEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_compatible, "USAGE_GRACE_S", 0.1)

    async def keep_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + ANSWER.partition(b"data: [DONE]")[0])
        await reader.read()
        writer.close()

    async with tcp_server(keep_open) as address:
        deltas = await deltas_of(
            engine, call_of(f"http://{address}", timeouts=Timeouts(between_deltas_ms=400))
        )
    assert deltas == [Started(), Text("a"), Finished("stop")]


# What the upstream gets


async def test_it_sends_the_key_and_nothing_of_the_client(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    await deltas_of(engine, call_of(upstream.url, api_key="sk-fake"))
    [received] = upstream.calls
    assert received.headers["Authorization"] == "Bearer sk-fake"
    assert set(received.headers) == {
        "Host",
        "Content-Type",
        "Content-Length",
        "Accept",
        "Accept-Encoding",
        "User-Agent",
        "Authorization",
    }
    assert received.headers["User-Agent"] == "chatapi"
    assert (received.body["model"], received.body["stream"], received.body["stream_options"]) == (
        "fake:",
        True,
        {"include_usage": True},
    )


@pytest.mark.parametrize(
    ("window", "more", "limit"),
    [
        (100, b"", 91),
        (100, b', "max_tokens": 100', 100),
        (None, b"", 100),
        (160, b"", 100),
        pytest.param(140, LONG_TOOL, 10, id="half of the room, if the upstream may count more tokens"),
        pytest.param(5, b"", 100, id="no room at all, which the upstream may say"),
    ],
)
async def test_without_a_limit_of_the_clients_it_asks_for_what_the_context_leaves(
    engine: OpenAICompatibleEngine, upstream: Upstream, window: int | None, more: bytes, limit: int
) -> None:
    call = replace(call_of(upstream.url, more=more), request_bytes=60, max_prompt_tokens=window)
    await deltas_of(engine, call)
    assert upstream.calls[0].body["max_tokens"] == limit


@pytest.mark.parametrize(
    ("streaming", "more", "is_streamed"),
    [
        ("always", b', "logprobs": true', True),
        ("without_logprobs", b"", True),
        ("without_logprobs", b', "logprobs": false', True),
        ("without_logprobs", b', "logprobs": true', False),
        ("as_requested", b"", False),
        ("as_requested", b', "stream": true', True),
        ("never", b', "stream": true', False),
    ],
)
async def test_a_deployment_is_asked_for_a_document_where_it_answers_better_so(
    engine: OpenAICompatibleEngine, upstream: Upstream, streaming: str, more: bytes, is_streamed: bool
) -> None:
    script = "" if is_streamed else "as_json"
    answer = await completion_of(engine, call_of(upstream.url, script, more=more, streaming=streaming))
    [received] = upstream.calls
    assert ("stream" in received.body) == ("stream_options" in received.body) == is_streamed
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == (FIVE_WORDS, "stop")
    assert answer.usage == Usage(7, 5)
    if b"logprobs" in more:
        assert len(choice.logprobs or ()) == (5 if b"true" in more else 0)


@pytest.mark.parametrize("key", [None, "sk-fake\nsk-second", "sk-\udcff"])
async def test_it_asks_nobody_without_a_key_for_them(
    engine: OpenAICompatibleEngine, upstream: Upstream, key: str | None
) -> None:
    """Keys that no header can contain are refused too; another deployment may be tried."""
    _, error = await failed(engine, call_of(upstream.url, api_key=key))
    assert (error.failure.code, error.is_retryable, upstream.calls) == (
        "upstream_credentials_missing",
        True,
        [],
    )


@pytest.mark.parametrize(
    "script", ["tokens=5", "error_frame=2,error_type=server_error", "status=500", "client leaves"]
)
async def test_it_leaves_no_garbage_in_circles(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: str
) -> None:
    """All streams of a process wait while the garbage collector looks for cycles."""
    leaves = script == "client leaves"
    call = call_of(upstream.url, "" if leaves else script)

    async def one() -> None:
        with suppress(EngineError):
            async with aclosing(engine.stream(call)) as batches:
                async for _ in batches:
                    if leaves:
                        return

    await one()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            await one()
        gc.collect()
        # Threads of earlier tests may end meanwhile: what they had is not of this room.
        rooms = ("aiohttp.client", "chatapi.wire", "chatapi.worker.engines")
        found = [item for item in gc.garbage if type(item).__module__.startswith(rooms)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert found == []
