"""Daphne with back-pressure, a body cap, drain and header hygiene.

`serve` runs an ASGI application until SIGTERM or SIGINT, then drains in the steps of `Server._drain` and
returns. A second signal ends it at once. The application does not depend on this module; it also runs under
any other ASGI server, without these guarantees.
"""

# ruff: noqa: N802, N815 - the names are Twisted's

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from asgiref.typing import ASGI3Application
from daphne.ws_protocol import WebSocketFactory
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    STDLibLogObserver,
    globalLogBeginner,
)
from twisted.web import http

from accounts.loop_clock import monotonic
from chatapi.web.server.client_quotas import ClientQuotas
from chatapi.web.server.http_connection import HTTPConnection
from chatapi.web.server.http_request import HTTPRequest
from chatapi.web.server.read_turns import ReadTurns
from chatapi.web.server.server_limits import ServerLimits
from chatapi.web.server.transport import DaphneServer, ListeningPort, loop, reactor
from chatapi.web.server.websocket_connection import WebSocketConnection

logger = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[dict[str, Any]]]

SWEEP_SECONDS = 0.25
SWEPT_PER_TURN = 500
QUIET_POLL_SECONDS = 0.05
CANCEL_SECONDS = 2.0


def serve(
    application: ASGI3Application,
    *,
    listener: socket.socket,
    limits: ServerLimits,
    trusted_proxies: Sequence[str],
    on_draining: Callable[[], None],
    on_deadline: Callable[[], None],
) -> None:
    """Serve `application` on `listener` until a signal, and close it. Call it once, from the main thread.

    `trusted_proxies` are IP addresses and networks whose forwarding headers name a request's client.
    `on_draining` is called after a signal, so that /readyz fails from then on; `on_deadline` when only
    `ServerLimits.farewell_seconds` are left, to end the streams that still run.
    """
    quotas = ClientQuotas(limits, trusted_proxies)
    Server(application, limits, quotas, on_draining, on_deadline).run(listener)


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


