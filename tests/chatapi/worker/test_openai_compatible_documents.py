"""The engine against a real HTTP server that answers in each wire document's words, or in none's."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta, Finished, Started, Text, ToolCall, Usage, Vector
from chatapi.wire.protocols.chat import STYLES
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.embeddings.request import parse as parse_embeddings
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.sse import Parser
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.worker.engines import Call, EngineError, Target, Timeouts, openai_compatible
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from tests.chatapi.worker.test_openai_compatible import call_of as plain_call
from tests.chatapi.worker.test_openai_compatible import failed, read_request, tcp_server
from tests.choice_content import content_of
from tests.fake_completion import Script, embeddings
from tests.fake_upstream import Upstream
from tests.wire.folding import collect

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
FIVE_WORDS = " the of and to in"

ASKED = {"model": "scripted", "encoding_format": "base64"}

Outcome = tuple[list[AnyDelta], str | None]


def call_of(
    upstream: Upstream,
    script: Script,
    *,
    is_text: bool = False,
    max_output_tokens: int = 1000,
    **parameters: Any,
) -> Call:
    """Return a request to which the upstream answers as the script says."""
    upstream.name_script("scripted", script)
    prompt = {"prompt": "hi"} if is_text else {"messages": [{"role": "user", "content": "hi"}]}
    body = {"model": "m", **prompt, **parameters}
    request = (parse_text if is_text else parse_chat)(json.dumps(body).encode())
    return Call(
        "gen",
        request,
        Target(engine="openai_compatible", base_url=upstream.url, upstream_model="scripted"),
        max_output_tokens,
    )


async def outcome(engine: OpenAICompatibleEngine, call: Call) -> Outcome:
    """Return the deltas, and the code of the failure that ended them."""
    deltas: list[AnyDelta] = []
    try:
        async for batch in engine.stream(call):
            deltas += batch
    except EngineError as error:
        return deltas, error.failure.code
    return deltas, None


async def completion(engine: OpenAICompatibleEngine, call: Call) -> Completion:
    deltas, code = await outcome(engine, call)
    assert code is None
    return collect(deltas)


def chunk(
    delta: dict[str, Any] | None = None, finish_reason: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason}], **more}


def raw(*parts: dict[str, Any] | str, **how: Any) -> Script:
    """Return a script that sends these chunks, and text unchanged, and closes."""
    events = [part if isinstance(part, str) else f"data: {json.dumps(part)}\n\n" for part in parts]
    return Script(raw="".join(events), **how)


SAYS_A = chunk({"content": "a"})
STOP = chunk(finish_reason="stop")
DONE = "data: [DONE]\n\n"


# Each document's streams


def read(stream: bytes, choices: int, *, is_text: bool) -> list[AnyDelta]:
    """Return the stream's deltas, usage left out, without a network."""
    reader = ChunkReader(choices=choices, max_chunks=1000, is_text=is_text)
    return reader.read(Parser().feed(stream))


@pytest.mark.parametrize("dialect", STYLES)
@pytest.mark.parametrize("how", [{}, {"crlf": True, "split": 41}])
async def test_every_transcript_is_read_over_http(
    engine: OpenAICompatibleEngine, upstream: Upstream, dialect: str, how: dict[str, Any]
) -> None:
    for path in sorted((TRANSCRIPTS / dialect).glob("*.sse")):
        stream = path.read_bytes()
        is_text = b'"text_completion"' in stream
        choices = 1 + max(
            [int(index) for index in re.findall(rb'"index":(\d+),"(?:delta|logprobs)"', stream)], default=0
        )
        call = call_of(upstream, Script(raw=stream.decode(), **how), is_text=is_text, n=choices)
        deltas, code = await outcome(engine, call)
        shown = [delta for delta in deltas if not isinstance(delta, Usage)]
        assert (path.name, shown) == (path.name, read(stream, choices, is_text=is_text))
        assert (path.name, code is None) == (
            path.name,
            "failure" not in path.name and "error" not in path.name,
        )


