"""What one client may cost the server: bytes and seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold for every connection, whatever the application does."""

    max_body_bytes: int = 8 * 1024 * 1024
    """A longer request body is refused with 413 as soon as that is known."""

    body_piece_bytes: int = 64 * 1024
    """A longer request body reaches the application in pieces of about this length, and only as fast as it takes them."""

    max_linger_bytes: int = 32 * 1024 * 1024
    """A client that has got the last answer of its connection, and still sends, is read so far: it may look for the answer only when it
    has sent its whole request."""

    max_arriving_bodies: int = 32
    """Of requests that arrive at the same time, before anyone knows whose they are, so many bodies of the greatest length are kept; beyond
    that, of those that are larger than an equal share the ones that have been arriving for the longest time are refused with 503."""

    body_timeout_seconds: float = 30
    """A request may pause for this long while it arrives, and may take this long plus one second for every
    `min_body_bytes_per_second` received; then it is refused with 408."""

    min_body_bytes_per_second: int = 10_000

    keep_alive_seconds: float = 75
    """An idle connection is closed after this time."""

    stall_seconds: float = 30
    """A client that takes no byte of its response for this long is cut off."""

    user_timeout_seconds: float = 20
    """A client whose machine acknowledges nothing, or has no room, for this long is gone (TCP_USER_TIMEOUT, RFC 5482)."""

    drain_seconds: float = 30
    """The longest time from the signal to stop until the process ends."""

    farewell_seconds: float = 3
    """The last part of `drain_seconds`, in which the application ends the streams that still run."""
