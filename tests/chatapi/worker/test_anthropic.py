"""The engine for Anthropic's API, against a real HTTP server."""

import json
from collections.abc import AsyncIterator

import pytest

from chatapi.wire.deltas import AnyDelta, Finished, Text, ToolCall, Usage
from chatapi.wire.protocols.messages.request import parse
from chatapi.wire.upstream.http_api import ANTHROPIC
from chatapi.worker.engines import Call, EngineError, Target
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from tests.fake_completion import Script
from tests.fake_upstream import Upstream
from tests.wire.messages_cases import FOLDER
from tests.wire.request_bodies import chat


@pytest.fixture
async def engine() -> AsyncIterator[OpenAICompatibleEngine]:
    engine = OpenAICompatibleEngine(ANTHROPIC)
    yield engine
    await engine.close()


async def answer(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: Script, max_output_tokens: int = 1_000
) -> list[AnyDelta]:
    upstream.name_script("scripted", script)
    target = Target("anthropic", base_url=upstream.url, upstream_model="scripted", api_key="sk-fake")
    call = Call("gen", chat(), target, max_output_tokens)
    return [delta async for batch in engine.stream(call) for delta in batch]


def transcript(case: str) -> str:
    return (FOLDER / f"{case}.sse").read_text()


@pytest.mark.parametrize("split", [0, 41])
async def test_every_kind_of_input_is_read(
    engine: OpenAICompatibleEngine, upstream: Upstream, split: int
) -> None:
    deltas = await answer(engine, upstream, Script(raw=transcript("usage-kinds"), split=split))
    kinds = Usage(100, 18, 50, 6, cache_write_tokens=30, cache_write_1h_tokens=10)
    assert deltas[1:] == [Text("42"), Finished("stop"), kinds]


async def test_calls_are_read(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    deltas = await answer(engine, upstream, Script(raw=transcript("tool-call")))
    calls = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert (calls[0].id, calls[0].name) == ("call_1", "get_weather")
    assert "".join(call.arguments for call in calls) == '{"city":"Tokyo"}'


async def test_it_asks_in_anthropics_words(engine: OpenAICompatibleEngine, upstream: Upstream) -> None:
    await answer(engine, upstream, Script(raw=transcript("text")))
    [received] = upstream.calls
    headers = {name.lower(): value for name, value in received.headers.items()}
    assert (received.path, received.body["max_tokens"]) == ("/v1/messages", 1_000)
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-fake", "2023-06-01")
    assert "authorization" not in headers


async def test_a_limit_that_is_ignored_ends_the_answer(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    deltas = await answer(engine, upstream, Script(raw=transcript("text")), max_output_tokens=1)
    assert deltas[1:] == [Text("Packets "), Finished("length")]


@pytest.mark.parametrize(
    ("script", "code", "is_retryable"),
    [
        (Script(status=529), "upstream_unavailable", True),
        (Script(status=401), "upstream_authentication", True),
        (Script(status=400, error_message="max_tokens: too large"), None, False),
        (Script(raw=transcript("failure")), "upstream_unavailable", True),
        (Script(raw=transcript("text")[:-60]), "upstream_disconnected", True),
    ],
)
async def test_failures_are_those_of_any_upstream(
    engine: OpenAICompatibleEngine, upstream: Upstream, script: Script, code: str | None, is_retryable: bool
) -> None:
    with pytest.raises(EngineError) as raised:
        await answer(engine, upstream, script)
    assert (raised.value.failure.code, raised.value.is_retryable) == (code, is_retryable)


async def test_a_refused_effort_is_the_thinking_from_which_it_was_estimated(
    engine: OpenAICompatibleEngine, upstream: Upstream
) -> None:
    members = {"max_tokens": 2_000, "thinking": {"type": "enabled", "budget_tokens": 1_024}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | members
    upstream.name_script("scripted", Script(status=400, error_message="output_config.effort: not supported"))
    target = Target("anthropic", base_url=upstream.url, upstream_model="scripted")
    with pytest.raises(EngineError) as raised:
        await anext(engine.stream(Call("gen", parse(json.dumps(body).encode()), target, 2_000)))
    assert raised.value.failure.param == "thinking"
