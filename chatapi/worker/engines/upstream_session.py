"""Pooled connections to upstreams: aiohttp's session, as the engine needs it."""

import socket
from contextvars import ContextVar

import aiohttp
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

# After a read of this length the rest waits in the kernel until the next one: the worker is behind.
BEHIND_BYTES = 2 << 10
# Bytes of one answer that may wait in the kernel, which takes twice as much.
RECEIVE_BUFFER_BYTES = 32 << 10
# Whether the last request of this task was sent on a pooled connection.
is_pooled: ContextVar[bool] = ContextVar("pooled connection", default=False)


def new_session() -> aiohttp.ClientSession:
    """Return a session without cookies, proxies, netrc or limit: the worker limits how much runs at once."""
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, keepalive_timeout=15, ttl_dns_cache=30, socket_factory=_socket),
        read_bufsize=BEHIND_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


def is_broken(response: aiohttp.ClientResponse) -> bool:
    """Return whether the connection is gone before the end of the body, as after broken framing."""
    connection = response.connection
    return connection is not None and connection.transport is None and not response.content.is_eof()


class _Connector(aiohttp.TCPConnector):
    # aiohttp has no public hook for this. A test notices if it is no longer called.
    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        """Return a pooled connection, but none that got unrequested bytes.

        They would be taken for the answer to the next request.
        """
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                break
            connection.close()
        is_pooled.set(connection is not None)
        return connection


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket with a small receive buffer.

    An upstream may be far faster than its client, and one read takes all that has come.
    """
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return made
