"""What one client may cost the server: bytes and seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds that hold for every connection, whatever the application does."""

    max_body_bytes: int = 8 * 1024 * 1024
    """A longer request body is refused with 413 as soon as that is known."""

    read_seconds_per_turn: float = 0.02
    """How much of one turn of the event loop may go into what clients send; the rest of it waits for the next
    turn.
    """

    body_piece_bytes: int = 64 * 1024
    """A longer request body reaches the application in pieces of about this length, and only as fast as it
    takes them.
    """

    max_linger_bytes: int = 32 * 1024 * 1024
    """A client that has got the last answer of its connection, and still sends, is read so far: it may look
    for the answer only when it has sent its whole request.
    """

    small_request_bytes: int = 4 * 1024
    """What has arrived of a request is never too much up to this length."""

    max_arriving_bytes_per_address: int = 16 * 1024 * 1024
    """What may arrive from a client address at the same time, of requests that nobody has authenticated;
    beyond that 429.
    """

    max_arriving_bytes: int = 256 * 1024 * 1024
    """What may arrive from all addresses together; beyond that those that have more than an equal share get
    503.
    """

    max_connections: int = 30_000
    """Open at the same time, if the system allows as many descriptors. Shortly before, the server closes
    waiting connections of the addresses that have the most of them; beyond that new ones get 503.
    """

    max_connections_per_address: int = 8_192
    """Beyond that the connection that has waited longest for a request is closed, and where none waits a new
    one gets 429.
    """

    max_handshakes_per_address: int = 60
    """WebSocket handshakes in `handshake_window_seconds`; beyond that 429."""

    handshake_window_seconds: float = 10

    websocket_read_bytes: int = 512
    """What one turn of the event loop reads from a WebSocket."""

    max_websocket_message_bytes: int = 64 * 1024

    max_websocket_messages: int = 100
    """A client that has sent so many messages which the application has not taken yet is cut off."""

    max_stalled_per_address: int = 256
    """Connections whose client reads more slowly than its answer is made; beyond that the one that stalled
    first is cut off.
    """

    head_timeout_seconds: float = 10
    """How long the head of a request may take to arrive, and how long a new connection may be silent."""

    body_timeout_seconds: float = 30
    """A request may pause for this long while it arrives, and may take this long plus one second for every
    `min_body_bytes_per_second` received; then it is refused with 408."""

    min_body_bytes_per_second: int = 10_000

    keep_alive_seconds: float = 75
    """An idle connection is closed after this time."""

    stall_seconds: float = 30
    """A client that takes no byte of its response for this long is cut off."""

    user_timeout_seconds: float = 20
    """A client whose machine acknowledges nothing, or has no room, for this long is gone (TCP_USER_TIMEOUT,
    RFC 5482).
    """

    lame_duck_seconds: float = 5
    """The first part of `drain_seconds` after SIGTERM, in which all is served as before, with answers that
    end their connections.
    """

    idle_grace_seconds: float = 2
    """After that, a connection without a request is closed when it has been idle for so long: its client may
    just be writing one.
    """

    drain_seconds: float = 30
    """The longest time from the signal to stop until the process ends."""

    farewell_seconds: float = 3
    """The last part of `drain_seconds`, in which the application ends the streams that still run."""
