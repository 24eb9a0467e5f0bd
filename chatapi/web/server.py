"""Daphne with back-pressure, a body cap, drain and header hygiene.

`serve` runs an ASGI application until SIGTERM or SIGINT, then drains: it serves on for a while with answers
that end their connections (not after SIGINT), stops listening, closes idle connections, lets running
responses finish, asks the application to end what still runs (`Lifecycle.deadline`), and returns. A second
signal ends it at once. The application needs nothing of this module; it runs under any other ASGI server too,
without these guarantees.
"""

import asyncio
import contextlib
import logging
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

from accounts.loop_clock import monotonic
from chatapi.web.client_quotas import ClientQuotas
from chatapi.web.connection_factory import ConnectionFactory
from chatapi.web.http_request import HTTPRequest
from chatapi.web.server_limits import ServerLimits
from chatapi.web.transport import DaphneServer, ListeningPort, loop, reactor
from chatapi.web.websocket_connection import WebSocketConnection

logger = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[dict[str, Any]]]

ACCEPT_BACKLOG = 4096
"""Connections that the kernel completes while the process is busy; with Daphne's 50 a burst waits for
retransmissions.
"""

SEND_BUFFER_BYTES = 256 * 1024
"""What the kernel takes of an answer that its client does not read. By itself it would take megabytes, so
that much work would be done for clients that read nothing; this is enough for 2 MB/s to the other side of the
world.
"""

SWEEP_SECONDS = 0.25
SWEPT_PER_TURN = 500
QUIET_POLL_SECONDS = 0.05
CANCEL_SECONDS = 2.0


class Lifecycle:
    """What the server tells its process; override what is of interest. The methods are called on the event
    loop.
    """

    def listening(self, port: int) -> None:
        """Connections are accepted on `port`."""

    def draining(self) -> None:
        """The process has been asked to stop: /readyz must fail from now on."""

    def deadline(self) -> None:
        """`ServerLimits.farewell_seconds` are left: streams that still run must end themselves now."""


def serve(
    application: ASGI3Application,
    *,
    host: str,
    port: int,
    limits: ServerLimits | None = None,
    lifecycle: Lifecycle | None = None,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serves `application` until a signal ends it; port 0 takes any free port. Call it once, from the main
    thread.

    `trusted_proxies` are addresses and networks whose `X-Forwarded-For` says which client address a request
    counts for.

    Raises OSError if the address cannot be bound, with errno EADDRINUSE if another process holds it.
    """
    limits = limits or ServerLimits()
    listener = listen(host, port, user_timeout_seconds=limits.user_timeout_seconds)
    quotas = ClientQuotas(limits, trusted_proxies)
    Server(application, limits, lifecycle or Lifecycle(), quotas).run(listener)


def listen(host: str, port: int, *, user_timeout_seconds: float) -> socket.socket:
    """Opens the listening socket. On Linux accepted sockets inherit its options, so that none costs a system
    call later.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=ACCEPT_BACKLOG)
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    # TCP_USER_TIMEOUT watches bytes in flight; keep-alive probes are such bytes while a stream is silent. It
    # also ends a client that reads nothing and whose buffer is full, whatever its machine answers: Linux
    # can't have one time for these and one for the vanished.
    options = {
        "TCP_NODELAY": 1,
        "TCP_USER_TIMEOUT": round(user_timeout_seconds * 1000),
        "TCP_KEEPIDLE": max(1, round(user_timeout_seconds / 2)),
        "TCP_KEEPINTVL": max(1, round(user_timeout_seconds / 4)),
    }
    for name, value in options.items():
        if hasattr(socket, name):  # not every system has all of them
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return listener


