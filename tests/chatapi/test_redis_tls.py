"""Every client of Redis verifies the server's certificate and its name."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from chatapi.celery import broker_settings
from chatapi.redis_client import connect, connect_from_thread
from chatapi.worker import message_channel
from chatapi.worker.slot_shares import SlotShares
from tests.chatapi.worker.processes import Valkey


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


@pytest.fixture
async def sentinel(server: Server) -> AsyncIterator[int]:
    """Serve TLS as a sentinel that knows nothing but where the primary is; yield the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server.certificate, server.certificate.with_name("key"))
    known = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(server.port))}\r\n{server.port}\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while head := await reader.readline():
                words = [await reader.readline() for _ in range(2 * int(head[1:]))][1::2]
                replies = {b"HELLO": b"%1\r\n+proto\r\n:3\r\n", b"SENTINEL": known}
                writer.write(replies.get(words[0].strip(), b"+OK\r\n"))
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    yield listening.sockets[0].getsockname()[1]
    listening.close()


@pytest.mark.parametrize("ask", [ask_on_event_loop, ask_from_thread, ask_as_celery])
async def test_sentinels_and_the_primary_that_they_name_are_verified(
    server: Server, sentinel: int, ask: Callable[[str], None]
) -> None:
    trusted = f"?ssl_ca_certs={server.certificate}"
    await asyncio.to_thread(ask, f"rediss+sentinel://127.0.0.1:{sentinel}/main/0{trusted}")
    for refused in (f"127.0.0.1:{sentinel}/main", f"localhost:{sentinel}/main{trusted}"):
        with pytest.raises((RedisError, OperationalError), match=r"(?i)certificate"):
            await asyncio.to_thread(ask, f"rediss+sentinel://{refused}")