async def test_a_bitseek_stream_without_blank_lines_ends_by_closing(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    lines = [f"data: {json.dumps(part)}\n" for part in (SAYS_A, SAYS_A, chunk({"content": ""}, "stop"))]
    assert await outcome(engine, call_of(upstream, raw(*lines))) == (
        [Started(), Text("a"), Text("a"), Finished("stop")],
        None,
    )


async def test_a_text_stream_without_finish_reasons_ends_by_done(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    text = {"object": "text_completion", "choices": [{"text": " Once", "index": 0}]}
    said = [Started(), Text(" Once"), Text(" Once")]
    whole = raw(text, text, DONE)
    assert await outcome(engine, call_of(upstream, whole, is_text=True)) == ([*said, Finished("stop")], None)
    assert await outcome(engine, call_of(upstream, whole, is_text=True, max_output_tokens=2)) == (
        [*said, Finished("length")],
        None,
    )
    assert await outcome(engine, call_of(upstream, raw(text, text), is_text=True)) == (
        said,
        "upstream_disconnected",
    )


# Errors in the stream


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, "upstream_error"),
        ({"error": "boom"}, "upstream_error"),
        (
            {"id": "stream:chat:1", "choices": [], "error": {"message": "boom", "code": 503}},
            "upstream_unavailable",
        ),
        (
            'event: error\ndata: {"message": "context overflow", "type": "server_error"}\n\n',
            "context_length_exceeded",
        ),
        (
            "event: error\n"
            'data: {"message": "slow", "type": "rate_limit_error", "error": {"message": "slow"}}\n\n',
            "upstream_error",
        ),
        ({"object": "error", "message": "slow down", "code": 429}, "upstream_rate_limited"),
        ("data: garbage\n\n", "upstream_invalid_response"),
        ("", "upstream_disconnected"),
        (DONE, "upstream_invalid_response"),
        ('data: {"choices":[{"del', "upstream_disconnected"),
    ],
)
async def test_a_broken_stream_is_an_error_after_the_readable_part(
    engine: OpenAICompatibleEngine, upstream: Upstream, error: dict[str, Any] | str, code: str
) -> None:
    for how in ({}, {"crlf": True, "split": 5}):
        assert await outcome(engine, call_of(upstream, raw(SAYS_A, error, **how))) == (
            [Started(), Text("a")],
            code,
        )