class Server(DaphneServer):
    """Daphne's server with our connections, our listening socket and our way to stop."""

    def __init__(
        self, application: ASGI3Application, limits: ServerLimits, lifecycle: Lifecycle, quotas: ClientQuotas
    ) -> None:
        super().__init__(
            application,
            endpoints=["a socket"],  # Daphne insists on one; run() is given its listening socket
            server_name="",  # no banner
        )
        self._limits = limits
        self._lifecycle = lifecycle
        self._quotas = quotas
        self._drain_task: asyncio.Task[None] | None = None

    def run(self, listener: socket.socket) -> None:
        """Serves on `listener`, which becomes the server's, until a signal ends the process's service."""
        _log_twisted_errors()
        self._configure_protocols()
        self._port = ListeningPort._fromListeningDescriptor(
            reactor, listener.fileno(), listener.family, self.http_factory
        )
        self._port.startListening()
        port = listener.getsockname()[1]
        listener.close()  # the reactor has duplicated it
        reactor.callLater(1, self.application_checker)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._stop_requested, signal_number)
        sweeper = loop.create_task(self._sweep_forever())
        loop.call_soon(self._lifecycle.listening, port)
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
            allowNullOrigin=True,  # whom to trust is the application's decision, by SameOrigin
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self._limits.max_websocket_message_bytes,
            maxFramePayloadSize=self._limits.max_websocket_message_bytes,
        )

    # Applications

    async def handle_reply(
        self, protocol: HTTPRequest | WebSocketConnection, message: dict[str, Any]
    ) -> None:
        """The application's `send`: waits while the client has more unread than its connection buffers."""
        if not protocol.writable.is_set():
            await protocol.writable.wait()
        await super().handle_reply(protocol, message)

    def create_application(
        self, protocol: WebSocketConnection, scope: dict[str, Any]
    ) -> asyncio.Queue[dict[str, Any]]:
        """Starts the application for a WebSocket, for Daphne; returns the queue behind its `receive`."""
        scope.setdefault("asgi", {"version": "3.0"})
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.start_application(protocol, scope, queue.get)
        return queue

    def start_application(
        self, protocol: HTTPRequest | WebSocketConnection, scope: dict[str, Any], receive: Receive
    ) -> None:
        """Starts the application for a request or a WebSocket."""
        self.connections[protocol]["application_instance"] = loop.create_task(
            self._run_application(protocol, scope, receive)
        )

    def protocol_disconnected(self, protocol: HTTPRequest | WebSocketConnection) -> None:
        """Its application has nobody to write to any more; may be called again, also when the application has
        ended.
        """
        if protocol in self.connections:
            super().protocol_disconnected(protocol)

    async def _run_application(
        self, protocol: HTTPRequest | WebSocketConnection, scope: dict[str, Any], receive: Receive
    ) -> None:
        """Runs the application and ends what it leaves open. Daphne would find out by polling, and an error
        in mid-response ends its poll for good.
        """
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
                if connection in self.http_factory.open_connections:  # it may have been closed in the pause
                    self._check(partial(connection.sweep, monotonic()))
                if number % SWEPT_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _check(self, check: Callable[[], None]) -> None:
        """Enforces limits; the other connections need theirs whatever happens to this one."""
        try:
            check()
        except Exception:
            logger.exception("A connection's limits could not be checked")

    # The end

    def _stop_requested(self, signal_number: int) -> None:
        if self._drain_task is None:
            self._drain_task = loop.create_task(self._drain(is_person=signal_number == signal.SIGINT))
        else:
            self._drain_task.cancel()

    async def _drain(self, *, is_person: bool) -> None:
        """Ends the process's service.

        1. Answers say `Connection: close` and /readyz fails; for `lame_duck_seconds` all is served as before, so that load balancers
           and clients have the time to go elsewhere. A person at a terminal need not wait for them.
        2. The listening socket is closed, and so are connections whose clients have been silent for `idle_grace_seconds`.
        3. In the last `farewell_seconds` the application ends the streams that still run.
        """
        limits = self._limits
        farewell_seconds = min(limits.farewell_seconds, limits.drain_seconds)
        lame_duck_seconds = (
            0.0 if is_person else min(limits.lame_duck_seconds, limits.drain_seconds - farewell_seconds)
        )
        idle_seconds = 0.0 if is_person else limits.idle_grace_seconds
        try:
            self.http_factory.start_draining()
            self._lifecycle.draining()
            await asyncio.sleep(lame_duck_seconds)
            self._port.accept_rest()
            await self._port.stopListening().asFuture(loop)
            if not await self._becomes_quiet(
                limits.drain_seconds - lame_duck_seconds - farewell_seconds, idle_seconds
            ):
                self._lifecycle.deadline()
                await self._becomes_quiet(farewell_seconds, idle_seconds)
        finally:
            reactor.stop()

    async def _becomes_quiet(self, timeout_seconds: float, idle_seconds: float) -> bool:
        """Waits for the last connection and the last application to end; False if they have not in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._has_running_applications() or self.http_factory.open_connections:
                    now = monotonic()
                    for connection in tuple(self.http_factory.open_connections):
                        connection.drain(now, idle_seconds)
                    await asyncio.sleep(QUIET_POLL_SECONDS)
                return True
        return False


def _log_twisted_errors() -> None:
    """Sends Twisted's errors to the log `twisted`; its chatter about each connection is not worth formatting."""
    observer = FilteringLogObserver(STDLibLogObserver("twisted"), [LogLevelFilterPredicate(LogLevel.error)])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


async def _cancel_all_tasks() -> None:
    """Cancels what still runs on the loop and gives it a moment to clean up."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
