"""In any period, requests use at most the limit and its share of the period, whenever they come and end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from accounts.errors import RateLimited
from accounts.limits import Counts, Limit
from accounts.rate_limits import RateLimits, Reservation
from tests.accounts.limit_client import of_tokens

MOST, WINDOW_MS = 1_000, 100
LARGEST = 400
STEPS = 1_200


@dataclass
class Used:
    """The tokens of a request that was admitted between `after_us` and `before_us` of Redis' clock."""

    tokens: int
    after_us: int
    before_us: int


@dataclass
class Story:
    """Random requests, one after another, with the tokens that they will use."""

    redis: Redis
    dice: random.Random
    limit: Limit = field(default_factory=lambda: Limit("key", 1, "", Counts.TOKENS, MOST, WINDOW_MS))
    used: list[Used] = field(default_factory=list)
    running: list[tuple[Reservation, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rate_limits = RateLimits(self.redis, f"test-{uuid4().hex}:", lease_ms=60_000)

    async def tell(self) -> list[Used]:
        """Generate greedy phases, whose admitted requests keep running, and ends, which release
        many at once.
        """
        for _ in range(STEPS):
            if self.dice.random() < 0.95:
                await self._take()
            else:
                await self._end_some()
        return self.used

    async def _take(self) -> None:
        tokens = self.dice.choice([LARGEST, self.dice.randint(1, LARGEST)])
        will_use = self.dice.choice([0, tokens, self.dice.randint(0, tokens)])
        before_us = await self._now_us()
        try:
            taken = await self.rate_limits.take(
                [self.limit], uuid4(), model="small", amounts=of_tokens(tokens)
            )
        except RateLimited:
            return
        self.used.append(Used(will_use, before_us, await self._now_us()))
        self.running.append((taken, will_use))

    async def _end_some(self) -> None:
        self.dice.shuffle(self.running)
        for _ in range(self.dice.randint(0, len(self.running))):
            taken, will_use = self.running.pop()
            await self.rate_limits.release(taken, of_tokens(will_use))

    async def _now_us(self) -> int:
        seconds, us = await self.redis.time()
        return int(seconds) * 1_000_000 + int(us)


def most_over(used: Sequence[Used]) -> float:
    """Return the largest excess of all windows over their share of time; it may not be above the limit."""
    worst = 0.0
    for first in range(len(used)):
        total = 0
        for last in range(first, len(used)):
            total += used[last].tokens
            worst = max(
                worst, total - (used[last].before_us - used[first].after_us) * MOST / WINDOW_MS / 1_000
            )
    return worst


@pytest.mark.parametrize("seed", range(5))
async def test_no_window_has_more_than_the_limit_and_its_share_of_time(redis: Redis, seed: int) -> None:
    used = await Story(redis, random.Random(seed)).tell()
    assert most_over(used) <= MOST
    lasted_us = used[-1].after_us - used[0].before_us
    assert sum(one.tokens for one in used) > 0.3 * MOST * lasted_us / WINDOW_MS / 1_000, (
        "it lets pass what it can"
    )