async def test_a_usage_that_is_cut_through_spoils_no_whole_answer(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    script = raw(SAYS_A, STOP, 'data: {"choices":[],"usage":{"prompt_to')
    assert await outcome(engine, call_of(upstream, script)) == (
        [Started(), Text("a"), Finished("stop")],
        None,
    )


# Oddities


async def test_noise_between_the_events_says_nothing(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    noise: list[dict[str, Any] | str] = [
        ": OPENROUTER PROCESSING\n\n",
        "event: ping\ndata: {}\n\n",
        "garbage\n",
        "retry: 5\nid: 7\n\n",
        {"choices": None},
        {},
    ]
    script = raw(*noise, chunk({"role": "assistant"}), SAYS_A, *noise, "event: chunk\n", STOP, *noise, DONE)
    assert await outcome(engine, call_of(upstream, script)) == (
        [Started(), Text("a"), Finished("stop")],
        None,
    )


async def test_what_comes_after_the_finish_is_dropped_but_for_the_usage(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    usage: dict[str, Any] = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    script = raw(SAYS_A, STOP, STOP, chunk({"content": "late"}, **usage), DONE, SAYS_A)
    assert await outcome(engine, call_of(upstream, script)) == (
        [Started(), Text("a"), Finished("stop"), Usage(3, 1)],
        None,
    )


async def test_a_delta_of_a_mebibyte_is_read(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    call = call_of(upstream, Script(huge_frame=2, huge_bytes=1 << 20), max_output_tokens=1 << 20)
    said = (await completion(engine, call)).choice(0)
    assert said.text == " the of" + "x" * (1 << 20) + " and to in"


async def test_an_echoed_prompt_may_come_in_many_chunks(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    parts = [{"choices": [{"text": text, "index": 0}]} for text in "hi ab"]
    script = raw(*parts, {"choices": [{"text": "", "index": 0, "finish_reason": "length"}]}, DONE)
    said = (
        await completion(engine, call_of(upstream, script, is_text=True, max_output_tokens=3, echo=True))
    ).choice(0)
    assert (said.text, said.finish_reason) == ("hi ab", "length")


async def test_a_legacy_function_call_is_read(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    deltas, _ = await outcome(engine, call_of(upstream, Script(function_call=True)))
    assert deltas[1] == ToolCall(0, '{"', None, "lookup", kind="function_call")
    [call] = collect(deltas).choice(0).tool_calls.values()
    assert (call.name, call.arguments, collect(deltas).choice(0).finish_reason) == (
        "lookup",
        '{"city":" the"}',
        "function_call",
    )


@pytest.mark.parametrize(
    "how", [{}, {"no_tool_ids": True}, {"tool_index": "zero"}, {"tool_index": "none", "no_tool_ids": True}]
)
async def test_tool_calls_may_come_whole(
    engine: OpenAICompatibleEngine, upstream: Upstream, how: dict[str, Any]
) -> None:
    said = (
        await completion(engine, call_of(upstream, Script(tool_calls=2, whole_tool_calls=True, **how)))
    ).choice(0)
    calls = said.tool_calls.values()
    assert [(call.name, call.arguments) for call in calls] == [("lookup", '{"city":" the"}')] * 2
    ids = [call.id for call in calls]
    assert len({*ids}) == 2 if "no_tool_ids" in how else ids == ["call_up_0", "call_up_1"]
    assert list(said.tool_calls) == [0, 1]


@pytest.mark.parametrize(
    "how", [{"reasoning": 2}, {"tool_calls": 2}, {"function_call": True}, {"refusal": True}]
)
async def test_an_answer_that_ignores_stream_says_the_same(
    engine: OpenAICompatibleEngine, upstream: Upstream, how: dict[str, Any]
) -> None:
    streamed = await completion(engine, call_of(upstream, Script(**how)))
    whole = await completion(engine, call_of(upstream, Script(as_json=True, **how)))
    assert content_of(whole.choice(0)) == content_of(streamed.choice(0))
    assert whole.usage == streamed.usage


async def test_vectors_are_read_in_pieces_of_any_size(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    """Pieces of every size: each byte of the document begins one."""
    request = parse_embeddings(b'{"model": "m", "input": ["a", "b"]}')
    expected: Outcome | None = None
    for is_base64 in (True, False):
        size = len(json.dumps(embeddings(Script(ignore_base64=not is_base64), ASKED, ["a", "b"])))
        for split in range(1, size + 1):
            script = Script(split=split, ignore_base64=not is_base64)
            found = await outcome(engine, replace(call_of(upstream, script), request=request))
            expected = expected or found
            assert found == expected, split
    assert expected is not None
    assert [type(delta) for delta in expected[0]] == [Started, Vector, Vector, Usage]


# How long to wait


async def test_retry_after_in_milliseconds_is_kept(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    with pytest.raises(EngineError) as raised:
        await anext(
            engine.stream(call_of(upstream, Script(status=429, retry_after="3", retry_after_ms="2500")))
        )
    assert raised.value.failure.retry_after_ms == 2500


async def test_large_answers_in_one_piece_are_read_two_at_a_time(engine: OpenAICompatibleEngine) -> None:
    """The third stays unread until one of the others has ended, and that is no time of its upstream's."""
    unread_bytes = 16 * openai_compatible.SMALL_ANSWER_BYTES  # more than the sockets' buffers hold
    sent: list[int] = []
    may_end, two_are_sent = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        writer.write(b" " * (unread_bytes - 100))
        await writer.drain()
        sent.append(unread_bytes)
        if len(sent) == 2:
            two_are_sent.set()
        await may_end.wait()
        writer.write(b"{}")
        writer.close()

    async with tcp_server(answer) as address:
        url, hasty = f"http://{address}", Timeouts(first_delta_ms=1_500)
        calls = [asyncio.create_task(failed(engine, plain_call(url))) for _ in range(2)]
        await two_are_sent.wait()
        calls.append(asyncio.create_task(failed(engine, plain_call(url, timeouts=hasty))))
        await asyncio.sleep(hasty.first_delta_ms / 1_000 + 0.1)
        for _ in range(5_000):  # turns of the loop, in which the third would be read
            await asyncio.sleep(0)
        assert len(sent) == 2
        may_end.set()
        assert {error.failure.code for _, error in await asyncio.gather(*calls)} == {
            "upstream_invalid_response"
        }
