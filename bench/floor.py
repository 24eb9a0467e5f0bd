"""The floor of chatapi's shape: a web process, a Redis stream and a worker process; no keys, no limits, no
accounting.

    python -m bench.floor web --port 27103 --redis /tmp/valkey.sock
    python -m bench.floor worker --redis /tmp/valkey.sock --upstream-url http://127.0.0.1:27100/v1

The worker decodes, counts and encodes every event with the standard library. While it writes one entry to
Redis, the pieces of all streams are collected for the next one.
"""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import aiohttp
import msgspec
import uvloop
from aiohttp import web
from redis.asyncio import Redis

JOBS = "jobs"
KEPT_ENTRIES = 1_000

Piece = tuple[int, bytes]
"""The number of a request in its web process, and bytes of its answer; empty bytes end it."""


class Job(msgspec.Struct, array_like=True):
    """A request on its way to the worker."""

    inbox: str
    number: int
    body: bytes


class Web:
    """One web process: its inbox is a stream that holds the pieces of all its answers."""

    def __init__(self, redis: Redis) -> None:
        self.redis, self.inbox, self.numbers = redis, f"inbox-{os.getpid()}", count(1)
        self.answers: dict[int, asyncio.Queue[bytes]] = {}

    async def read_inbox(self, _app: web.Application) -> AsyncIterator[None]:
        """Hand the pieces to their requests for the life of the process."""
        task = asyncio.create_task(self.read())
        yield
        task.cancel()

    async def read(self) -> None:
        decoder, last = msgspec.msgpack.Decoder(list[Piece]), b"0"
        while True:
            streams: Any = await self.redis.xread({self.inbox: last}, block=0)
            for _inbox, entries in streams:
                last = entries[-1][0]
                for _id, fields in entries:
                    for number, data in decoder.decode(fields[b"pieces"]):
                        if number in self.answers:
                            self.answers[number].put_nowait(data)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Queue the body and relay the answer."""
        number = next(self.numbers)
        answer = self.answers[number] = asyncio.Queue()
        try:
            await self.redis.lpush(
                JOBS, msgspec.msgpack.encode(Job(self.inbox, number, await request.read()))
            )
            data = await answer.get()
            if data.startswith(b"{"):
                return web.Response(body=data, content_type="application/json")
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            while data:
                await response.write(data)
                data = await answer.get()
            await response.write_eof()
            return response
        finally:
            del self.answers[number]


class Worker:
    """One worker process: a task for each request, and one publisher for all."""

    def __init__(self, redis: Redis, upstream_url: str) -> None:
        self.redis, self.url = redis, f"{upstream_url}/chat/completions"
        self.pending: dict[str, list[Piece]] = {}
        self.has_pending = asyncio.Event()

    async def run(self) -> None:
        connector, timeout = aiohttp.TCPConnector(limit=4096), aiohttp.ClientTimeout(120)
        tasks = {asyncio.create_task(self.publish())}
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
            while True:
                popped: Any = await self.redis.brpop([JOBS])
                task = asyncio.create_task(self.answer(client, msgspec.msgpack.decode(popped[1], type=Job)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def answer(self, client: aiohttp.ClientSession, job: Job) -> None:
        headers = {"content-type": "application/json"}
        async with client.post(self.url, data=job.body, headers=headers) as answer:
            if answer.content_type != "text/event-stream":
                self.send(job, await answer.read())
                return
            async for events in parsed(answer.content):
                self.send(job, events)
            self.send(job, b"")

    def send(self, job: Job, data: bytes) -> None:
        self.pending.setdefault(job.inbox, []).append((job.number, data))
        self.has_pending.set()

    async def publish(self) -> None:
        while await self.has_pending.wait():
            self.has_pending.clear()
            pending, self.pending = self.pending, {}
            for inbox, pieces in pending.items():
                await self.redis.xadd(inbox, {"pieces": msgspec.msgpack.encode(pieces)}, maxlen=KEPT_ENTRIES)


def compact_json(chunk: object) -> bytes:
    """Return the chunk as JSON."""
    return json.dumps(chunk, separators=(",", ":")).encode()


async def parsed(
    content: aiohttp.StreamReader,
    decode: Callable[[bytes], Any] = json.loads,
    encode: Callable[[object], bytes] = compact_json,
) -> AsyncIterator[bytes]:
    """Yield the whole events of each read, each decoded, counted and encoded again."""
    rest, tokens = b"", 0
    async for data in content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        encoded = []
        for event in events:
            if event == b"data: [DONE]":
                encoded.append(b"data: [DONE]\n\n")
                continue
            chunk = decode(event.removeprefix(b"data: "))
            tokens += sum(bool(choice["delta"].get("content")) for choice in chunk["choices"])
            encoded.append(b"data: %s\n\n" % encode(chunk))
        if encoded:
            yield b"".join(encoded)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="The floor of chatapi's shape, on 127.0.0.1.")
    parser.add_argument("role", choices=["web", "worker"])
    parser.add_argument("--redis", required=True, help="the path of its Unix socket")
    parser.add_argument("--port", type=int)
    parser.add_argument("--upstream-url")
    arguments = parser.parse_args()
    redis = Redis(unix_socket_path=arguments.redis, max_connections=4096, socket_timeout=None)
    if arguments.role == "worker":
        uvloop.run(Worker(redis, arguments.upstream_url).run())
        return
    server = Web(redis)
    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(server.read_inbox)
    app.router.add_post("/v1/chat/completions", server.chat_completions)
    loop = uvloop.new_event_loop()
    port = arguments.port
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None, backlog=4096, loop=loop)


if __name__ == "__main__":
    main()
