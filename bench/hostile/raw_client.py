"""The attacker's client: prepared bytes over raw connections, from an address of its own, bounded in bytes
and time.

It parses only the status line of an answer, so that the machine's time goes to the server under attack.
"""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

LAST_CHUNK = b"0\r\n\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")
WRITE_BYTES = 256 * 1024
"""The size of the pieces in which a long payload is handed to the transport."""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0


class BudgetSpentError(Exception):
    """The attack has sent all the bytes that it may send."""


@dataclass(frozen=True)
class Keys:
    """The API keys of one attacker, each of an organization that is not the honest clients'."""

    test: str
    test_over_limit: str
    """A test key with a limit of one request a minute."""
    live: str


@dataclass
class Tally:
    """Bytes and answers of all attackers of a run."""

    max_bytes: int
    sent_bytes: int = 0
    received_bytes: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By status; and `not connected`, `closed` and `no answer`."""


class Connection(asyncio.Protocol):
    """One connection; counts the status lines that arrive."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.is_open = True
        self.statuses: asyncio.Queue[int] = asyncio.Queue()
        self.head = b""
        """The first bytes of the last answer: enough to find a `Location` or an id in it."""
        self.stream_ended = asyncio.Event()
        """Set when a read ends with a last chunk, or the connection is lost."""
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.tally.received_bytes += len(data)
        found = STATUS_LINE.findall(data)
        if found:
            self.head = data[:4096]
        for status in found:
            self.tally.answers[status.decode()] += 1
            self.statuses.put_nowait(int(status))
        if data.endswith(LAST_CHUNK):
            self.stream_ended.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_open = False
        self._writable.set()
        self.stream_ended.set()
        self.statuses.put_nowait(0)

    async def send(self, payload: bytes) -> bool:
        """Send all as fast as the peer takes it; return whether the connection is still open. Raises
        BudgetSpentError.
        """
        view = memoryview(payload)
        for start in range(0, len(view), WRITE_BYTES):
            if not self.is_open:
                return False
            piece = view[start : start + WRITE_BYTES]
            self.tally.sent_bytes += len(piece)
            if self.tally.sent_bytes > self.tally.max_bytes:
                raise BudgetSpentError
            self.transport.write(piece)
            await self._writable.wait()
        return self.is_open

    async def status(self, timeout_seconds: float = ANSWER_SECONDS) -> int:
        """Read the next answer and return its status; 0 if there is none."""
        try:
            async with asyncio.timeout(timeout_seconds):
                status = await self.statuses.get()
        except TimeoutError:
            status = 0
        if not status:
            self.tally.answers["no answer" if self.is_open else "closed"] += 1
        return status

    async def stream(self) -> None:
        """Read the head of the next answer, and the whole answer if it is a stream."""
        if await self.status() == 200:
            await self.stream_ended.wait()
        self.stream_ended.clear()

    def close(self) -> None:
        """Close the connection without a reset: the server still gets all bytes that were sent."""
        if self.is_open:
            self.transport.close()


@dataclass
class Attacker:
    """One attacker: an address, keys, and the server's port. An attack is a coroutine that gets one."""

    port: int
    address: str
    keys: Keys
    tally: Tally
    seconds: float
    count: int
    """The number of attackers."""

    def share(self, total: int) -> int:
        """Return this attacker's part of a limited resource of the machine, such as descriptors."""
        return max(1, total // self.count)

    async def connect(self, receive_buffer_bytes: int | None = None) -> Connection | None:
        """Open a connection from this attacker's IP; None if that fails."""
        plug = socket.socket()
        try:
            plug.setblocking(False)
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if receive_buffer_bytes is not None:
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            plug.bind((self.address, 0))
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(plug, ("127.0.0.1", self.port))
                _, connection = await loop.create_connection(lambda: Connection(self.tally), sock=plug)
        except OSError:  # a TimeoutError is one
            plug.close()
            self.tally.answers["not connected"] += 1
            return None
        except asyncio.CancelledError:
            plug.close()
            raise
        return connection

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection | None]:
        """Open a connection, and close it at the end of the block."""
        connection = await self.connect()
        try:
            yield connection
        finally:
            if connection is not None:
                connection.close()

    async def send_once(self, payload: bytes, *, waits: bool = True) -> int:
        """Send the payload over a new connection; return the answer's status, 0 if there is none or without
        `waits`.
        """
        async with self.connected() as connection:
            if connection is None or (not await connection.send(payload) and not connection.statuses.qsize()):
                return 0
            return await connection.status() if waits else 0

    async def flood(self, payload: bytes, *, connections: int = 4, is_streamed: bool = False) -> None:
        """Send the payload again and again over this many kept connections, each waiting for its answer."""

        async def one() -> None:
            connection: Connection | None = None
            try:
                while True:
                    if connection is None or not connection.is_open:
                        connection = await self.connect()
                    if connection is None:
                        await asyncio.sleep(0.05)
                        continue
                    if await connection.send(payload):
                        await (connection.stream() if is_streamed else connection.status())
            finally:
                if connection is not None:
                    connection.close()

        await asyncio.gather(*(one() for _ in range(connections)))

    async def each(self, payloads: Iterable[bytes], *, connections: int = 1) -> None:
        """Send each payload once, over new connections."""
        waiting = iter(payloads)

        async def one() -> None:
            for payload in waiting:
                await self.send_once(payload)

        await asyncio.gather(*(one() for _ in range(connections)))

    async def hold(
        self, connections: int, payload: bytes = b"", *, receive_buffer_bytes: int | None = None
    ) -> None:
        """Open this many connections, send each the payload, and keep them until the time is over. With
        `receive_buffer_bytes`, never read.
        """
        held: list[Connection] = []
        try:
            for _ in range(connections):
                connection = await self.connect(receive_buffer_bytes)
                if connection is None:
                    await asyncio.sleep(0.01)
                    continue
                if receive_buffer_bytes is not None:
                    connection.transport.pause_reading()
                held.append(connection)
                if payload:
                    await connection.send(payload)
            await asyncio.sleep(self.seconds)
        finally:
            for connection in held:
                connection.close()

    async def drip(self, connections: int, head: bytes, drop: bytes, *, pause_seconds: float) -> None:
        """Open this many connections, send each the head, then one drop after the other with a pause."""

        async def one() -> None:
            async with self.connected() as connection:
                if connection is None or not await connection.send(head):
                    return
                while connection.is_open:
                    await connection.send(drop)
                    await asyncio.sleep(pause_seconds)

        await asyncio.gather(*(one() for _ in range(connections)))


async def within_budget(attack: "asyncio.Future[None]", seconds: float) -> None:
    """Wait for an attack until its time or its bytes are spent."""
    with suppress(TimeoutError, BudgetSpentError):
        async with asyncio.timeout(seconds):
            await attack
