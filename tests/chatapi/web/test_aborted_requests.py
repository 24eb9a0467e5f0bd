"""A request that the server cancels leaves no error behind that asyncio logs as never retrieved."""

import asyncio
import gc
from typing import Any

import pytest

from chatapi.asgi import django_application
from chatapi.web.event_stream_consumer import EventStreamConsumer

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/healthz",
    "raw_path": b"/healthz",
    "query_string": b"",
    "headers": [],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 80),
    "scheme": "http",
}


class FailsAtItsEnd(EventStreamConsumer):
    """A handler whose cleanup fails, with any arguments."""

    async def handle(self, *body: bytes) -> None:
        """Wait to be cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cleanup")


# Django leaves the body's buffer to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "application", [FailsAtItsEnd.as_asgi(), django_application], ids=["hot route", "Django"]
)
async def test_no_task_is_left_with_an_error_that_nobody_retrieves(application: Any) -> None:
    unretrieved: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unretrieved.append(context))
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    asked = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages.empty():
            asked.set()  # for the client's leaving: the request is being handled
        return await messages.get()

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)

    serving = asyncio.create_task(application(SCOPE, receive, send))
    await asked.wait()
    serving.cancel()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.wait([serving])
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.01)
    del serving
    gc.collect()
    assert unretrieved == []
