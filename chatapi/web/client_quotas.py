"""What one client address may hold and do at the same time: connections, arriving bytes, handshakes, unread
output.

A client's address is its socket's peer; behind a trusted proxy it is the address that the proxy names for
each request, and the proxy's own connections are not counted. An IPv6 client counts by its /64.
"""

from collections.abc import Sequence
from functools import lru_cache
from time import monotonic
from typing import Protocol

from accounts import client_ip
from chatapi.web import refusals
from chatapi.web.limits import Limits
from chatapi.web.refusals import Refusal


class Countable(Protocol):
    """A connection, as far as quotas know it."""

    def evict(self) -> None:
        """Ends a connection that waits for a request: another one needs its place."""

    def cut_off(self) -> None:
        """Ends a connection whose client reads nothing."""


class Client:
    """What one client address has open."""

    __slots__ = ("address", "arriving_bytes", "connections", "handshakes", "stalled", "waiting", "window")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0
        self.waiting: dict[Countable, None] = {}
        """Connections that wait for the head of a request, the one that has waited longest first."""
        self.stalled: dict[Countable, None] = {}
        """Connections whose output is not read, the one that stalled first is the first."""
        self.arriving_bytes = 0
        self.handshakes = self.window = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing needs to be remembered."""
        return not (self.connections or self.arriving_bytes or self.handshakes)


class ClientQuotas:
    """Counts what each client address holds, and says what is too much."""

    def __init__(self, limits: Limits, trusted_proxies: Sequence[str] = ()) -> None:
        self._limits = limits
        self._trusted_proxies = tuple(trusted_proxies)
        self._clients: dict[str, Client] = {}
        self._arriving_bytes = 0

    def is_proxy(self, peer: str) -> bool:
        """Whether the other end of a socket is a trusted proxy, whose requests count for other addresses."""
        return _is_proxy(peer, self._trusted_proxies)

    def of_peer(self, peer: str) -> Client:
        """The client at the other end of a socket."""
        return self._client(peer)

    def of_request(self, peer: str, forwarded_for: str) -> Client:
        """The client that a trusted proxy names."""
        return self._client(client_ip.of(peer, forwarded_for, self._trusted_proxies))

    def _client(self, address: str) -> Client:
        household = _household(address)
        client = self._clients.get(household)
        if client is None:
            client = self._clients[household] = Client(household)
        return client

    # Connections

    def connect(self, client: Client) -> Refusal | None:
        """Counts one more connection, or proxied request; the answer if that is too many."""
        if client.connections >= self._limits.max_connections_per_address:
            if not client.waiting:
                return refusals.TOO_MANY_CONNECTIONS
            next(iter(client.waiting)).evict()
        client.connections += 1
        return None

    def disconnect(self, client: Client) -> None:
        """Counts one less."""
        client.connections -= 1
        if client.is_idle:
            self._clients.pop(client.address, None)

    def make_room(self, count: int) -> None:
        """Evicts so many waiting connections, of the addresses that have the most of them."""
        while count > 0:
            largest = max(self._clients.values(), key=lambda client: len(client.waiting), default=None)
            if largest is None or not largest.waiting:
                return
            for connection in tuple(largest.waiting)[:count]:
                connection.evict()
                count -= 1

    # Arriving bytes

    def arrive(self, client: Client, size: int, request_bytes: int) -> Refusal | None:
        """Counts bytes of a request that nobody has authenticated; the answer if they are too many. Small
        requests are always taken.
        """
        client.arriving_bytes += size
        self._arriving_bytes += size
        if request_bytes <= self._limits.small_request_bytes:
            return None
        if client.arriving_bytes > self._limits.max_arriving_bytes_per_address:
            return refusals.TOO_MUCH_FROM_ADDRESS
        if self._arriving_bytes > self._limits.max_arriving_bytes and self._has_more_than_its_share(client):
            return refusals.TOO_MUCH_AT_ONCE
        return None

    def _has_more_than_its_share(self, client: Client) -> bool:
        return client.arriving_bytes * len(self._clients) > self._limits.max_arriving_bytes

    def arrived(self, client: Client, size: int) -> None:
        """So many bytes do not count any more."""
        client.arriving_bytes -= size
        self._arriving_bytes -= size

    # Handshakes

    def shake_hands(self, client: Client) -> Refusal | None:
        """Counts a WebSocket handshake; the answer if there are too many."""
        window = int(monotonic() / self._limits.handshake_window_seconds)
        if window != client.window:
            client.window, client.handshakes = window, 0
        client.handshakes += 1
        return (
            refusals.TOO_MANY_HANDSHAKES
            if client.handshakes > self._limits.max_handshakes_per_address
            else None
        )

    def forget_handshakes(self) -> None:
        """Forgets the addresses of which only old handshakes are known; the server calls it now and then."""
        window = int(monotonic() / self._limits.handshake_window_seconds)
        for client in tuple(self._clients.values()):
            if client.window != window:
                client.handshakes = 0
                if client.is_idle:
                    del self._clients[client.address]

    # Unread output

    def stall(self, client: Client, connection: Countable) -> None:
        """Counts a connection that is not read; cuts off the one that stalled first if there are too many."""
        client.stalled[connection] = None
        if len(client.stalled) > self._limits.max_stalled_per_address:
            first = next(iter(client.stalled))
            del client.stalled[first]
            first.cut_off()


@lru_cache(maxsize=8_192)
def _household(address: str) -> str:
    return client_ip.network_of(address)


@lru_cache(maxsize=8_192)
def _is_proxy(peer: str, trusted_proxies: tuple[str, ...]) -> bool:
    return client_ip.is_trusted(peer, trusted_proxies)
