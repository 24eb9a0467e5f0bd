"""Checks that numbers are within their bounds."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks

from chatapi.checks import CHECK_TAG

WEEK_MS = 7 * 24 * 60 * 60 * 1_000
# The largest values: far above useful ones, and within the range of the database, Redis and timers.
MAX = {
    "DATABASE_TIMEOUT_MS": WEEK_MS,
    "DATABASE_POOL_SIZE": 1_000,
    "WORKER_CONCURRENCY": 100_000,
    "MAX_OPEN_GENERATIONS": 1_000_000_000,
    "MAX_BODY_BYTES": 1024 * 1024 * 1024,
    "MAX_CONNECTIONS": 1_000_000,
    "MAX_CONNECTIONS_PER_ADDRESS": 1_000_000,
    "KEY_CACHE_MS": WEEK_MS,
    "FAILED_AUTHENTICATIONS_PER_MINUTE": 1_000_000,
    "LEASE_MS": WEEK_MS,
    "HEARTBEAT_MS": WEEK_MS,
    "REAPER_MS": WEEK_MS,
    "QUEUE_TTL_MS": WEEK_MS,
    "MAX_QUEUE_AGE_MS": WEEK_MS,
    "PING_MS": WEEK_MS,
    "TICKET_TTL_MS": WEEK_MS,
    "REFUSED_BODY_BYTES_PER_MINUTE": 1024 * 1024 * 1024 * 1024,
    "STREAM_TTL_MS": WEEK_MS,
    "STALL_MS": WEEK_MS,
    "LAME_DUCK_MS": WEEK_MS,
    "DRAIN_MS": WEEK_MS,
    "HUNG_MS": WEEK_MS,
}
# The smallest values, where they are not 1.
MIN = {
    "MAX_QUEUE_AGE_MS": 0,
    "PING_MS": 0,
    "LAME_DUCK_MS": 0,
    "FAILED_AUTHENTICATIONS_PER_MINUTE": 0,
    "REFUSED_BODY_BYTES_PER_MINUTE": 0,
    "HUNG_MS": 1_000,
}


@checks.register(CHECK_TAG)
def check_numbers(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the numbers are within their bounds."""
    numbers = {name: getattr(settings, name) for name in MAX}
    found = {name: _wrong_number(number, MIN.get(name, 1), MAX[name]) for name, number in numbers.items()}
    return [
        checks.Error(f"CHATAPI_{name}={numbers[name]} {wrong[0]}", hint=wrong[1], id="chatapi.E002")
        for name, wrong in found.items()
        if wrong is not None
    ]


def _wrong_number(number: int, least: int, most: int) -> tuple[str, str] | None:
    """Return the message and hint for a number that is out of bounds, or None."""
    if number > most:
        return "is too large.", f"Use {most} or less."
    if number < least:
        what = {0: ("is negative.", "Use 0 for none, or more."), 1: ("is not positive.", "Use 1 or more.")}
        return what.get(least, ("is too small.", f"Use {least} or more."))
    return None


@checks.register(CHECK_TAG)
def check_lease(**_: Any) -> Sequence[checks.CheckMessage]:
    """Check that the lease outlasts one lost heartbeat."""
    if settings.LEASE_MS >= 2 * settings.HEARTBEAT_MS:
        return []
    message = (
        f"CHATAPI_LEASE_MS={settings.LEASE_MS} is too short for CHATAPI_HEARTBEAT_MS={settings.HEARTBEAT_MS}."
    )
    return [
        checks.Error(message, hint=f"Make the lease {2 * settings.HEARTBEAT_MS} or more.", id="chatapi.E003")
    ]
