"""The load generator's HTTP client: keeps connections, and stores every answer's bytes with their times of
arrival.

Nothing is parsed beyond HTTP while the clock runs; `bench.answers` reads the bytes afterwards.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from bench.behaviour import LETTERS
from bench.protocols import PROTOCOLS, Protocol

clock = time.perf_counter


@dataclass(slots=True)
class Exchange:
    """One request and what came back. Times are seconds of `clock`."""

    letter: str
    sent_at: float
    ended_at: float = 0.0
    status: int = 0
    content_type: bytes = b""
    retry_after_s: float = 0.0
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    failure: str = ""


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.answered: asyncio.Future[None] | None = None
        self.is_open = True
        self.stray_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def send(self, payload: bytes, exchange: Exchange) -> "asyncio.Future[None]":
        """Send a request; the future is done when its answer or the connection has ended."""
        self.exchange = exchange
        self.parser = httptools.HttpResponseParser(self)
        self.answered = asyncio.get_running_loop().create_future()
        self.transport.write(payload)
        return self.answered

    def data_received(self, data: bytes) -> None:
        self.received_at = clock()
        if self.exchange is None:
            self.stray_bytes += len(data)
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"bad HTTP: {error}")
            self.transport.abort()

    # httptools calls the next four.
    def on_header(self, name: bytes, value: bytes) -> None:
        if self.exchange is None:
            return
        if name.lower() == b"content-type":
            self.exchange.content_type = value
        elif name.lower() == b"retry-after-ms":
            self.exchange.retry_after_s = int(value) / 1_000

    def on_headers_complete(self) -> None:
        if self.exchange is not None:
            self.exchange.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.exchange is None:
            self.stray_bytes += len(body)
        else:
            self.exchange.parts.append((self.received_at, body))

    def on_message_complete(self) -> None:
        if not self.parser.should_keep_alive():
            self.is_open = False
            self.transport.close()
        self.end()

    def connection_lost(self, _error: Exception | None) -> None:
        self.fail("connection lost")

    def fail(self, failure: str) -> None:
        self.is_open = False
        if self.exchange is not None:
            self.exchange.failure = self.exchange.failure or failure  # a timeout aborts its connection
        self.end()

    def end(self) -> None:
        self.exchange = None
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(None)


class Client:
    """Sends requests to one server over as many connections as there are requests under way."""

    def __init__(  # noqa: PLR0913  all but three have a default
        self,
        base_url: str,
        key: str,
        model: str,
        *,
        is_stream: bool,
        timeout_seconds: float,
        protocol: Protocol = PROTOCOLS["chat"],
        prompt_bytes: int = 0,
        choices: int = 1,
        headers: Mapping[str, str] | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        url = urlsplit(base_url)
        self.host, self.port = url.hostname or "127.0.0.1", url.port or 80
        self.timeout_seconds = timeout_seconds
        self.path, self.headers = url.path.rstrip("/") + protocol.path, headers or {}
        several = {} if choices == 1 else {"n": choices}
        self.tails = {
            letter: self.tail(
                msgspec.json.encode(
                    {**protocol.body(model, prompt(letter, prompt_bytes), is_stream), **several}
                )
            )
            for letter in LETTERS
        }
        self.heads = [self.head(key) for key in keys or [key]]
        self.idle: list[Connection] = []
        self.exchanges: list[Exchange] = []
        self.stray_bytes = 0

    def head(self, key: str) -> bytes:
        """Return the request line and all headers but those of the body."""
        own = "".join(f"{name}: {value.strip()}\r\n" for name, value in self.headers.items())
        host = f"{self.host}:{self.port}"
        head = f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n{own}"
        return head.encode()

    def tail(self, body: bytes) -> bytes:
        """Return the headers of the body, and the body."""
        return (
            b"Content-Type: application/json\r\nContent-Length: %d\r\nAccept: */*\r\n\r\n" % len(body)
        ) + body

    async def request(self) -> Exchange:
        """Send one request; store it with its answer in `exchanges` in every case, and return it."""
        letter = LETTERS[len(self.exchanges) % len(LETTERS)]
        head = self.heads[len(self.exchanges) % len(self.heads)]
        exchange = Exchange(letter, sent_at=clock())
        self.exchanges.append(exchange)
        connection = None
        try:
            async with asyncio.timeout(self.timeout_seconds):
                connection = self.take_idle() or await self.connect()
                await connection.send(head + self.tails[letter], exchange)
        except TimeoutError:
            exchange.failure = "timeout"
        except OSError as error:
            exchange.failure = f"no connection: {type(error).__name__}"
        exchange.ended_at = clock()
        if connection is not None:
            self.give_back(connection, exchange)
        return exchange

    async def connect(self) -> Connection:
        """Open a new connection."""
        _, connection = await asyncio.get_running_loop().create_connection(Connection, self.host, self.port)
        return connection

    def take_idle(self) -> Connection | None:
        """Return the connection that was used last, so that the server's keep-alive time never ends on it."""
        while self.idle:
            connection = self.idle.pop()
            self.stray_bytes += connection.stray_bytes
            if connection.is_open and not connection.stray_bytes:
                return connection
            connection.transport.abort()
        return None

    def give_back(self, connection: Connection, exchange: Exchange) -> None:
        """Keep a connection whose answer came to its end; close any other."""
        if connection.is_open and not exchange.failure:
            self.idle.append(connection)
        else:
            connection.transport.abort()

    def close(self) -> None:
        """Close all idle connections."""
        while connection := self.take_idle():
            connection.transport.abort()


def prompt(letter: str, size_bytes: int = 0) -> str:
    """Return a prompt of about 200 bytes or of this size, whose last letter chooses the answer's."""
    sentence = "Count as far as you were told to, please. "
    return sentence * max(5, size_bytes // len(sentence)) + f"Start every word with {letter}"