class Server(DaphneServer):
    """Daphne's server with our connections, listening socket and draining."""

    def __init__(
        self,
        application: ASGI3Application,
        limits: ServerLimits,
        quotas: ClientQuotas,
        on_draining: Callable[[], None],
        on_deadline: Callable[[], None],
    ) -> None:
        super().__init__(
            application,
            endpoints=["a socket"],  # Daphne insists on one; run() is given its listening socket
            server_name="",  # no banner
        )
        self._limits = limits
        self._quotas = quotas
        self._on_draining = on_draining
        self._on_deadline = on_deadline
        self._drain_task: asyncio.Task[None] | None = None

    def run(self, listener: socket.socket) -> None:
        """Serve on `listener`, and close it, until a signal has ended the service."""
        # Twisted's errors only, without its lines about each connection.
        observer = FilteringLogObserver(
            STDLibLogObserver("twisted"), [LogLevelFilterPredicate(LogLevel.error)]
        )
        globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
        self._configure_protocols()
        self._port = ListeningPort._fromListeningDescriptor(
            reactor, listener.fileno(), listener.family, self.http_factory
        )
        self._port.accepts_per_turn = self._limits.accepts_per_turn
        self._port.startListening()
        listener.close()  # the reactor has duplicated it
        reactor.callLater(1, self.application_checker)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._stop_requested, signal_number)
        sweeper = loop.create_task(self._sweep_forever())
        reactor.run(installSignalHandlers=False)
        sweeper.cancel()
        loop.run_until_complete(_cancel_all_tasks())
        loop.close()
        if self._drain_task and not self._drain_task.cancelled():
            self._drain_task.result()

    def _configure_protocols(self) -> None:
        self.connections: dict[HTTPRequest | WebSocketConnection, dict[str, Any]] = {}
        self.http_factory = ConnectionFactory(self, self._limits, self._quotas)
        self.ws_factory = WebSocketFactory(self, server="")
        self.ws_factory.protocol = WebSocketConnection
        self.ws_factory.setProtocolOptions(
            autoPingTimeout=self.ping_timeout,
            allowNullOrigin=True,  # the application checks origins, by SameOrigin
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self._limits.max_websocket_message_bytes,
            maxFramePayloadSize=self._limits.max_websocket_message_bytes,
        )

    # Applications

    async def handle_reply(
        self, protocol: HTTPRequest | WebSocketConnection, message: dict[str, Any]
    ) -> None:
        """Send a message of the application once the client has read enough of the earlier ones. If more
        messages follow, return only when there is room for them, so that the application does not hold the
        next one while it waits.
        """
        # Daphne never waits: a client that stops reading would fill this process's memory.
        if not protocol.writable.is_set():
            await protocol.writable.wait()
        # Daphne's method would also look at the types of headers, which Django and our code know.
        if "disconnected" not in self.connections.get(protocol, ("disconnected",)):
            protocol.handle_reply(message)
        if message.get("more_body") and not protocol.writable.is_set():
            del message
            await protocol.writable.wait()

    def create_application(
        self, protocol: WebSocketConnection, scope: dict[str, Any]
    ) -> asyncio.Queue[dict[str, Any]]:
        """Start the application for a WebSocket; return the queue in which Daphne puts its messages."""
        scope.setdefault("asgi", {"version": "3.0"})
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.start_application(protocol, scope, queue.get)
        return queue

    def start_application(
        self, protocol: HTTPRequest | WebSocketConnection, scope: dict[str, Any], receive: Receive
    ) -> None:
        self.connections[protocol]["application_instance"] = loop.create_task(
            self._run_application(protocol, scope, receive)
        )

    def protocol_disconnected(self, protocol: HTTPRequest | WebSocketConnection) -> None:
        """Tell the application that its client has left; repeated calls do nothing."""
        if protocol in self.connections:
            super().protocol_disconnected(protocol)

    async def _run_application(
        self, protocol: HTTPRequest | WebSocketConnection, scope: dict[str, Any], receive: Receive
    ) -> None:
        """Run the application, and end a response that it leaves open."""
        # Daphne would notice by polling, and an error in the middle of a response ends its poll for good.
        error = None
        try:
            await self.application(scope, receive, partial(self.handle_reply, protocol))
        except Exception as caught:
            logger.exception("The application failed")
            error = caught
        if "disconnected" not in self.connections[protocol]:
            protocol.application_ended(error)

    def _has_running_applications(self) -> bool:
        tasks = (details.get("application_instance") for details in self.connections.values())
        return any(task is not None and not task.done() for task in tasks)

    # Time

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._check(self.http_factory.make_room)
            self._check(self._quotas.forget_handshakes)
            for number, connection in enumerate(tuple(self.http_factory.open_connections), 1):
                if connection in self.http_factory.open_connections:  # not closed during a pause
                    self._check(partial(connection.sweep, monotonic()))
                if number % SWEPT_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _check(self, check: Callable[[], None]) -> None:
        """Enforce limits; log an error, so that the other connections are still checked."""
        try:
            check()
        except Exception:
            logger.exception("A connection's limits could not be checked")

    # The end

    def _stop_requested(self, signal_number: int) -> None:
        if self._drain_task is None:
            self._drain_task = loop.create_task(self._drain(is_interactive=signal_number == signal.SIGINT))
        else:
            self._drain_task.cancel()

    async def _drain(self, *, is_interactive: bool) -> None:
        """End the service.

        1. For `lame_duck_seconds` serve as before, so that load balancers and clients have time to go
           elsewhere; responses have `Connection: close`, and /readyz fails. SIGINT skips this step.
        2. Close the listening socket, and connections that have been idle for `idle_grace_seconds`.
        3. In the last `farewell_seconds` let the application end the streams that still run.
        """
        limits = self._limits
        farewell_seconds = min(limits.farewell_seconds, limits.drain_seconds)
        lame_duck_seconds = (
            0.0 if is_interactive else min(limits.lame_duck_seconds, limits.drain_seconds - farewell_seconds)
        )
        idle_seconds = 0.0 if is_interactive else limits.idle_grace_seconds
        try:
            self.http_factory.start_draining()
            self._on_draining()
            await asyncio.sleep(lame_duck_seconds)
            # A socket that is closed with connections in its queue resets them.
            self._port.accept_rest()
            await self._port.stopListening().asFuture(loop)
            if not await self._becomes_quiet(
                limits.drain_seconds - lame_duck_seconds - farewell_seconds, idle_seconds
            ):
                self._on_deadline()
                await self._becomes_quiet(farewell_seconds, idle_seconds)
        finally:
            reactor.stop()

    async def _becomes_quiet(self, timeout_seconds: float, idle_seconds: float) -> bool:
        """Wait until all connections and applications have ended; return whether they did in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._has_running_applications() or self.http_factory.open_connections:
                    now = monotonic()
                    for connection in tuple(self.http_factory.open_connections):
                        connection.drain(now, idle_seconds)
                    await asyncio.sleep(QUIET_POLL_SECONDS)
                return True
        return False


async def _cancel_all_tasks() -> None:
    """Cancel the tasks of the loop, and wait at most `CANCEL_SECONDS` for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
