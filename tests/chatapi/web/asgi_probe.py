"""A small ASGI application to look at a server from inside, and its main program: `asgi_probe.py
daphne|uvicorn LIMITS_AS_JSON`.

Each line on standard output is one thing that happened: `listening PORT`, `draining`, `deadline`.
"""

import asyncio
import contextlib
import json
import logging
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chatapi.web.event_stream_consumer import EventStreamConsumer

CHUNK_BYTES = 16_384


@dataclass
class Watch:
    """What became of one stream."""

    sent_bytes: int = 0
    end: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    pieces: list[int] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


watches: dict[str, Watch] = defaultdict(Watch)
farewell = asyncio.Event()


class Flood(EventStreamConsumer):
    """Sends `?bytes=` bytes, in pieces of `?piece=`, as fast as the client takes them and notes in `?watch=`
    how far it came.
    """

    async def handle(self) -> None:
        query = _query(self.scope)
        watch, piece_bytes = watches[query["watch"]], int(query.get("piece", CHUNK_BYTES))
        try:
            await self.send_headers(200, [(b"content-type", b"application/octet-stream")])
            while watch.sent_bytes < int(query["bytes"]):
                await self.send_body(b"x" * piece_bytes)
                watch.sent_bytes += piece_bytes
                await asyncio.sleep(0)
            await self.send_body(b"", more=False)
            watch.end = "finished"
        except asyncio.CancelledError:
            watch.end = "cancelled"
            raise
        finally:
            watch.ended.set()


class Ticks(EventStreamConsumer):
    """Sends a tick every `?every=` seconds, `?count=` times or until the process says farewell."""

    async def handle(self) -> None:
        query = _query(self.scope)
        watch = watches[query["watch"]]
        await self.read_body()
        try:
            await self.send_headers(200, [(b"content-type", b"text/event-stream")])
            for number in range(int(query["count"])):
                await self.send_body(b"data: %d\n\n" % number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(farewell.wait(), float(query["every"]))
                    break
            await self.send_body(b"data: [DONE]\n\n", more=False)
            watch.end = "finished"
        except asyncio.CancelledError:
            watch.end = "cancelled"
            raise
        finally:
            watch.ended.set()


class Lingering(EventStreamConsumer):
    """Completes its response and goes on working; the client hangs up meanwhile."""

    async def handle(self) -> None:
        watch = watches[_query(self.scope)["watch"]]
        try:
            await self.send_headers(200, [])
            await self.send_body(b"done", more=False)
            for _ in range(20):
                await asyncio.sleep(0.01)
            watch.end = "finished"
        finally:
            watch.ended.set()


class Failing(EventStreamConsumer):
    """Fails before its response, or with `?after=` in the middle; with `?handled=` it answers for itself."""

    async def handle(self) -> None:
        if "after" in _query(self.scope):
            await self.send_headers(200, [])
            await self.send_body(b"the first half")
        raise RuntimeError("the probe was asked to fail")

    async def handle_error(self, error: Exception) -> None:
        if "handled" not in _query(self.scope):
            await super().handle_error(error)
        await self.send_headers(418, [])
        await self.send_body(str(error).encode(), more=False)


class Report(EventStreamConsumer):
    """Waits until the stream `?watch=` has ended, unless asked for `?now=`, and tells what became of it."""

    async def handle(self) -> None:
        query = _query(self.scope)
        is_begun = query["watch"] in watches
        watch = watches[query["watch"]]
        if "now" not in query:
            await watch.ended.wait()
        tasks = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        await _answer(
            self,
            {
                "sent_bytes": watch.sent_bytes,
                "end": watch.end,
                "pieces": watch.pieces,
                "is_begun": is_begun,
                "tasks": tasks,
            },
        )


class Echo(EventStreamConsumer):
    """Answers with what it was asked; the body's length stands for the body."""

    async def handle(self) -> None:
        scope = self.scope
        headers = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
        parts = {
            "method": scope["method"],
            "path": scope["path"],
            "root_path": scope["root_path"],
            "headers": headers,
        }
        await _answer(self, {**parts, "body_bytes": len(await self.read_body())})


class TwoPieces(EventStreamConsumer):
    """Sends its body in two pieces, for every method."""

    async def handle(self) -> None:
        await self.send_headers(200, [(b"content-length", b"8")])
        await self.send_body(b"half")
        await self.send_body(b"half", more=False)


async def _silent(scope: Any, receive: Any, send: Any) -> None:
    """Returns without a response."""


async def _pieces(scope: Any, receive: Any, send: Any) -> None:
    """Takes `?first=` messages of its body, waits for `/go-on`, takes the rest and answers with the sizes of
    all; notes them in `?watch=`.

    With `?answer=` it answers at once, without the rest.
    """
    query = _query(scope)
    watch = watches[query["watch"]]
    more = True
    while more:
        if len(watch.pieces) == int(query["first"]):
            if "answer" in query:
                break
            await watch.go_on.wait()
        message = await receive()
        if message["type"] == "http.disconnect":
            watch.end = "disconnected"
            watch.ended.set()
            return
        watch.pieces.append(len(message["body"]))
        more = message["more_body"]
    body = json.dumps(watch.pieces).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})
    watch.end = (await receive())["type"]
    watch.ended.set()


