"""An upstream that misbehaves as the model's name says. It stops by itself, and bounds the bytes and the
time of each answer.

python -m bench.hostile.upstream --port 27200
"""

import argparse
import asyncio
import json
import re
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import uvloop

MB = 1_000_000
MAX_BYTES = 60 * MB
"""The most bytes of one answer; the gateway should have given up long before."""
MAX_SECONDS = 15.0
MODEL = re.compile(rb'"model"\s*:\s*"([^"]+)"')
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

Send = Callable[[bytes], Awaitable[None]]
Behaviour = Callable[[Send], Awaitable[None]]

BEHAVIOURS: dict[str, Behaviour] = {}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"


def behaviour(function: Behaviour) -> Behaviour:
    """Register a coroutine function under its name: it sends the whole answer, with the head."""
    BEHAVIOURS[function.__name__.replace("_", "-")] = function
    return function


def event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    """Return one event of a stream."""
    chunk = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        **fields,
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def said(text: str, index: int = 0) -> dict[str, Any]:
    """Return a choice with this text."""
    return {"index": index, "delta": {"content": text}, "finish_reason": None}


def finish(**usage: int) -> bytes:
    """Return the end of a stream with this usage."""
    end = event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    return end + (event([], usage=usage) if usage else b"") + b"data: [DONE]\n\n"


@behaviour
async def huge_events(send: Send) -> None:
    """Events of 1 MB each, without an end."""
    await send(STREAM_HEAD + b"\r\n")
    piece = event([said("word " * 200_000)])
    while True:
        await send(piece)


@behaviour
async def event_without_end(send: Send) -> None:
    """One event that never ends."""
    await send(STREAM_HEAD + b'\r\ndata: {"choices":[{"index":0,"delta":{"content":"')
    while True:
        await send(b"w" * MB)


@behaviour
async def lines_without_event(send: Send) -> None:
    """Data lines of one event without an end."""
    await send(STREAM_HEAD + b"\r\n")
    while True:
        await send(b"data: x\n" * 100_000)


@behaviour
async def fragments(send: Send) -> None:
    """Events in HTTP chunks of one byte, 65,000 at once."""
    await send(STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    piece = b"".join(b"1\r\n%c\r\n" % byte for byte in event([said("word ")]) * 400)
    while True:
        await send(piece)


@behaviour
async def choices_128(send: Send) -> None:
    """Events of 128 choices each, without an end."""
    await send(STREAM_HEAD + b"\r\n")
    piece = event([said("word ", index) for index in range(128)]) * 50
    while True:
        await send(piece)


@behaviour
async def choice_numbers(send: Send) -> None:
    """Choices with a new number in each event."""
    await send(STREAM_HEAD + b"\r\n")
    for start in range(0, 10_000_000, 1000):
        await send(b"".join(event([said("w", index)]) for index in range(start, start + 1000)))


@behaviour
async def tiny_events(send: Send) -> None:
    """100,000 events of one letter in one write, again and again."""
    await send(STREAM_HEAD + b"\r\n")
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"w"}}]}\n\n' * 100_000
    while True:
        await send(piece)


@behaviour
async def comments(send: Send) -> None:
    """Comments and empty lines without an end."""
    await send(STREAM_HEAD + b"\r\n")
    while True:
        await send(b": ping\n\n\n" * 100_000)


