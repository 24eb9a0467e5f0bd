"""A scripted OpenAI-compatible upstream that misbehaves on request, and records its calls and the tokens
that it sent.

    python -m tests.fake_upstream --port 0         prints {"port": 12345} and dies with its parent
    async with fake_upstream.serve() as upstream:  in this process; upstream.url, upstream.calls

The model's name is the script: `fake` sends five tokens, `fake:tokens=20,rate=100,crlf` is any other `Script`
(a flag alone is true). `POST /script {"name": "any/name", "script": {"tokens": 20}}` gives a script a name of
its own. Other models are a 404. Every token sent is one token of o200k_base, alone and joined to its
neighbours. `GET /stats` lists all calls (`Received`), `GET /v1/models` the names. A request's `max_tokens`,
`n`, `logprobs` and `stream_options.include_usage` are obeyed.
"""

import argparse
import asyncio
import ctypes
import json
import math
import signal
import socket
import struct
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import msgspec
from aiohttp import web

from tests.fake_completion import Completion, Script, embeddings, error


class Received(msgspec.Struct, kw_only=True):
    """One call, as `/stats` tells it; times are seconds since the epoch."""

    path: str
    client_port: int
    """The same for two calls on one connection."""
    headers: dict[str, str]
    body: dict[str, Any]
    opened_at: float
    tokens: int = 0
    is_completed: bool = False
    is_peer_gone: bool = False
    """The client closed the connection before the end."""
    closed_at: float | None = None


