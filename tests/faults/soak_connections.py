"""A client's connections during a soak: kept between requests, as SDKs do, or closed after each, as scripts
do.
"""

import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.chatapi.http_client import Client, Exchange


class Connections:
    """The connections that one caller keeps to each server; a caller has one request after the other, and
    rarely two at once.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[HTTPConnection]] = {}

    def take(self, address: str, timeout_s: float) -> HTTPConnection:
        """Return the connection that was used last, unless the server has closed it; else a new one."""
        kept = self._idle.get(address, [])
        while kept:
            connection = kept.pop()
            if _is_quiet(connection):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()
        return HTTPConnection(address, timeout=timeout_s)

    def quiet_url(self) -> str:
        """Return the URL of a server with an open connection to it; empty if there is none."""
        addresses = [address for address, kept in self._idle.items() if any(map(_is_quiet, kept))]
        return f"http://{addresses[0]}" if addresses else ""

    def give_back(self, address: str, connection: HTTPConnection) -> None:
        """Keep a connection whose last answer came to its end."""
        self._idle.setdefault(address, []).append(connection)

    def close(self) -> None:
        """Close all connections."""
        for kept in self._idle.values():
            while kept:
                kept.pop().close()


class NoConnections(Connections):
    """The connections of a caller that keeps none: each request has one of its own."""

    def give_back(self, address: str, connection: HTTPConnection) -> None:
        """Close a connection whose last answer came to its end."""
        connection.close()


class KeepingClient(Client):
    """A client that uses its caller's connections; `closes`: it sends `Connection: close` instead."""

    def __init__(
        self, url: str, key: str, timeout_s: float, connections: Connections, *, closes: bool = False
    ) -> None:
        super().__init__(url, key, timeout_s)
        self._connections = connections
        self._closes = closes

    @contextmanager
    def exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str | None]
    ) -> Iterator[Exchange]:
        """Send a request. Keep the connection if its answer was read to the end and the server keeps it."""
        named = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **headers}
        if self._closes:
            named["Connection"] = "close"
        connection = self._connections.take(self._address, self._timeout_s)
        exchange = Exchange(connection)
        try:
            connection.request(
                method, path, body, {name: value for name, value in named.items() if value is not None}
            )
            yield exchange
        except BaseException:
            exchange.leave()
            raise
        if exchange.is_over and not self._closes:
            self._connections.give_back(self._address, connection)
        else:
            exchange.leave()


class BalancedClient(KeepingClient):
    """A client like `like`, whose requests each go to the URL that `choose` returns."""

    def __init__(self, choose: Callable[[], str], like: KeepingClient) -> None:
        super().__init__("", like.key, like._timeout_s, like._connections, closes=like._closes)
        self._choose = choose

    @contextmanager
    def exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str | None]
    ) -> Iterator[Exchange]:
        """Send a request to the chosen server."""
        self._address = urlsplit(self._choose()).netloc
        with super().exchange(method, path, body, headers) as exchange:
            yield exchange


def _is_quiet(connection: HTTPConnection) -> bool:
    """Return whether an idle connection is still open: only its end would arrive there."""
    if connection.sock is None:
        return False
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)
