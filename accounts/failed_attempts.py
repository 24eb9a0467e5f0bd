"""Counts wrong keys by client IP, and refuses further keys before the database is asked.

Each process counts for itself, so a wrong key costs no round trip. Once a second it adds its new counts to
Redis and learns the sums of all processes; without Redis it continues with its own.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings
from redis.asyncio import Redis

from accounts import api_keys, ip_addresses
from accounts.errors import NotAuthenticated, TooManyFailedAttempts
from accounts.redis_time_limit import in_time

WINDOW_MS = 60_000
# How often a web process calls `share`.
SHARE_S = 1.0
MAX_IPS = 10_000
MAX_RIGHT_KEYS = 10_000


@dataclass(slots=True)
class _Count:
    """The failures of one IP in a window that began with the first of them."""

    ends_at: float
    failures: int = 0
    """The failures in this process, and those that other processes had at the last exchange."""
    new: int = 0
    """The failures in this process that Redis does not have yet."""


class FailedAttempts:
    """The counts of one process; its event loop and its threads may use them at the same time."""

    def __init__(self, most_per_minute: Callable[[], int]) -> None:
        """Count failures up to those that an IP may have in a minute; 0 disables the counting."""
        self._most_per_minute = most_per_minute
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._right_keys: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, ip: str) -> Iterator[None]:
        """Count `NotAuthenticated`, or raise `TooManyFailedAttempts` instead if the IP has none left."""
        try:
            yield
        except NotAuthenticated:
            most = self._most_per_minute()
            if most:
                self._refuse_beyond(most, ip)
                self._add(ip)
            raise

    @contextmanager
    def permitted(self, ip: str, key: str) -> Iterator[None]:
        """Refuse to look the key up if the IP has no failures left, unless it was right before."""
        most = self._most_per_minute()
        digest = api_keys.digest(key, settings.KEY_PEPPER)
        # A key that was right before is looked up even if others behind the same IP send wrong ones.
        if most and digest not in self._right_keys:
            self._refuse_beyond(most, ip)
        try:
            yield
        except NotAuthenticated:
            with self._lock:
                self._right_keys.pop(digest, None)
            raise
        with self._lock:
            self._right_keys[digest] = None
            self._right_keys.move_to_end(digest)
            while len(self._right_keys) > MAX_RIGHT_KEYS:
                self._right_keys.popitem(last=False)

    async def share(self, redis: Redis, prefix: str) -> None:
        """Add the new counts to Redis and learn its sums; raises `RedisError`, and keeps the counts."""
        with self._lock:
            new = {network: count.new for network, count in self._counts.items() if count.new}
        if not new:
            return
        async with redis.pipeline(transaction=True) as pipe:
            for network, failures in new.items():
                key = f"{prefix}failed:{network}"
                pipe.incrby(key, failures)
                # A window begins with its first failure; later ones don't extend it.
                pipe.pexpire(key, WINDOW_MS, nx=True)
                pipe.pttl(key)
            async with in_time():
                replies = await pipe.execute()
        with self._lock:
            for (network, shared), total, left_ms in zip(
                new.items(), replies[::3], replies[2::3], strict=True
            ):
                count = self._counts.get(network)
                if count is not None:
                    # What was counted during the round trip is still new. It is less than `shared` if a new
                    # window has begun meanwhile.
                    count.new = max(0, count.new - shared)
                    count.failures = total + count.new
                    count.ends_at = time.monotonic() + left_ms / 1_000

    def _refuse_beyond(self, most: int, ip: str) -> None:
        count, now = self._counts.get(ip_addresses.network_of(ip)), time.monotonic()
        if count is not None and count.failures >= most and count.ends_at > now:
            raise TooManyFailedAttempts(round((count.ends_at - now) * 1_000))

    def _add(self, ip: str) -> None:
        network, now = ip_addresses.network_of(ip), time.monotonic()
        with self._lock:
            count = self._counts.get(network)
            if count is None or count.ends_at <= now:
                count = self._counts[network] = _Count(now + WINDOW_MS / 1_000)
                self._counts.move_to_end(network)
            count.failures += 1
            count.new += 1
            while len(self._counts) > MAX_IPS:
                self._counts.popitem(last=False)


# The counts of this process, shared by the hot routes and Django.
attempts = FailedAttempts(lambda: int(settings.FAILED_AUTHENTICATIONS_PER_MINUTE))