class Upstream:
    """The server's state: its scripts and its calls."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[Received] = []
        self._scripts: dict[str, Script] = {}
        self._asked: Counter[str] = Counter()
        self._served_at: defaultdict[str, deque[float]] = defaultdict(deque)
        self._changed = asyncio.Condition()

    def app(self) -> web.Application:
        """Return the application with its routes."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/script", self._set_script)
        app.router.add_get("/stats", self._tell_stats)
        app.router.add_get("/v1/models", self._tell_models)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/embeddings", self._complete)
        app.router.add_post("/v1/messages", self._complete)
        return app

    async def received(self, number: int = 0) -> Received:
        """Wait until call `number` is there."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.calls) > number)
        return self.calls[number]

    async def closed(self, number: int = 0) -> Received:
        """Wait until call `number` has ended, one way or the other."""
        call = await self.received(number)
        async with self._changed:
            await self._changed.wait_for(lambda: call.closed_at is not None)
        return call

    def name_script(self, name: str, script: Script) -> None:
        """Give a script a name of its own."""
        self._scripts[name] = script
        self._asked[name] = 0

    def script(self, model: str) -> Script | None:
        """Return the model's script; None if there is no such model."""
        name, _, options = model.partition(":")
        if model in self._scripts or name != "fake":
            return self._scripts.get(model)
        pairs = (option.partition("=") for option in options.split(",") if option)
        return msgspec.convert({key: value or "true" for key, _, value in pairs}, Script, strict=False)

    def _script_of_call(self, model: str) -> Script | None:
        """Return the script for the next call, with status 200 if the script refuses other calls only."""
        script = self.script(model)
        if script is None or self._refuses(model, script):
            return script
        return msgspec.structs.replace(script, status=200)

    def _refuses(self, model: str, script: Script) -> bool:
        asked = self._asked[model]
        self._asked[model] += 1
        if script.per_second is not None:
            served_at, now = self._served_at[model], time.monotonic()
            while served_at and served_at[0] < now - 1:
                served_at.popleft()
            if len(served_at) < script.per_second:
                served_at.append(now)
                return False
        is_first = script.fail_first is None or asked < script.fail_first
        return is_first and int((asked + 1) * script.fail_share) > int(asked * script.fail_share)

    async def _set_script(self, request: web.Request) -> web.Response:
        named = await request.json()
        self.name_script(named["name"], msgspec.convert(named["script"], Script))
        return web.json_response({})

    async def _tell_stats(self, _: web.Request) -> web.Response:
        stats = {
            "requests": len(self.calls),
            "tokens": sum(call.tokens for call in self.calls),
            "calls": self.calls,
        }
        return web.Response(body=msgspec.json.encode(stats), content_type="application/json")

    async def _tell_models(self, _: web.Request) -> web.Response:
        names = ["fake", *self._scripts]
        return web.json_response(
            {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        call = _received(request, body)
        self.calls.append(call)
        await self._tell_change()
        try:
            response = await _answer(request, self._script_of_call(body["model"]), call)
            call.is_completed = request.transport is not None and not request.transport.is_closing()
            return response
        except (asyncio.CancelledError, ConnectionError):
            call.is_peer_gone = True
            raise
        finally:
            call.closed_at = time.time()
            await self._tell_change()

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serve(port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[Upstream]:
    """Run the upstream in this event loop."""
    upstream = Upstream()
    runner = web.AppRunner(upstream.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=4096).start()
    upstream.url = f"http://{host}:{runner.addresses[0][1]}/v1"
    try:
        yield upstream
    finally:
        for site in runner.sites:
            await site.stop()
        # asyncio hands an accepted connection over within three turns; `cleanup` closes those that it knows.
        for _ in range(3):
            await asyncio.sleep(0)
        await runner.cleanup()


def _received(request: web.Request, body: dict[str, Any]) -> Received:
    assert request.transport is not None
    port: int = request.transport.get_extra_info("peername")[1]
    return Received(
        path=request.path, client_port=port, headers=dict(request.headers), body=body, opened_at=time.time()
    )


async def _answer(request: web.Request, script: Script | None, call: Received) -> web.StreamResponse:
    if script is None:
        return _refusal(
            Script(
                status=404,
                error_code="model_not_found",
                error_message=f"The model `{call.body['model']}` does not exist",
            )
        )
    await asyncio.sleep(script.ttft_ms / 1000)
    if script.redirect is not None or script.html or script.status != 200:
        return _refusal(script)
    if request.path == "/v1/embeddings":
        return await _embeddings(request, script, call)
    completion = Completion(script, call.body, is_text=request.path == "/v1/completions")
    if script.as_json:
        call.tokens = completion.total_tokens
        return web.json_response(completion.whole())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    stream = _Stream(request, response, script, call)
    await (stream.send(completion) if script.raw is None else stream.write(script.raw.encode()))
    return response


async def _embeddings(request: web.Request, script: Script, call: Received) -> web.StreamResponse:
    asked = call.body["input"]
    call.tokens = 1
    document = embeddings(script, call.body, asked if isinstance(asked, list) else [asked])
    text = json.dumps(document) if script.raw is None else script.raw
    if not script.split:
        return web.Response(text=text, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await _Stream(request, response, script, call).write(text.encode())
    return response


def _refusal(script: Script) -> web.Response:
    if script.redirect is not None:
        return web.Response(status=307, headers={"Location": script.redirect})
    if script.html:
        return web.Response(
            status=script.status, text="<html><body>nginx at 10.0.0.7</body></html>", content_type="text/html"
        )
    waits = {"Retry-After": script.retry_after, "Retry-After-Ms": script.retry_after_ms}
    headers = {name: wait for name, wait in waits.items() if wait}
    return web.json_response(error(script), status=script.status, headers=headers)


class _Stream:
    """The form of an answer: the events' bytes, their pace, and the places where the script breaks off."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, script: Script, call: Received
    ) -> None:
        self._request, self._response = request, response
        self._script, self._call = script, call
        self._started_at = time.monotonic()

    async def send(self, completion: Completion) -> None:
        """Send the whole stream."""
        if not completion.is_text:
            await self._send_chunk(completion, {"role": "assistant", "content": ""})
        for delta, index in product(completion.deltas, range(completion.n)):
            if await self._is_broken_off():
                return
            await self._keep_pace()
            await self._send_chunk(completion, delta, index)
            self._call.tokens += 1
        if not await self._is_broken_off():
            await self._finish(completion)

    async def write(self, data: bytes) -> None:
        """Write these bytes, with the script's line ends and in its pieces."""
        if self._script.crlf:
            data = data.replace(b"\n", b"\r\n")
        size = self._script.split or len(data)
        for start in range(0, len(data), size):
            await self._response.write(data[start : start + size])
        if not self._script.rate:
            await asyncio.sleep(0)

    async def _finish(self, completion: Completion) -> None:
        script = self._script
        usage = {"usage": completion.usage(self._call.tokens)}
        finish = [completion.choice(index, {}, completion.finish_reason) for index in range(completion.n)]
        if script.usage_by_choice:
            await self._finish_by_choice(completion, finish)
            return
        await self._send_event(completion.chunk(finish, **(usage if script.usage_on_finish else {})))
        is_usual = not (script.usage_on_finish or script.usage_every_chunk or script.usage_after_done)
        if completion.sends_usage and is_usual:
            await self._send_event(completion.chunk(None if script.null_choices else [], **usage))
        if not script.fin_without_done:
            await self.write(b"data: [DONE]\n\n")
        if script.usage_after_done:
            await self._send_event(completion.chunk([], **usage))

    async def _finish_by_choice(self, completion: Completion, finish: list[dict[str, Any]]) -> None:
        usage = {"usage": completion.usage(len(completion.deltas))}
        for choice in finish:
            await self._send_event(completion.chunk([choice], **(usage if completion.is_text else {})))
            if not completion.is_text:
                await self._send_event(completion.chunk([], **usage))
        await self.write(b"data: [DONE]\n\n")

    async def _send_chunk(self, completion: Completion, delta: dict[str, Any], index: int = 0) -> None:
        usage = {"usage": completion.usage(self._call.tokens + 1)} if self._script.usage_every_chunk else {}
        role = {"role": "assistant"} if self._script.repeat_role else {}
        await self._send_event(completion.chunk([completion.choice(index, {**role, **delta})], **usage))
        if self._script.null_choices:
            await self._send_event(completion.chunk(None))

    async def _send_event(self, document: dict[str, Any], event_type: str = "") -> None:
        data = b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
        if event_type:
            data = f"event: {event_type}\n".encode() + data
        await self.write((b": processing\n\n" if self._script.comments else b"") + data)

    async def _keep_pace(self) -> None:
        if self._script.rate:
            await asyncio.sleep(self._started_at + self._call.tokens / self._script.rate - time.monotonic())

    async def _is_broken_off(self) -> bool:
        """Do what the script says at this token; return whether that was the end."""
        script, sent = self._script, self._call.tokens
        if sent == script.bad_json:
            await self.write(b'data: {"choices": [{\n\n')
        if sent == script.huge_frame:
            await self._send_event({"choices": [{"index": 0, "delta": {"content": "x" * script.huge_bytes}}]})
        if sent == script.stall_after:
            await asyncio.sleep(math.inf if script.stall_ms is None else script.stall_ms / 1000)
        if sent == script.error_frame:
            document = error(script)
            await self._send_event(
                document["error"] if script.flat_error else document, "error" if script.flat_error else ""
            )
        if sent in (script.rst_after, script.fin_after):
            self._cut(is_reset=sent == script.rst_after)
        return sent in (script.error_frame, script.rst_after, script.fin_after)

    def _cut(self, *, is_reset: bool) -> None:
        transport = self._request.transport
        if transport is None:
            return
        if is_reset:  # lingering for 0 s turns the close into a reset
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        transport.close()


async def _run(host: str, port: int) -> None:
    async with serve(port, host) as upstream:
        print(json.dumps({"port": int(upstream.url.rsplit(":", 1)[1].split("/")[0])}), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until killed, at the latest when the parent process dies."""
    parser = argparse.ArgumentParser(
        prog="tests.fake_upstream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    options = parser.parse_args()
    asyncio.run(_run(options.host, options.port))


if __name__ == "__main__":
    main()
