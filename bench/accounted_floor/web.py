"""The web process: a Channels consumer in chatapi's server, which is Daphne's with other connections."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.typing import ASGI3Application
from channels.consumer import AsyncConsumer
from channels.routing import ProtocolTypeRouter

from accounts.loop_clock import clock
from bench import floor
from bench.accounted_floor import books
from bench.accounted_floor.commands import Commands, celery_message
from chatapi.concurrency import Batch
from chatapi.serving.process_tuning import tune_process
from chatapi.web.server.listening_socket import listen
from chatapi.web.server.server import serve
from chatapi.web.server.server_limits import ServerLimits
from chatapi.web.server.transport import loop
from usage.database.group_commit import GroupCommit

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Web(floor.Web):
    """One web process: commits the hold, sends the message, and relays what arrives in its inbox."""

    def __init__(self) -> None:
        commands: Any = Commands()
        super().__init__(commands)
        self.commits = GroupCommit()
        # Reading keeps its connection busy.
        self.enqueue = Batch(Commands().enqueue)

    async def answer(self, body: bytes, send: Send) -> None:
        number = next(self.numbers)
        answer = self.answers[number] = asyncio.Queue()
        try:
            await self.commits.write(books.hold, number)
            await self.enqueue((number, celery_message(floor.Job(self.inbox, number, body))))
            data = await answer.get()
            if data.startswith(b"{"):
                await send_head(send, b"application/json", (b"content-length", b"%d" % len(data)))
                await send({"type": "http.response.body", "body": data})
                return
            await send_head(send, b"text/event-stream")
            is_last = False
            while not is_last:
                pieces = [data]
                while not answer.empty():
                    pieces.append(answer.get_nowait())
                is_last = not pieces[-1]
                body = b"".join(pieces)
                await send({"type": "http.response.body", "body": body, "more_body": not is_last})
                data = b"" if is_last else await answer.get()
        finally:
            del self.answers[number]


async def send_head(send: Send, content_type: bytes, *more: tuple[bytes, bytes], status: int = 200) -> None:
    """Begin a response."""
    headers = [(b"content-type", content_type), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})


class ChatCompletions(AsyncConsumer):  # type: ignore[misc]  # Channels has no types
    """Channels' consumer of one request."""

    def __init__(self, web: Web) -> None:
        self.web = web

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Read the body and answer it."""
        message = await receive()
        body: bytes = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        if scope["method"] == "POST":
            await self.web.answer(body, send)
            return
        await send_head(send, b"text/plain", status=405)
        await send({"type": "http.response.body", "body": b""})


def run_web(port: int) -> None:
    """Serve until a signal."""
    books.make_tables()
    limits = ServerLimits(lame_duck_seconds=0, drain_seconds=1)
    listener = listen("127.0.0.1", port, user_timeout_seconds=limits.user_timeout_seconds)
    web = Web()
    application: ASGI3Application = ProtocolTypeRouter({"http": ChatCompletions.as_asgi(web=web)})
    tune_process()
    clock.start(loop)
    reading = loop.create_task(web.read())

    def stop_reading() -> None:
        reading.cancel()

    serve(
        application,
        listener=listener,
        limits=limits,
        trusted_proxies=(),
        on_draining=stop_reading,
        on_deadline=lambda: None,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The accounted floor's web process, on 127.0.0.1.")
    parser.add_argument("--port", type=int, required=True)
    run_web(parser.parse_args().port)
