"""How many wrong keys each client address has sent: who sent too many is refused before the database is
asked.

Every process counts by itself, so that a wrong key costs no round trip; once a second it tells Redis what it
has counted since, and learns what all processes together have. Without Redis it goes on with its own count. A
key that was right before is looked up however many wrong ones its neighbours behind the same address send.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.conf import settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts import api_keys, client_address, loop_clock
from accounts.errors import NotAuthenticated, TooManyFailedAttempts

WINDOW_MS = 60_000
SHARE_S = 1.0
REPLY_TIMEOUT_S = 3.0
MOST_ADDRESSES = 10_000
MOST_RIGHT_KEYS = 10_000

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Count:
    """The failures of one address in a window that began with the first of them."""

    ends_at: float
    failures: int = 0
    """As far as this process knows: its own, and others' when it last asked."""
    untold: int = 0
    """Those of them that Redis has not been told of."""


class FailedAttempts:
    """The counts of one process; its event loop and its threads may use it at the same time."""

    def __init__(self, most_per_minute: Callable[[], int]) -> None:
        """`most_per_minute`: the failures that an address has for nothing; 0: nobody is counted."""
        self._most_per_minute = most_per_minute
        self._counts: OrderedDict[str, _Count] = OrderedDict()
        self._right_keys: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, address: str) -> Iterator[None]:
        """Around everything that may raise `NotAuthenticated`, which is counted; instead raises
        `TooManyFailedAttempts` beyond the most.
        """
        try:
            yield
        except NotAuthenticated:
            most = self._most_per_minute()
            if most:
                self._refuse_beyond(most, address)
                self._add(address)
            raise

    @contextmanager
    def permitted(self, address: str, key: str) -> Iterator[None]:
        """Around looking a key up: raises `TooManyFailedAttempts` instead if the address has none left and
        the key was not right before.
        """
        most = self._most_per_minute()
        digest = api_keys.digest(key, settings.KEY_PEPPER)
        if most and digest not in self._right_keys:
            self._refuse_beyond(most, address)
        try:
            yield
        except NotAuthenticated:
            with self._lock:
                self._right_keys.pop(digest, None)
            raise
        self._remember(digest)

    async def share(self, redis: Redis, prefix: str) -> None:
        """Tell Redis what was counted since the last time, and learn its sums; raises `RedisError`, and then
        nothing is forgotten.
        """
        with self._lock:
            untold = {address: count.untold for address, count in self._counts.items() if count.untold}
        if not untold:
            return
        async with redis.pipeline(transaction=True) as pipe:
            for address, failures in untold.items():
                key = f"{prefix}failed:{address}"
                pipe.incrby(key, failures)
                pipe.pexpire(key, WINDOW_MS, nx=True)
                pipe.pttl(key)
            async with loop_clock.timeout(REPLY_TIMEOUT_S):
                replies = await pipe.execute()
        for (address, told), total, left_ms in zip(untold.items(), replies[::3], replies[2::3], strict=True):
            self._learn(address, told, total, left_ms)

    async def share_for_ever(self, redis: Redis, prefix: str) -> None:
        """Every second, whether Redis is there or not."""
        while True:
            await asyncio.sleep(SHARE_S)
            try:
                await self.share(redis, prefix)
            except (RedisError, OSError) as error:  # a TimeoutError is an OSError
                log.warning("failed attempts are not shared: %r", error)

    def _refuse_beyond(self, most: int, address: str) -> None:
        count, now = self._counts.get(client_address.household(address)), time.monotonic()
        if count is not None and count.failures >= most and count.ends_at > now:
            raise TooManyFailedAttempts(round((count.ends_at - now) * 1_000))

    def _add(self, address: str) -> None:
        whose, now = client_address.household(address), time.monotonic()
        with self._lock:
            count = self._counts.get(whose)
            if count is None or count.ends_at <= now:
                count = self._counts[whose] = _Count(now + WINDOW_MS / 1_000)
                self._counts.move_to_end(whose)
            count.failures += 1
            count.untold += 1
            while len(self._counts) > MOST_ADDRESSES:
                self._counts.popitem(last=False)

    def _learn(self, whose: str, told: int, total: int, left_ms: int) -> None:
        with self._lock:
            count = self._counts.get(whose)
            if count is not None:
                count.untold = max(0, count.untold - told)
                count.failures = total + count.untold
                count.ends_at = time.monotonic() + left_ms / 1_000

    def _remember(self, digest: str) -> None:
        with self._lock:
            self._right_keys[digest] = None
            self._right_keys.move_to_end(digest)
            while len(self._right_keys) > MOST_RIGHT_KEYS:
                self._right_keys.popitem(last=False)


attempts = FailedAttempts(lambda: int(settings.FAILED_AUTHENTICATIONS_PER_MINUTE))
"""Those of this process: the hot routes' and Django's together."""
