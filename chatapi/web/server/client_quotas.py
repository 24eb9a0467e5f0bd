"""Bounds per client IP address: open connections, arriving bytes, WebSocket handshakes, unread output.

A client's address is its socket's peer. Behind a trusted proxy it is the address that the proxy names for
each request, and the proxy's connections are not counted. An IPv6 client counts by its /64.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from time import monotonic
from typing import Protocol

from accounts import forwarding, ip_addresses
from chatapi.web.server import refusals
from chatapi.web.server.refusals import Refusal
from chatapi.web.server.server_limits import ServerLimits

client_network = lru_cache(maxsize=8_192)(ip_addresses.network_of)
_is_proxy = lru_cache(maxsize=8_192)(ip_addresses.is_trusted)


class Countable(Protocol):
    """The part of a connection that quotas use."""

    def evict(self) -> None:
        """Close the connection, which waits for a request, to make room for another one."""

    def cut_off(self) -> None:
        """Abort the connection, because its client reads nothing."""


class Client:
    """The counts of one client address."""

    __slots__ = ("address", "arriving_bytes", "connections", "handshakes", "stalled", "waiting", "window")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0
        # Connections that wait for the head of a request, the longest wait first.
        self.waiting: dict[Countable, None] = {}
        # Connections whose output is not read, the earliest stall first.
        self.stalled: dict[Countable, None] = {}
        self.arriving_bytes = 0
        self.handshakes = self.window = 0

    @property
    def is_idle(self) -> bool:
        """Return whether all counts are zero, so that the client can be forgotten."""
        return not (self.connections or self.arriving_bytes or self.handshakes)


class ClientQuotas:
    """The clients by address, and the checks of their counts against the limits."""

    def __init__(self, limits: ServerLimits, trusted_proxies: Sequence[str] = ()) -> None:
        self._limits = limits
        self._trusted_proxies = tuple(trusted_proxies)
        self._clients: dict[str, Client] = {}
        self._arriving_bytes = 0

    def is_proxy(self, peer: str) -> bool:
        """Return whether `peer` is a trusted proxy, so that its requests count for other addresses."""
        return _is_proxy(peer, self._trusted_proxies)

    def of_request(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Return the client that a trusted proxy names in these headers."""
        return self.of_peer(forwarding.of(peer, headers, self._trusted_proxies).ip)

    def of_peer(self, address: str) -> Client:
        network = client_network(address)
        client = self._clients.get(network)
        if client is None:
            client = self._clients[network] = Client(network)
        return client

    # Connections

    def connect(self, client: Client) -> Refusal | None:
        """Count one more connection or proxied request; return the refusal if that is too many."""
        if client.connections >= self._limits.max_connections_per_address:
            if not client.waiting:
                return refusals.TOO_MANY_CONNECTIONS
            next(iter(client.waiting)).evict()
        client.connections += 1
        return None

    def disconnect(self, client: Client) -> None:
        client.connections -= 1
        if client.is_idle:
            self._clients.pop(client.address, None)

    def make_room(self, count: int) -> None:
        """Evict `count` waiting connections, from the addresses that have the most of them."""
        while count > 0:
            largest = max(self._clients.values(), key=lambda client: len(client.waiting), default=None)
            if largest is None or not largest.waiting:
                return
            for connection in tuple(largest.waiting)[:count]:
                connection.evict()
                count -= 1

    # Arriving bytes

    def arrive(self, client: Client, size: int, request_bytes: int) -> Refusal | None:
        """Count bytes of a request that has not been authenticated; return the refusal if they are too many.

        Small requests are always accepted.
        """
        client.arriving_bytes += size
        self._arriving_bytes += size
        if request_bytes <= self._limits.small_request_bytes:
            return None
        if client.arriving_bytes > self._limits.max_arriving_bytes_per_address:
            return refusals.TOO_MUCH_FROM_ADDRESS
        # When the process is full, only clients with more than an equal share are refused.
        most_bytes = self._limits.max_arriving_bytes
        if self._arriving_bytes > most_bytes and client.arriving_bytes * len(self._clients) > most_bytes:
            return refusals.TOO_MUCH_AT_ONCE
        return None

    def arrived(self, client: Client, size: int) -> None:
        client.arriving_bytes -= size
        self._arriving_bytes -= size

    # Handshakes

    def count_handshake(self, client: Client) -> Refusal | None:
        """Count a WebSocket handshake; return the refusal if there are too many."""
        window = int(monotonic() / self._limits.handshake_window_seconds)
        if window != client.window:
            client.window, client.handshakes = window, 0
        client.handshakes += 1
        is_too_often = client.handshakes > self._limits.max_handshakes_per_address
        return refusals.TOO_MANY_HANDSHAKES if is_too_often else None

    def forget_handshakes(self) -> None:
        """Forget addresses with only old handshakes; the server calls this with every sweep."""
        window = int(monotonic() / self._limits.handshake_window_seconds)
        for client in tuple(self._clients.values()):
            if client.window != window:
                client.handshakes = 0
                if client.is_idle:
                    del self._clients[client.address]

    # Unread output

    def stall(self, client: Client, connection: Countable) -> None:
        """Count a stalled connection; cut off the earliest one if there are too many."""
        client.stalled[connection] = None
        if len(client.stalled) > self._limits.max_stalled_per_address:
            first = next(iter(client.stalled))
            del client.stalled[first]
            first.cut_off()


class ConnectionQuota:
    """What one connection takes from the quotas of its client; nothing while it has no client."""

    def __init__(self, quotas: ClientQuotas, connection: Countable) -> None:
        self._quotas = quotas
        self._connection = connection
        self._client: Client | None = None
        self._arriving_bytes = 0

    def take(self, client: Client) -> Refusal | None:
        """Count the connection, or its request, for this client; return the refusal if that is too many."""
        refusal = self._quotas.connect(client)
        if refusal is None:
            self._client = client
        return refusal

    def release(self) -> None:
        """Release all that the connection has taken, and its client."""
        client = self._client
        if client is not None:
            self.release_arriving()
            self._client = None
            client.waiting.pop(self._connection, None)
            client.stalled.pop(self._connection, None)
            self._quotas.disconnect(client)

    def add_arriving(self, size: int, request_bytes: int) -> Refusal | None:
        """Count `size` bytes of a request of `request_bytes`; return the refusal if they are too many."""
        if self._client is None:
            return None
        self._arriving_bytes += size
        return self._quotas.arrive(self._client, size, request_bytes)

    def release_arriving(self) -> None:
        if self._client is not None and self._arriving_bytes:
            self._quotas.arrived(self._client, self._arriving_bytes)
            self._arriving_bytes = 0

    def wait_for_request(self) -> None:
        if self._client is not None:
            self._client.waiting[self._connection] = None

    def stop_waiting(self) -> None:
        if self._client is not None:
            self._client.waiting.pop(self._connection, None)

    def count_handshake(self) -> Refusal | None:
        """Count a WebSocket handshake; return the refusal if there are too many."""
        return None if self._client is None else self._quotas.count_handshake(self._client)

    def stall(self) -> None:
        if self._client is not None:
            self._quotas.stall(self._client, self._connection)

    def stop_stalling(self) -> None:
        if self._client is not None:
            self._client.stalled.pop(self._connection, None)
