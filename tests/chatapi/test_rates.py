"""A process's hold on its callers' limits: what is over gives its place back, whatever goes wrong with the books."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.limits import DAY_MS, Counts, Limit
from accounts.rate_limits import LEASE_MS, Ask, Operation, RateLimits, Run
from chatapi.batch import Batch
from chatapi.redis_client import connect
from chatapi.web.rates import Rates
from tests.chatapi.worker.processes import Valkey
from usage import reports

ONE = Limit("key", 1, "", Counts.RUNNING, 1, 0)


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Redis]:
    redis = connect(f"unix://{valkey.socket}")
    yield redis
    await redis.aclose()


async def broken(_: UUID) -> reports.End | None:
    raise ValueError("a row that can't be read")


async def unknown(_: UUID) -> reports.End | None:
    return None


class Away:
    """A Redis that can be away, between a process and the real one."""

    def __init__(self, redis: Redis) -> None:
        self.is_away, self.refused = False, asyncio.Event()
        self.limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=LEASE_MS, share=self._share)

    def _share(self, run: Run) -> Ask:
        return Batch(partial(self._run, run))

    async def _run(self, run: Run, operations: Sequence[Operation]) -> Sequence[Any]:
        if self.is_away:
            self.refused.set()
            raise RedisConnectionError("away")
        return await run(operations)


def caller(*limits: Limit) -> Caller:
    return Caller(1, 1, 1, is_test=False, is_admin=False, default_dialect="", time_zone="UTC", rate_limits=limits)


async def test_books_that_break_keep_nobody_in_its_place(redis: Redis) -> None:
    rates = Rates(RateLimits(redis, "test:", lease_ms=LEASE_MS), broken)
    taken = await rates.take(caller(ONE), uuid4(), model="small", tokens=10)
    with pytest.raises(RateLimited):
        await rates.take(caller(ONE), uuid4(), model="small", tokens=10)
    with pytest.raises(ValueError, match="a row that"):
        await rates.give_back(taken, None)
    await rates.take(caller(ONE), uuid4(), model="small", tokens=10)


async def test_who_stops_asking_the_books_leaves_what_runs_on_to_its_worker(redis: Redis) -> None:
    limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=LEASE_MS)
    rates, day = Rates(limits, unknown), Limit("key", 1, "", Counts.TOKENS, 1_000, DAY_MS)
    taken = await rates.take(caller(ONE, day), uuid4(), model="small", tokens=800)
    asking = asyncio.create_task(rates.give_back(taken, None))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(RateLimited):
        await rates.take(caller(ONE), uuid4(), model="small", tokens=10)
    await limits.give_back(taken, 100)  # as its worker does
    assert (await rates.take(caller(ONE, day), uuid4(), model="small", tokens=0)).standings[0].remaining == 900


async def test_what_is_over_while_redis_is_away_is_given_back_when_it_is_there_again(redis: Redis) -> None:
    away = Away(redis)
    rates, limits = Rates(away.limits, unknown), (ONE, Limit("key", 1, "", Counts.TOKENS, 1_000, DAY_MS))
    taken = await rates.take(caller(*limits), uuid4(), model="small", tokens=800)
    away.is_away = True
    giving_back = asyncio.create_task(rates.give_back(taken, 100))
    await away.refused.wait()
    away.is_away = False
    await giving_back
    assert (await rates.take(caller(*limits), uuid4(), model="small", tokens=0)).standings[0].remaining == 900