async def _twice(scope: Any, receive: Any, send: Any) -> None:
    """Answers, sends the body once more, and notes in `?watch=` what became of that."""
    watch = watches[_query(scope)["watch"]]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    body = {"type": "http.response.body", "body": b"ok"}
    await send(body)
    try:
        await send(body)
        watch.end = "dropped"
    except Exception as error:
        watch.end = repr(error)
    watch.ended.set()


async def _go_on(scope: Any, receive: Any, send: Any) -> None:
    """Lets `/pieces` go on; answers with what it has so far."""
    watch = watches[_query(scope)["watch"]]
    watch.go_on.set()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"[]"})


async def _websocket(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    if "busy" in (query := _query(scope)):
        await send({"type": "websocket.accept"})
        await farewell.wait()
        return
    if "watch" in query:
        watches[query["watch"]].ended.set()
        await receive()  # this consumer accepts nobody
        return
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


ROUTES = {
    "/flood": Flood.as_asgi(),
    "/ticks": Ticks.as_asgi(),
    "/lingering": Lingering.as_asgi(),
    "/failing": Failing.as_asgi(),
    "/report": Report.as_asgi(),
    "/two-pieces": TwoPieces.as_asgi(),
    "/silent": _silent,
    "/pieces": _pieces,
    "/twice": _twice,
    "/go-on": _go_on,
}
echo = Echo.as_asgi()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Routes by path; every path without a route is an echo."""
    if scope["type"] == "websocket":
        await _websocket(scope, receive, send)
    elif scope["type"] == "http":
        await ROUTES.get(scope["path"], echo)(scope, receive, send)


def _query(scope: Any) -> dict[str, str]:
    return dict(pair.split("=") for pair in scope["query_string"].decode().split("&") if pair)


async def _answer(consumer: EventStreamConsumer, value: object) -> None:
    await consumer.send_headers(200, [(b"content-type", b"application/json")])
    await consumer.send_body(json.dumps(value).encode(), more=False)


class MessagesOnly(logging.StreamHandler):  # type: ignore[type-arg]
    """Logs a line for each record, without tracebacks, for the tests to compare with what they expect."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage()


def serve_with_daphne(limits: dict[str, Any]) -> None:
    """Serves the application on a free port with the server under test."""
    from chatapi.web.server.listening_socket import listen
    from chatapi.web.server.server import serve
    from chatapi.web.server.server_limits import ServerLimits
    from chatapi.web.server.transport import loop

    def end_streams() -> None:
        print("deadline", flush=True)
        farewell.set()

    proxies = limits.pop("trusted_proxies", ())
    server_limits = ServerLimits(**limits)
    listener = listen("127.0.0.1", 0, user_timeout_seconds=server_limits.user_timeout_seconds)
    # Printed when the loop turns, and the server handles signals.
    loop.call_soon(partial(print, "listening", listener.getsockname()[1], flush=True))
    serve(
        application,
        listener=listener,
        limits=server_limits,
        trusted_proxies=proxies,
        on_draining=partial(print, "draining", flush=True),
        on_deadline=end_streams,
    )


def serve_with_uvicorn() -> None:
    """Serves the application on a free port with a server that is nothing to us."""
    import uvicorn

    config = uvicorn.Config(
        application, port=0, lifespan="off", ws="none", log_config=None, log_level="error"
    )
    listener = config.bind_socket()
    listener.listen()
    print("listening", listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    logging.basicConfig(handlers=[MessagesOnly()], level=logging.ERROR)
    if sys.argv[1] == "uvicorn":
        serve_with_uvicorn()
    else:
        serve_with_daphne(json.loads(sys.argv[2]))
