"""A stub of a sentinel that names a primary. If that is the stub itself, it refuses SET like a replica."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class SentinelStub:
    """A sentinel on a port of 127.0.0.1. Tests may change the primary, and see how often it was asked for."""

    def __init__(self, primary: int) -> None:
        self.primary = primary
        self.port = 0
        self.questions = 0

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while head := await reader.readline():
                words = [await reader.readline() for _ in range(2 * int(head[1:]))][1::2]
                match words[0].strip():
                    case b"HELLO":
                        writer.write(b"%1\r\n+proto\r\n:3\r\n")
                    case b"SENTINEL":
                        self.questions += 1
                        port = str(self.primary)
                        writer.write(f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode())
                    case b"SET":
                        writer.write(b"-READONLY You can't write against a read only replica.\r\n")
                    case _:
                        writer.write(b"+OK\r\n")
        writer.close()


@asynccontextmanager
async def serve_sentinel(primary: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[SentinelStub]:
    """Serve a sentinel, with TLS if there is a context for it."""
    stub = SentinelStub(primary)
    listening = await asyncio.start_server(stub._answer, "127.0.0.1", 0, ssl=tls)
    stub.port = listening.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        listening.close()
