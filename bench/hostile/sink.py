"""A process, for the controls, that drops all that it reads and answers each read with a status line.

python -m bench.hostile.sink --port 27300
"""

import argparse
import asyncio
from typing import cast

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Sink(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, _data: bytes) -> None:
        self.transport.write(ANSWER)


async def serve(port: int, seconds: float) -> None:
    """Serve on 127.0.0.1 for this long."""
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", port, backlog=4096)
    async with server:
        await asyncio.sleep(seconds)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="A server on 127.0.0.1 that drops what it reads.")
    parser.add_argument("--port", type=int, default=27300)
    parser.add_argument("--seconds", type=float, default=3600, help="stop by itself after this long")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.seconds))


if __name__ == "__main__":
    main()
