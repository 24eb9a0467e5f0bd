"""A client with rate limits, for tests over a real Valkey."""

from typing import cast
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from accounts.errors import RateLimited
from accounts.limits import DAY_MS, MINUTE_MS, NOTHING_USED, Amounts, Counts, Limit
from accounts.rate_limits import RateLimits, Reservation
from tests.chatapi.worker.processes import Valkey

LEASE_MS = 60_000


def requests(most: int, *, scope: str = "key", model: str = "") -> Limit:
    return Limit(scope, 1, model, Counts.REQUESTS, most, MINUTE_MS)


def tokens(most: int, *, scope: str = "key", window_ms: int = DAY_MS) -> Limit:
    """Return a limit by the day: in the time of a test, less than a thousandth of a token leaks."""
    return Limit(scope, 1, "", Counts.TOKENS, most, window_ms)


def running(most: int, *, scope: str = "key") -> Limit:
    return Limit(scope, 1, "", Counts.RUNNING, most)


def of_tokens(number: int) -> Amounts:
    """Return these tokens, and nothing else that is counted."""
    return NOTHING_USED._replace(tokens=number)


class LimitClient:
    """Takes from limits under a prefix that no other test has."""

    def __init__(self, redis: Redis, *, lease_ms: int = LEASE_MS, prefix: str = "") -> None:
        self.prefix = prefix or f"test-{uuid4().hex}:"
        self.rate_limits = RateLimits(redis, self.prefix, lease_ms=lease_ms)

    async def take(
        self, *known: Limit, model: str = "small", tokens: int = 10, generation_id: UUID | None = None
    ) -> Reservation:
        amounts = of_tokens(tokens)
        return await self.rate_limits.take(known, generation_id or uuid4(), model=model, amounts=amounts)

    async def release(self, reservation: Reservation, used_tokens: int | None) -> None:
        """End a request that used this number of tokens; None: the number is not known."""
        used = None if used_tokens is None else of_tokens(used_tokens)
        await self.rate_limits.release(reservation, used)

    async def refusal(self, *known: Limit, model: str = "small", tokens: int = 10) -> RateLimited:
        """Take from limits without room, and return the refusal."""
        with pytest.raises(RateLimited) as caught:
            await self.take(*known, model=model, tokens=tokens)
        return caught.value

    async def take_all(self, *known: Limit, tokens: int = 10) -> RateLimited:
        """Take until there is no room, and return the refusal."""
        while True:
            try:
                await self.take(*known, tokens=tokens)
            except RateLimited as refusal:
                return refusal

    async def is_refused(self, *known: Limit, tokens: int = 10) -> bool:
        """Take if there is room; return whether there was none."""
        try:
            await self.take(*known, tokens=tokens)
        except RateLimited:
            return True
        return False

    def leases(self, valkey: Valkey) -> dict[tuple[str, str], float]:
        """Return when each lease ends, by its key and generation id."""
        found = {
            key: valkey.client.zrange(key, 0, -1, withscores=True)
            for key in valkey.client.scan_iter(f"{self.prefix}*", _type="ZSET")
        }
        return {
            (key, member): end
            for key, leases in found.items()
            for member, end in cast(list[tuple[str, float]], leases)
        }

    async def remaining(self, limit: Limit) -> int:
        """Return what is left of a limit of tokens."""
        return (await self.take(limit, tokens=0)).statuses[0].remaining
