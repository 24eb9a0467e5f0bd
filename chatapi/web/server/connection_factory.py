"""The set of the server's open connections, and the bound on their number."""

# ruff: noqa: N802, N815 - the names are Twisted's

import resource

from twisted.web import http

from chatapi.web.server.client_quotas import ClientQuotas
from chatapi.web.server.http_connection import HTTPConnection
from chatapi.web.server.read_turns import ReadTurns
from chatapi.web.server.server_limits import ServerLimits
from chatapi.web.server.transport import loop


class ConnectionFactory(http.HTTPFactory):
    """Makes an `HTTPConnection` for every accepted socket and keeps the set of the open ones."""

    protocol = HTTPConnection  # Twisted's default can switch to HTTP/2
    timeOut = None

    def __init__(self, server: object, limits: ServerLimits, quotas: ClientQuotas) -> None:
        super().__init__(timeout=None)  # sweep() replaces Twisted's timer
        self.server = server
        self.limits = limits
        self.quotas = quotas
        self.read_turns = ReadTurns(limits.read_seconds_per_turn, loop.call_soon)
        # The other descriptors are for Redis, the database and files.
        self.max_connections = min(
            limits.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4
        )
        self.open_connections: set[HTTPConnection] = set()
        self.is_draining = False

    def start_draining(self) -> None:
        """Let each response end its connection from now on."""
        self.is_draining = True
        for connection in self.open_connections:
            connection.start_draining()

    def make_room(self) -> None:
        """Close waiting connections if little room is left; the server calls this with every sweep."""
        surplus = len(self.open_connections) - self.max_connections * 9 // 10
        if surplus > 0:
            self.quotas.make_room(surplus)

    def startFactory(self) -> None:
        """Do nothing."""
        # Twisted would open an access log, and format a line for each request even if the log is not read.
