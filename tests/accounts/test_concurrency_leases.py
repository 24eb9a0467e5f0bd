"""Concurrency limits: leases are released, renewed, and expire when their process is dead."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from accounts.limits import NOTHING_USED
from accounts.rate_limits import RateLimits
from chatapi.concurrency import Batch
from tests.accounts.limit_client import LEASE_MS, LimitClient, running, tokens
from tests.chatapi.worker.processes import Valkey


@pytest.fixture
def client(redis: Redis) -> LimitClient:
    return LimitClient(redis)


async def test_a_released_lease_makes_room(client: LimitClient) -> None:
    first = await client.take(running(1))
    await client.release(first, 5)
    second = await client.take(running(1))
    await client.release(first, 5)  # a second time, which must not free the second request's place
    await client.refusal(running(1))
    await client.release(second, None)
    await client.take(running(1))


async def test_a_lease_granted_while_the_clock_of_redis_was_ahead_expires(redis: Redis) -> None:
    client = LimitClient(redis, lease_ms=500)
    lost = await client.take(running(1))
    await redis.zadd(lost.leases[0], {lost.id.hex: (time.time() + 3_600) * 1e6})
    async with asyncio.timeout(5):
        while await client.is_refused(running(1)):
            # Another lease keeps the key from expiring as a whole.
            await client.release(await client.take(running(2)), None)
            await asyncio.sleep(0.01)


async def test_a_renewed_lease_outlives_a_clock_that_was_ahead(client: LimitClient, redis: Redis) -> None:
    reservation = await client.take(running(1))
    await redis.zadd(reservation.leases[0], {reservation.id.hex: (time.time() + 3_600) * 1e6})
    await client.refusal(running(1))
    await client.rate_limits.renew([reservation])
    await client.refusal(running(1))


async def test_renewing_prolongs_every_lease(client: LimitClient, valkey: Valkey) -> None:
    limits = [running(2), running(3, scope="project")]
    reservation = [await client.take(*limits) for _ in range(2)]
    before = client.leases(valkey)
    await client.rate_limits.renew(reservation)
    after = client.leases(valkey)
    assert len(before) == len(after) == 4
    assert all(after[place] > before[place] for place in before)


async def test_a_release_after_a_renewal_of_the_same_moment_ends_the_lease(
    client: LimitClient, redis: Redis
) -> None:
    shared = RateLimits(redis, client.prefix, lease_ms=LEASE_MS, share=Batch)
    reservation = await client.take(running(1))
    await asyncio.gather(shared.renew([reservation]), shared.release(reservation, NOTHING_USED))
    await client.take(running(1))


async def test_renewing_restores_leases_in_a_redis_that_has_lost_its_data(
    client: LimitClient, redis: Redis
) -> None:
    reservation = await client.take(running(1))
    await redis.delete(*await redis.keys(f"{client.prefix}*"))
    await client.rate_limits.renew([reservation])
    await client.refusal(running(1))
    await client.release(reservation, 0)
    await client.take(running(1))


async def test_nothing_stays_in_redis_when_all_is_paid_and_ended(client: LimitClient, redis: Redis) -> None:
    reservation = await client.take(tokens(1_000, window_ms=50), running(2), tokens=1_000)
    await client.release(reservation, 1_000)
    async with asyncio.timeout(5):
        while await redis.keys(f"{client.prefix}*"):
            await asyncio.sleep(0.01)
