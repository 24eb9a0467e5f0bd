"""Calls of the sandbox engine, and the answers to them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta, Failed, Usage
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker.engines import Call, Engine, EngineError, Target, Timeouts
from chatapi.worker.engines.sandbox.engine import SandboxEngine
from tests.wire.folding import collect

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "kelvin"]}},
            "required": ["city", "unit"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    },
}
SCRIBBLE = {"type": "custom", "custom": {"name": "scribble"}}


def call(
    said: str = "Hello",
    *,
    cap: int = 1_000,
    upstream_model: str = "",
    timeouts: Timeouts | None = None,
    **body: Any,
) -> Call:
    """Return a call for a chat request with one user message."""
    content = {"model": "sandbox", "messages": [{"role": "user", "content": said}], **body}
    target = Target(engine="sandbox", upstream_model=upstream_model, timeouts=timeouts or Timeouts())
    return Call("0" * 32, parse_chat(json.dumps(content).encode()), target, cap)


def text_call(cap: int = 1_000, **body: Any) -> Call:
    """Return a call for a text request."""
    return Call(
        "0" * 32, parse_text(json.dumps({"model": "sandbox", **body}).encode()), Target(engine="sandbox"), cap
    )


async def batches_of(asked: Call) -> list[Sequence[AnyDelta]]:
    engine: Engine = SandboxEngine()
    return [batch async for batch in engine.stream(asked)]


async def deltas_of(asked: Call) -> list[AnyDelta]:
    return [delta for batch in await batches_of(asked) for delta in batch]


async def answer_to(said: str = "Hello", **body: Any) -> Completion:
    return collect(await deltas_of(call(said, **body)))


async def broken_off(asked: Call) -> tuple[list[AnyDelta], Failed]:
    """Return the deltas before the error, and the error."""
    got: list[AnyDelta] = []

    async def read() -> None:
        async for batch in SandboxEngine().stream(asked):
            got.extend(batch)

    with pytest.raises(EngineError) as raised:
        await read()
    assert not raised.value.is_retryable
    return got, raised.value.failure


def text_of(completion: Completion, index: int = 0) -> str:
    return completion.choices[index].text or ""


def usage_of(completion: Completion) -> Usage:
    assert completion.usage is not None
    return completion.usage
