"""A TCP proxy that misbehaves on request: between a client and web, or between one of our processes and
Valkey.

with ChaosProxy(target) as proxy:      listens on 127.0.0.1:proxy.port and forwards everything to `target`
    proxy.fault = Stall()              from now on, on all connections; Pass() ends it

`target` is a port, or the path of a Unix socket.

Runs on a loop and a thread of its own, so that a test may block meanwhile.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 16
TICK_S = 0.01


@dataclass(frozen=True)
class Pass:
    """Everything goes through."""


@dataclass(frozen=True)
class Stall:
    """Nothing goes through, and nothing is lost: it goes through later."""


@dataclass(frozen=True)
class Blackhole:
    """What the client sends is lost; what the target sends goes through."""


@dataclass(frozen=True)
class Throttle:
    """The client gets its bytes slowly."""

    bytes_per_second: int


@dataclass(frozen=True)
class DropReplyOnce:
    """The target answers the next request that contains these bytes, but the client gets a reset instead of
    the answer. Then the fault ends.
    """

    request: bytes


Fault = Pass | Stall | Blackhole | Throttle | DropReplyOnce


class ChaosProxy:
    """The proxy, as a context manager."""

    def __init__(self, target: int | Path) -> None:
        self.fault: Fault = Pass()
        self.port = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "ChaosProxy":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Return the proxy's URL for HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def redis_url(self) -> str:
        """Return the proxy's URL for a Redis client."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def has_recovered(self) -> bool:
        """Return whether the fault has ended, such as `DropReplyOnce` after the reply was dropped."""
        return isinstance(self.fault, Pass)

    def reset(self) -> None:
        """Cut every connection, with a reset to both sides."""
        self._on_all(_Connection.reset)

    def half_close(self) -> None:
        """Tell the target that the client sends no more; what the target sends still goes through."""
        self._on_all(_Connection.half_close)

    def _on_all(self, act: "Callable[[_Connection], None]") -> None:
        async def on_all() -> None:
            for connection in list(self._connections):
                act(connection)

        asyncio.run_coroutine_threadsafe(on_all(), self._loop).result()

    async def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        # Not `asyncio.start_server`: when it is closed, it leaves a connection open that it has accepted and
        # not yet handed over.
        self._loop.add_reader(self._listener, self._accept)

    async def _close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)
        task = self._loop.create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: client.close())

    async def _serve(self, client: socket.socket) -> None:
        here = await asyncio.open_connection(sock=client, limit=CHUNK_BYTES)
        try:
            there = await _connect(self._target)
        except (OSError, asyncio.CancelledError):  # the target is away, or the proxy closes
            here[1].transport.abort()
            return
        connection = _Connection(self, here, there)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One client's connection, and ours to the target for it."""

    def __init__(self, proxy: ChaosProxy, client: Stream, target: Stream) -> None:
        self._proxy = proxy
        self._client, self._target = client, target
        self._is_reply_dropped = False

    async def run(self) -> None:
        """Pass bytes in both directions until one side ends."""
        there, back = asyncio.create_task(self._request()), asyncio.create_task(self._reply())
        writers = (self._client[1], self._target[1])
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            for writer in writers:
                writer.transport.abort() if writer.is_closing() else writer.close()
            there.cancel(), back.cancel()
            await asyncio.gather(
                there, back, *(writer.wait_closed() for writer in writers), return_exceptions=True
            )
        except asyncio.CancelledError:  # the proxy closes: unsent bytes are lost
            for writer in writers:
                writer.transport.abort()
            raise

    def reset(self) -> None:
        for _, writer in (self._client, self._target):
            _reset(writer)

    def half_close(self) -> None:
        self._target[1].write_eof()

    async def _request(self) -> None:
        while data := await self._client[0].read(CHUNK_BYTES):
            await self._stalled()
            fault = self._proxy.fault
            if isinstance(fault, DropReplyOnce) and fault.request in data:
                self._proxy.fault, self._is_reply_dropped = Pass(), True
            if not isinstance(fault, Blackhole):
                self._target[1].write(data)
                await self._target[1].drain()

    async def _reply(self) -> None:
        while data := await self._target[0].read(CHUNK_BYTES):
            await self._stalled()
            if self._is_reply_dropped:
                self.reset()
                return
            await self._tell(data)

    async def _tell(self, data: bytes) -> None:
        writer = self._client[1]
        while data:
            fault = self._proxy.fault
            size = max(1, int(fault.bytes_per_second * TICK_S)) if isinstance(fault, Throttle) else len(data)
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]
            if isinstance(fault, Throttle):
                await asyncio.sleep(TICK_S)

    async def _stalled(self) -> None:
        while isinstance(self._proxy.fault, Stall):
            await asyncio.sleep(TICK_S)


async def _connect(target: int | Path) -> Stream:
    if isinstance(target, Path):
        return await asyncio.open_unix_connection(target)
    return await asyncio.open_connection("127.0.0.1", target)


def _reset(writer: asyncio.StreamWriter) -> None:
    found: Any = writer.get_extra_info("socket")
    if found is not None and found.family == socket.AF_INET:  # lingering for 0 s turns the close into a reset
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
