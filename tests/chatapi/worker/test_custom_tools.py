"""Custom tools of a request, before upstreams that know them and upstreams that do not."""

import asyncio
import json
from typing import Any

import pytest

from chatapi.wire.parameters import CUSTOM_TOOLS
from chatapi.wire.upstream.http_api import ANTHROPIC
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from tests.chatapi.worker.test_heavy_work import MOST_LOOP_S, watched
from tests.chatapi.worker.test_openai_compatible import STREAM_HEAD, call_of, deltas_of, tcp_server
from tests.wire.folding import collect

TOOLS = b', "tools": [{"type": "custom", "custom": {"name": "patch"}}]'
ARGUMENTS = ['{"inp', 'ut": "*** Be', 'gin\\nPatch"', "}"]


def event(data: dict[str, Any]) -> bytes:
    return f"event: {data.get('type', '')}\ndata: {json.dumps(data)}\n\n".encode()


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def fragment(**members: Any) -> bytes:
    return chunk({"tool_calls": [{"index": 0, **members}]})


FUNCTION_CALL = [
    fragment(id="c1", type="function", function={"name": "patch", "arguments": ""}),
    *(fragment(function={"arguments": piece}) for piece in ARGUMENTS),
    chunk({}, "tool_calls"),
    b"data: [DONE]\n\n",
]
CUSTOM_CALL = [
    fragment(id="c1", type="custom", custom={"name": "patch", "input": "*** Begin\n"}),
    fragment(type="custom", custom={"input": "Patch"}),
    chunk({}, "tool_calls"),
    b"data: [DONE]\n\n",
]
TOOL_USE = [
    event({"type": "message_start", "message": {"usage": {"input_tokens": 1, "output_tokens": 1}}}),
    event(
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "c1", "name": "patch", "input": {}},
        }
    ),
    *(
        event(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }
        )
        for piece in ARGUMENTS
    ),
    event({"type": "content_block_stop", "index": 0}),
    event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
    event({"type": "message_stop"}),
]


@pytest.mark.parametrize(
    ("engine", "extra_parameters", "answer", "kind"),
    [
        (OpenAICompatibleEngine(), (), FUNCTION_CALL, "function"),
        (OpenAICompatibleEngine(), (CUSTOM_TOOLS,), CUSTOM_CALL, "custom"),
        (OpenAICompatibleEngine(ANTHROPIC), (), TOOL_USE, None),
    ],
    ids=["functions", "custom tools", "anthropic"],
)
async def test_the_client_always_gets_a_call_of_the_custom_tool(
    engine: OpenAICompatibleEngine, extra_parameters: tuple[str, ...], answer: list[bytes], kind: str | None
) -> None:
    asked: dict[str, Any] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        asked.update(json.loads(await reader.readexactly(length)))
        writer.write(STREAM_HEAD)
        for piece in answer:
            writer.write(piece)
            await writer.drain()
        writer.close()

    async with tcp_server(serve) as url:
        call = call_of(f"http://{url}", more=TOOLS, extra_parameters=frozenset(extra_parameters))
        deltas = await deltas_of(engine, call)
    await engine.close()
    (found,) = collect(deltas).choice(0).tool_calls.values()
    assert (found.kind, found.id, found.name) == ("custom", "c1", "patch")
    assert found.arguments == "*** Begin\nPatch"
    (tool,) = asked["tools"]
    assert (tool["name"] if kind is None else tool["type"]) == (kind or "patch")


async def test_a_large_input_is_read_aside() -> None:
    """Most of it are backslashes that begin no escape."""
    arguments = '{"input": "' + "\\d" * 600_000 + '"}'
    answer = [
        fragment(id="c1", type="function", function={"name": "patch", "arguments": arguments}),
        *FUNCTION_CALL[-2:],
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM_HEAD)
        for piece in answer:
            for start in range(0, len(piece), 1 << 16):
                writer.write(piece[start : start + (1 << 16)])
                await writer.drain()
        writer.close()

    engine = OpenAICompatibleEngine()
    async with tcp_server(serve) as url, watched() as turns_s:
        deltas = await deltas_of(engine, call_of(f"http://{url}", more=TOOLS, max_output_tokens=10**7))
    await engine.close()
    (found,) = collect(deltas).choice(0).tool_calls.values()
    assert found.arguments == "\\d" * 600_000
    assert max(turns_s) < MOST_LOOP_S
