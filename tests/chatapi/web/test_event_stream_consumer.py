"""The consumer that ends with its client: over sockets on two servers, and by hand as the ASGI application
that it is.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chatapi.web.event_stream_consumer import EventStreamConsumer
from tests.chatapi.web.probe_process import Probe, running

LAST_BODY = {"type": "http.request", "body": b"", "more_body": False}
DISCONNECT = {"type": "http.disconnect"}


@pytest.fixture(scope="module", params=["daphne", "uvicorn"])
def probe(request: pytest.FixtureRequest) -> Iterator[Probe]:
    if request.param == "uvicorn":
        pytest.importorskip("uvicorn")
    with running(request.param) as probe:
        yield probe


class Exchange:
    """One request, driven by hand: put messages into `incoming`, find the consumer's in `sent`."""

    def __init__(self, consumer: type[EventStreamConsumer], *messages: dict[str, Any]) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.incoming.put_nowait(message)
        self.sent: list[dict[str, Any]] = []
        self.task = asyncio.create_task(consumer.as_asgi()({"type": "http"}, self.incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


class Waiting(EventStreamConsumer):
    """Waits for ever; its end takes a moment, in which it notes that it had one."""

    def __init__(self, log: list[str], started: asyncio.Event) -> None:
        self.log = log
        self.started = started

    async def handle(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.log.append("cleaned up")


# On two servers


def test_a_client_that_leaves_ends_the_stream_at_once(probe: Probe) -> None:
    """Channels' own AsyncHttpConsumer notices at its next message, which is a minute away here
    (channels#1249).
    """
    with probe.client() as client:
        client.get("/ticks?watch=left&count=1000&every=60")
        client.head()
    left = time.monotonic()
    report = probe.ask("/report?watch=left")
    assert report["end"] == "cancelled"
    assert time.monotonic() - left < 1
    assert report["tasks"].count("EventStreamConsumer._handle") == 1  # the report's own


def test_what_follows_the_response_is_not_cut_off(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/lingering?watch=lingering")
        assert client.response().body == b"done"
    assert probe.ask("/report?watch=lingering")["end"] == "finished"


def test_an_error_can_be_answered(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/failing?handled=1")
        response = client.response()
    assert (response.status, response.body) == (418, b"the probe was asked to fail")


def test_a_connection_serves_one_request_after_the_other(probe: Probe) -> None:
    with probe.client() as client:
        for _ in range(3):
            client.get("/two-pieces")
            assert client.response().body == b"halfhalf"


# By hand


async def test_it_joins_the_body() -> None:
    class Measuring(EventStreamConsumer):
        async def handle(self) -> None:
            await self.send_body(await self.read_body(), more=False)

    exchange = Exchange(
        Measuring,
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"c"},
    )
    await exchange.task
    assert exchange.sent == [{"type": "http.response.body", "body": b"abc", "more_body": False}]


async def test_it_reads_nothing_that_handle_does_not_ask_for() -> None:
    class Refusing(EventStreamConsumer):
        async def handle(self) -> None:
            await self.send_body(b"no", more=False)

    exchange = Exchange(
        Refusing,
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"c"},
    )
    await exchange.task
    assert exchange.sent == [{"type": "http.response.body", "body": b"no", "more_body": False}]
    assert exchange.incoming.qsize() == 1


async def test_a_client_that_leaves_while_it_sends_the_body_ends_handle() -> None:
    ends: list[str] = []

    class Reading(EventStreamConsumer):
        async def handle(self) -> None:
            try:
                await self.read_body()
            finally:
                ends.append("read")
            ends.append("handled")

    exchange = Exchange(Reading, {"type": "http.request", "body": b"ab", "more_body": True}, DISCONNECT)
    await exchange.task
    assert (ends, exchange.sent) == (["read"], [])


async def test_a_client_that_leaves_behind_the_body_ends_handle() -> None:
    class Reading(EventStreamConsumer):
        async def handle(self) -> None:
            await self.read_body()
            await asyncio.Event().wait()

    pieces: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"c"},
    ]
    exchange = Exchange(Reading, *pieces, DISCONNECT)
    async with asyncio.timeout(5):
        await exchange.task


async def test_it_waits_for_the_clean_up_of_a_handle_that_it_cancels() -> None:
    log: list[str] = []
    started = asyncio.Event()
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait(LAST_BODY)
    task = asyncio.create_task(
        Waiting.as_asgi(log=log, started=started)({"type": "http"}, incoming.get, None)
    )
    await started.wait()
    incoming.put_nowait(DISCONNECT)
    await task
    assert log == ["cleaned up"]


async def test_it_leaves_no_task_behind_when_it_is_cancelled_itself() -> None:
    log: list[str] = []
    started = asyncio.Event()
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait(LAST_BODY)
    task = asyncio.create_task(
        Waiting.as_asgi(log=log, started=started)({"type": "http"}, incoming.get, None)
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cleaned up"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_handle_that_is_cancelled_knows_that_its_body_is_not_whole() -> None:
    known: list[bool] = []
    started = asyncio.Event()

    class Looking(EventStreamConsumer):
        async def handle(self) -> None:
            started.set()
            try:
                await self.read_body()
            finally:
                await asyncio.sleep(0)  # a clean-up that waits
                known.append(self.has_more_body)

    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": b"a", "more_body": True})
    task = asyncio.create_task(Looking.as_asgi()({"type": "http"}, incoming.get, None))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert known == [True]


async def test_an_error_is_the_servers_unless_a_subclass_answers_it() -> None:
    class Failing(EventStreamConsumer):
        async def handle(self) -> None:
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await Exchange(Failing, LAST_BODY).task


async def test_it_asks_for_no_channel_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel layer would cost each request a round trip to Redis."""
    monkeypatch.setattr("channels.consumer.get_channel_layer", None)  # calling it is an error
    await Exchange(EventStreamConsumer, DISCONNECT).task
