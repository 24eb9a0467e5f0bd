"""Every client of Redis verifies the server's certificate and its name."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
from celery import Celery
from kombu.exceptions import OperationalError
from pytest_django.fixtures import Settings
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from accounts import redis_sentinel
from chatapi.celery import broker_settings
from chatapi.redis_client import DedicatedConnection, connect, connect_from_thread
from chatapi.redis_servers import servers_away
from chatapi.worker import message_channel
from chatapi.worker.slot_shares import SlotShares
from tests.chatapi.worker.processes import Valkey, eventually
from tests.installation import free_port
from tests.sentinel_stub import SentinelStub, serve_sentinel


@dataclass
class Server:
    """A TLS port in front of a Valkey; its certificate is valid for 127.0.0.1 only."""

    port: int
    certificate: Path


@pytest.fixture
async def server(shared_valkey: Valkey, certificate: Path) -> AsyncIterator[Server]:
    """Serve TLS here, because the Valkey that pip installs is built without it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key"))

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_unix_connection(shared_valkey.socket)
        await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))

    listening = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    yield Server(listening.sockets[0].getsockname()[1], certificate)
    listening.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def ask_on_event_loop(url: str) -> None:
    async def ask() -> None:
        redis = connect(url)
        try:
            await redis.ping()
        finally:
            await redis.aclose()

    asyncio.run(ask())


def ask_from_thread(url: str) -> None:
    with connect_from_thread(url) as redis:
        redis.ping()


def ask_as_celery(url: str) -> None:
    app = Celery("probe", fixups=[])
    app.conf.update(broker_settings(url))
    with app.connection_for_read() as connection:
        # As in a worker (`PatientConsumer`); the stub knows only names of transports.
        connection.transport_cls = message_channel.transport(  # type: ignore[assignment]
            lambda: 1, SlotShares()
        )
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        channel: Any = connection.default_channel
        channel.client.ping()


@pytest.mark.parametrize("ask", [ask_on_event_loop, ask_from_thread, ask_as_celery])
async def test_only_a_certificate_that_is_trusted_and_names_the_host_is_accepted(
    server: Server, ask: Callable[[str], None]
) -> None:
    trusted = f"?ssl_ca_certs={server.certificate}"
    await asyncio.to_thread(ask, f"rediss://127.0.0.1:{server.port}/0{trusted}")
    for refused in (f"127.0.0.1:{server.port}/0", f"localhost:{server.port}/0{trusted}"):
        with pytest.raises((RedisError, OperationalError), match=r"(?i)certificate"):
            await asyncio.to_thread(ask, f"rediss://{refused}")


@pytest.mark.parametrize("is_broker", [False, True])
async def test_a_server_that_answers_and_closes_no_connection_is_there(
    certificate: Path, settings: Settings, is_broker: bool
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key"))

    def answer(listening: socket.socket) -> socket.socket:
        accepted, _ = listening.accept()
        encrypted = context.wrap_socket(accepted, server_side=True)
        while b"PING" not in (sent := encrypted.recv(4_096)):
            encrypted.sendall(b"%0\r\n" if b"HELLO" in sent else b"+OK\r\n" * sent.count(b"*"))
        encrypted.sendall(b"+PONG\r\n")
        return encrypted  # nothing reads that the client closes the connection

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as server:
        url = f"rediss://127.0.0.1:{listening.getsockname()[1]}?ssl_ca_certs={certificate}"
        settings.STREAMS_URL, settings.BROKER_URL = url, url
        if is_broker:
            settings.STREAMS_URL = "redis://127.0.0.1:1"
        answered = server.submit(answer, listening)
        assert url not in await servers_away(5)
        answered.result().close()


@pytest.mark.parametrize("has_sentinel", [False, True])
async def test_connections_of_one_minute_read_the_certificates_once(
    server: Server, sentinel: SentinelStub, monkeypatch: pytest.MonkeyPatch, has_sentinel: bool
) -> None:
    contexts, create = list[ssl.SSLContext](), ssl.create_default_context

    def create_context() -> ssl.SSLContext:
        contexts.append(create())
        return contexts[-1]

    monkeypatch.setattr(redis_sentinel, "_certificates", {})
    monkeypatch.setattr(ssl, "create_default_context", create_context)
    port, scheme = (sentinel.port, "rediss+sentinel") if has_sentinel else (server.port, "rediss")
    url = f"{scheme}://127.0.0.1:{port}/{'main' * has_sentinel}?ssl_ca_certs={server.certificate}"

    async def ask(at_s: float) -> int:
        monkeypatch.setattr(time, "monotonic", lambda: at_s)
        redis = connect(url)
        await redis.ping()
        await redis.aclose()
        return len(contexts)

    assert [await ask(at_s) for at_s in (60, 61, 119, 120)] == [1, 1, 1, 2]


@pytest.fixture
async def sentinel(server: Server) -> AsyncIterator[SentinelStub]:
    """Serve TLS as a sentinel of the server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.certificate, server.certificate.with_name("key"))
    async with serve_sentinel(server.port, context) as stub:
        yield stub


@pytest.mark.parametrize("ask", [ask_on_event_loop, ask_from_thread, ask_as_celery])
async def test_sentinels_and_the_primary_that_they_name_are_verified(
    server: Server, sentinel: SentinelStub, ask: Callable[[str], None]
) -> None:
    trusted = f"?ssl_ca_certs={server.certificate}"
    await asyncio.to_thread(ask, f"rediss+sentinel://127.0.0.1:{sentinel.port}/main/0{trusted}")
    for refused in (f"127.0.0.1:{sentinel.port}/main", f"localhost:{sentinel.port}/main{trusted}"):
        with pytest.raises((RedisError, OperationalError), match=r"(?i)certificate"):
            await asyncio.to_thread(ask, f"rediss+sentinel://{refused}")


async def test_connections_leave_a_replaced_primary_even_if_one_was_closed(
    server: Server, sentinel: SentinelStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sentinel, "WATCH_S", 0.05)
    url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/main?ssl_ca_certs={server.certificate}"

    async def wait_for_the_next_primary() -> None:
        redis = connect(url)
        closed, line = DedicatedConnection(redis), DedicatedConnection(redis)
        await closed.call("QUIT")
        with connect_from_thread(url) as blocking:
            waiting = [
                asyncio.ensure_future(line.call("BLPOP", "nothing", 10)),
                asyncio.ensure_future(asyncio.to_thread(blocking.blpop, ["nothing"], 10)),
            ]
            await asyncio.sleep(0.1)
            sentinel.primary = free_port()
            for each in waiting:
                with pytest.raises(RedisConnectionError):
                    await each
            asked = sentinel.questions
            await asyncio.to_thread(eventually, lambda: sentinel.questions > asked)
        await redis.aclose()

    def run_as_the_processes_do() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(wait_for_the_next_primary())

    await asyncio.to_thread(run_as_the_processes_do)
