"""Places among what runs at the same time: given back, renewed, and not kept by who is dead."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from accounts.rate_limits import RateLimits
from chatapi.concurrency import Batch
from tests.accounts.limit_client import LEASE_MS, Taker, running, tokens
from tests.chatapi.worker.processes import Valkey


@pytest.fixture
def taker(redis: Redis) -> Taker:
    return Taker(redis)


async def test_a_place_is_free_when_its_request_has_ended(taker: Taker) -> None:
    first = await taker.take(running(1))
    await taker.rate_limits.give_back(first, 5)
    second = await taker.take(running(1))
    await taker.rate_limits.give_back(first, 5)  # again: the second one's place is its own
    await taker.refusal(running(1))
    await taker.rate_limits.give_back(second, None)
    await taker.take(running(1))


async def test_a_place_taken_while_the_clock_of_redis_was_ahead_is_free_after_a_lease(redis: Redis) -> None:
    taker = Taker(redis, lease_ms=500)
    lost = await taker.take(running(1))
    await redis.zadd(lost.running[0], {lost.id.hex: (time.time() + 3_600) * 1e6})
    async with asyncio.timeout(5):
        while await taker.is_refused(running(1)):
            # Meanwhile another place is used again and again, or all of them would be forgotten.
            await taker.rate_limits.give_back(await taker.take(running(2)), None)
            await asyncio.sleep(0.01)


async def test_a_place_that_is_renewed_outlives_a_clock_that_was_ahead(taker: Taker, redis: Redis) -> None:
    taken = await taker.take(running(1))
    await redis.zadd(taken.running[0], {taken.id.hex: (time.time() + 3_600) * 1e6})
    await taker.refusal(running(1))
    await taker.rate_limits.renew([taken])
    await taker.refusal(running(1))


async def test_renewing_prolongs_every_place(taker: Taker, valkey: Valkey) -> None:
    limits = [running(2), running(3, scope="project")]
    taken = [await taker.take(*limits) for _ in range(2)]
    before = taker.leases(valkey)
    await taker.rate_limits.renew(taken)
    after = taker.leases(valkey)
    assert len(before) == len(after) == 4
    assert all(after[place] > before[place] for place in before)


async def test_renewing_does_not_bring_back_what_is_given_back_in_the_same_moment(
    taker: Taker, redis: Redis
) -> None:
    """Which of the two comes first in a batch is all the same."""
    shared = RateLimits(redis, taker.prefix, lease_ms=LEASE_MS, share=Batch)
    for order in (1, -1):
        taken = await taker.take(running(1))
        both = (shared.renew([taken], is_certain=True), shared.give_back(taken, 0))
        await asyncio.gather(*both[::order])
    await taker.take(running(1))


async def test_renewing_does_not_bring_back_what_was_given_back(taker: Taker) -> None:
    first, second = await taker.take(running(2)), await taker.take(running(2))
    await taker.rate_limits.give_back(first, 0)
    await taker.rate_limits.renew([first, second])
    await taker.take(running(2))
    await taker.refusal(running(2))


async def test_renewing_what_has_a_receipt_brings_its_place_back(taker: Taker, redis: Redis) -> None:
    """Its lease has ended in the queue, say."""
    taken = await taker.take(running(1))
    await redis.delete(*taken.running)
    await taker.rate_limits.renew([taken])
    await taker.refusal(running(1))


async def test_what_certainly_runs_has_its_place_in_a_redis_that_has_lost_its_data(
    taker: Taker, redis: Redis
) -> None:
    taken = await taker.take(running(1))
    await redis.delete(*await redis.keys(f"{taker.prefix}*"))
    await taker.rate_limits.renew([taken], is_certain=True)
    await taker.refusal(running(1))
    await taker.rate_limits.give_back(taken, 0)
    await taker.take(running(1))


async def test_nothing_stays_in_redis_when_all_is_paid_and_ended(taker: Taker, redis: Redis) -> None:
    taken = await taker.take(tokens(1_000, window_ms=50), running(2), tokens=1_000)
    await taker.rate_limits.give_back(taken, 1_000)
    async with asyncio.timeout(5):
        while await redis.keys(f"{taker.prefix}*"):
            await asyncio.sleep(0.01)