@behaviour
async def compressed(send: Send) -> None:
    """A gzip bomb: a thousand times as many bytes as were sent."""
    await send(STREAM_HEAD + b"Content-Encoding: gzip\r\n\r\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    await send(packer.compress(b"data: ") + packer.compress(b"x" * (200 * MB)) + packer.flush())


@behaviour
async def compressed_events(send: Send) -> None:
    """A gzip bomb of valid events."""
    await send(STREAM_HEAD + b"Content-Encoding: gzip\r\n\r\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    await send(packer.compress(event([said("w")]) * 500_000) + packer.flush())


@behaviour
async def usage_of_2_31(send: Send) -> None:
    """Three words, and a usage of 2^31-1 tokens."""
    most = 2**31 - 1
    usage = {"prompt_tokens": most, "completion_tokens": most, "total_tokens": most}
    await send(STREAM_HEAD + b"\r\n" + event([said("word ")]) * 3 + finish(**usage))


@behaviour
async def usage_many_times(send: Send) -> None:
    """100,000 usage chunks, again and again."""
    await send(STREAM_HEAD + b"\r\n" + event([said("word ")]))
    piece = event([], usage={"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}) * 100_000
    while True:
        await send(piece)


@behaviour
async def nested_events(send: Send) -> None:
    """Events with arrays nested 100,000 deep."""
    await send(STREAM_HEAD + b"\r\n")
    piece = b'data: {"choices":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"
    while True:
        await send(piece)


@behaviour
async def slow_numbers(send: Send) -> None:
    """Events with 900 KB of numbers that are slow to read."""
    await send(STREAM_HEAD + b"\r\n")
    piece = b'data: {"choices":[],"x":[' + b"2.2250738585072011e-308," * 38_000 + b"0]}\n\n"
    while True:
        await send(piece)


@behaviour
async def tool_calls(send: Send) -> None:
    """Tool calls whose arguments come in tiny pieces, with ever new numbers."""
    await send(STREAM_HEAD + b"\r\n")
    for start in range(0, 10_000_000, 500):
        calls = [
            {"index": n, "id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{"}}
            for n in range(start, start + 500)
        ]
        await send(event([{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]))


@behaviour
async def log_probabilities(send: Send) -> None:
    """Events of 500 KB of log probabilities."""
    await send(STREAM_HEAD + b"\r\n")
    top = [{"token": f"t{number}", "logprob": -0.123456789, "bytes": [116, 48]} for number in range(200)]
    probabilities = {"content": [{"token": "w", "logprob": -0.1, "bytes": [119], "top_logprobs": top}] * 40}
    piece = event([{**said("w" * 40), "logprobs": probabilities}])
    while True:
        await send(piece)


@behaviour
async def long_run(send: Send) -> None:
    """One letter a million times, without usage, so that the gateway has to count."""
    await send(STREAM_HEAD + b"\r\n" + event([said("a" * 100_000)]) * 10 + finish())


@behaviour
async def header_flood(send: Send) -> None:
    """Headers without an end."""
    await send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await send(b"X-Header: value\r\n" * 10_000)


@behaviour
async def refusal_without_end(send: Send) -> None:
    """A status of 400 with a body that never ends."""
    await send(
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        b'{"error":{"message":"'
    )
    while True:
        await send(b"no " * 300_000)


@behaviour
async def document_without_end(send: Send) -> None:
    """One JSON document that never ends instead of a stream."""
    await send(JSON_HEAD + b'\r\n{"choices":[{"index":0,"message":{"role":"assistant","content":"')
    while True:
        await send(b"w" * MB)


@behaviour
async def slow_document(send: Send) -> None:
    """A JSON document of 8 MB of numbers that are slow to read instead of a stream."""
    await send(JSON_HEAD + b'\r\n{"x":[' + b"2.2250738585072011e-308," * 330_000 + b'0],"choices":[]}')


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and end the connection."""
    sent = 0

    async def send(data: bytes) -> None:
        nonlocal sent
        sent += len(data)
        if sent > MAX_BYTES:
            raise ConnectionAbortedError
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0)

    with suppress(
        OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
    ):  # a TimeoutError is an OSError
        async with asyncio.timeout(MAX_SECONDS):
            request_head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(request_head)
            body = (
                await reader.readexactly(int(length[1])) if length else await reader.readuntil(b"0\r\n\r\n")
            )
            model = MODEL.search(body)
            respond = BEHAVIOURS.get(model[1].decode()) if model else None
            await (respond or usage_of_2_31)(send)
    writer.close()


async def serve(port: int, seconds: float) -> None:
    """Serve on 127.0.0.1 for this long."""
    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=64 * MB, backlog=4096)
    async with server:
        await asyncio.sleep(seconds)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="An upstream on 127.0.0.1 that misbehaves.")
    parser.add_argument("--port", type=int, default=27200)
    parser.add_argument("--seconds", type=float, default=3600, help="stop by itself after this long")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.seconds))


if __name__ == "__main__":
    main()
