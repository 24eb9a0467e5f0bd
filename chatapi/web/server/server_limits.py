"""Bounds on the bytes, seconds and connections that clients may cost the server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds that hold for every connection, independently of the application."""

    max_body_bytes: int = 8 * 1024 * 1024
    """A longer request body is refused with 413 as soon as its length is known."""

    accepts_per_turn: int = 512
    """Connections accepted in one turn of the event loop, 10 ms of work.

    The kernel's queue has one order for all clients, so a new client waits for all that came before. Once
    they are accepted, it waits only for its turn (`ReadTurns`). Processes that share a socket accept 8.
    """

    read_seconds_per_turn: float = 0.02
    """The time in a turn of the event loop for reading sockets; the rest is read in the next turn."""

    body_piece_bytes: int = 64 * 1024
    """A longer request body reaches the application in pieces of about this length, when it wants them."""

    max_linger_bytes: int = 32 * 1024 * 1024
    """The bytes that are read and ignored after the last response of a connection.

    A client may read the response only when it has sent its whole request.
    """

    small_request_bytes: int = 4 * 1024
    """Requests up to this length are exempt from the bounds on arriving bytes."""

    max_arriving_bytes_per_address: int = 16 * 1024 * 1024
    """The bytes of unauthenticated requests that may arrive at once from one address; beyond that 429."""

    max_arriving_bytes: int = 256 * 1024 * 1024
    """The same for all addresses together; beyond that, addresses with more than an equal share get 503."""

    max_connections: int = 30_000
    """The most open connections, if the system allows as many descriptors; beyond that new ones get 503.

    From nine tenths on, the server closes waiting connections of the addresses that have the most of them.
    """

    max_connections_per_address: int = 8_192
    """Beyond that the longest-waiting connection is closed; if none waits for a request, new ones get 429."""

    max_handshakes_per_address: int = 60
    """WebSocket handshakes in `handshake_window_seconds`; beyond that 429."""

    handshake_window_seconds: float = 10

    websocket_read_bytes: int = 512
    """The most bytes that one turn of the event loop reads from a WebSocket."""

    max_websocket_message_bytes: int = 64 * 1024

    max_websocket_messages: int = 100
    """A client is cut off when more of its messages wait for the application."""

    max_stalled_per_address: int = 256
    """The most connections whose clients read too slowly; beyond that the earliest stall is cut off."""

    head_timeout_seconds: float = 10
    """The longest time for the head of a request to arrive, and for a new connection to be silent."""

    body_timeout_seconds: float = 30
    """The longest pause in an arriving request; beyond it the request is refused with 408.

    In all a request may take this time, plus one second for every `min_body_bytes_per_second` received.
    """

    min_body_bytes_per_second: int = 10_000

    keep_alive_seconds: float = 75
    """An idle connection is closed after this time."""

    stall_seconds: float = 30
    """A client that takes no byte of its response for this long is cut off."""

    user_timeout_seconds: float = 20
    """The longest time for which a client's machine acknowledges nothing (TCP_USER_TIMEOUT, RFC 5482)."""

    lame_duck_seconds: float = 5
    """The first part of `drain_seconds` after SIGTERM: requests are served, and responses end connections."""

    idle_grace_seconds: float = 2
    """After that, connections are closed when they have been idle for this time.

    A client of a less idle one may just be writing a request.
    """

    drain_seconds: float = 30
    """The longest time from the signal until the process ends."""

    farewell_seconds: float = 3
    """The last part of `drain_seconds`, in which the application ends the streams that still run."""
