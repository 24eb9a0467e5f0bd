"""Whether this process is draining: /readyz says so from the moment it is told to stop."""

import threading

_draining = threading.Event()


def start_draining() -> None:
    """From now on, no new requests should be sent here."""
    _draining.set()


def is_draining() -> bool:
    """Whether the process has been told to stop."""
    return _draining.is_set()
