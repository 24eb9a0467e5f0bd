"""The worker's event loop stays free for every request: what takes long is done in a thread, in pieces, in
turns.
"""

import asyncio
import gc
import json
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from chatapi import identity
from chatapi.wire import requests, tokens
from chatapi.wire.deltas import AnyDelta, Reasoning, Text, TokenLogprob, ToolCall
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker import generate
from chatapi.worker.engines import Call, EngineError, Target
from chatapi.worker.engines.sandbox.engine import SandboxEngine
from chatapi.worker.runs import heavy_work
from chatapi.worker.runs.heavy_work import in_thread
from chatapi.worker.runs.run import Run
from chatapi.worker.runs.run_usage import End, Ending, RunUsage
from usage.books.ledger import Claimed

MOST_LOOP_S = 0.1
"""CPU time of one turn of the loop. Aimed at are 20 ms; the machine that runs this may be slow."""


@asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """Yield the CPU time of each turn of the loop inside the block, of this thread alone, so that other load
    does not count.
    """
    turns_s: list[float] = []

    async def watch() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            turns_s.append(time.thread_time() - before)
            before = time.thread_time()

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    # A worker freezes its imports (`serving/process_tuning.py`); here a collection would scan all of pytest.
    gc.disable()
    try:
        yield turns_s
    finally:
        await asyncio.sleep(0)
        watching.cancel()
        gc.enable()


async def play(body: dict[str, Any], model: str = "sandbox", most: int = 50) -> list[float]:
    """Run the request as a worker does, from its job to its settlement by our own count; the loop's turns."""
    parse = parse_text if "prompt" in body else parse_chat
    content = requests.to_bytes(parse(json.dumps(body).encode()))
    run = Run(
        Claimed(identity.new_id(), 1, "m", most, 1, is_test=True, organization_id=1), "web", content=content
    )
    async with watched() as turns_s:
        request = await generate._request(run)
        target = Target("sandbox", upstream_model=model)
        try:
            async for batch in SandboxEngine().stream(Call("id", request, target, most, run.request_bytes)):
                await heavy_work.add(run.usage, batch, len)
        except EngineError:
            pass
        else:
            run.usage.reported = None
            await generate._settlement(run, request, End(Ending.COMPLETED))
    return turns_s


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}


FUNCTIONS = [
    {"name": f"f{number}", "parameters": {"type": "array", "minItems": 400 + number}} for number in range(16)
]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
CONSTANTS = [{"const": [1.5] * 280 + [last]} for last in range(900)]


@pytest.mark.parametrize(
    ("body", "model", "most"),
    [
        pytest.param(chat("word " * 400_000), "sandbox", 50, id="a long prompt"),
        pytest.param(chat('\n"\\' * 500_000), "sandbox", 50, id="a prompt of escapes"),
        pytest.param(chat("[sandbox " * 200_000), "sandbox", 50, id="markers that never end"),
        pytest.param(chat("word " * 200_000, n=128), "sandbox-echo", 50, id="an echo in each choice"),
        pytest.param(
            chat("word " * 3_000, n=128), "sandbox-echo", 2_500, id="choices that grow long together"
        ),
        pytest.param(
            {"model": "m", "prompt": ["word " * 3_000] * 128, "echo": True},
            "sandbox",
            5,
            id="many prompts said again",
        ),
        pytest.param(
            chat("hi [sandbox tokens=40]", n=128, logprobs=True, top_logprobs=20),
            "sandbox",
            50,
            id="log probabilities",
        ),
        pytest.param(chat("hi", **schema({"allOf": CONSTANTS})), "sandbox", 50, id="constants"),
        pytest.param(
            chat("hi", **schema({"enum": [[each] for each in range(100_000)]})), "sandbox", 50, id="an enum"
        ),
        pytest.param(
            chat("hi", **schema({"type": "array", "minItems": 10**9})), "sandbox", 50, id="endless items"
        ),
        pytest.param(
            chat("hi [sandbox tool_calls=16]", tools=TOOLS, n=16), "sandbox", 9_000, id="tool calls"
        ),
    ],
)
async def test_no_request_holds_the_loop(body: dict[str, Any], model: str, most: int) -> None:
    tokens.warm()
    assert max(await play(body, model, most)) < MOST_LOOP_S


async def test_a_large_delta_is_counted_aside() -> None:
    usage, expected = RunUsage(), tokens.count("word " * 600_000)
    async with watched() as turns_s:
        for _ in range(3):
            await heavy_work.add(usage, [Text("word " * 200_000)], len)
        await heavy_work.count_all(usage)
        assert usage.completion_tokens == expected
    assert max(turns_s) < MOST_LOOP_S


async def test_a_large_delta_is_passed_on_in_parts() -> None:
    long = "word " * 10_000
    passed: list[AnyDelta] = []
    batch: list[AnyDelta] = [ToolCall(1, long, "id", "name", 2), Reasoning(long, 3), Text(long), Text("end")]
    await heavy_work.add(RunUsage(), batch, passed.extend)
    call, *others = passed
    assert call == ToolCall(1, long[: heavy_work.MAX_DELTA_CHARS], "id", "name", 2)
    calls = [call, *(delta for delta in others if isinstance(delta, ToolCall))]
    assert "".join(part.arguments for part in calls) == long
    assert all(part == ToolCall(1, part.arguments, index=2) for part in calls[1:])
    assert "".join(delta.text for delta in others if isinstance(delta, Reasoning)) == long
    assert "".join(delta.text for delta in others if isinstance(delta, Text)) == long + "end"
    logprobs = [TokenLogprob("word", -1)]
    await heavy_work.add(RunUsage(), [Text(long, 0, logprobs)], passed.extend)
    assert passed[-1:] == [Text(long, 0, logprobs)]


async def test_one_thread_does_one_piece_after_the_other() -> None:
    at_once, most = 0, 0

    def work() -> int:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        at_once -= 1
        return threading.get_ident()

    threads = await asyncio.gather(*(in_thread(work) for _ in range(50)))
    assert (most, len(set(threads))) == (1, 1)
    assert threading.get_ident() not in threads


async def test_a_long_text_is_counted_in_turns_with_others() -> None:
    order: list[str] = []

    async def count(name: str, text: str) -> None:
        assert await heavy_work.count([text]) == tokens.count(text)
        order.append(name)

    await asyncio.gather(count("long", "word " * 200_000), count("short", "word " * 4_000))
    assert order == ["short", "long"]


async def test_a_cancelled_caller_waits_for_work_that_has_begun_only() -> None:
    may_end, done = threading.Event(), []
    has_begun = threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait(10)
        done.append("first")

    first = asyncio.create_task(in_thread(work))
    second = asyncio.create_task(in_thread(done.append, "second"))
    await asyncio.to_thread(has_begun.wait, 10)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    first.cancel()
    await asyncio.sleep(0)
    assert not first.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert done == ["first"]


async def test_an_error_reaches_its_caller() -> None:
    def work() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        await in_thread(work)


async def test_an_error_keeps_no_request_in_memory() -> None:
    class Request:
        """A large request."""

    def refuse(request: Request) -> None:
        raise ValueError(type(request))

    request = Request()
    kept = weakref.ref(request)
    gc.disable()
    try:
        with suppress(ValueError):
            await heavy_work.in_thread(refuse, request)
        del request
        await heavy_work.in_thread(int)  # behind it, the thread has let go of the call before
        assert kept() is None
    finally:
        gc.enable()


async def test_a_prompt_is_counted_only_as_far_as_it_decides() -> None:
    content = requests.to_bytes(parse_chat(json.dumps(chat("word " * 400_000)).encode()))
    request = requests.from_bytes(content)
    assert await heavy_work.count_prompt(request, len(content)) > 400_000
    assert 1_000 < await heavy_work.count_prompt(request, len(content), 1_000) < 20_000
    assert 20_000 < await heavy_work.count_prompt(request, len(content), 20_000) < 40_000
