"""What a worker does with what runs have taken from rate limits when their web process is gone."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from accounts.errors import RateLimited
from accounts.limits import DAY_MS, Counts, Limit
from accounts.rate_limits import RateLimits, Taken
from chatapi.redis_client import connect
from chatapi.worker import orphaned_reservations as module
from chatapi.worker.orphaned_reservations import LeftBehind
from chatapi.worker.runs.run import Run
from tests.chatapi.worker.processes import Valkey
from usage.books.ledger import Claimed
from usage.pricing import Tokens

ONE = Limit("key", 1, "", Counts.RUNNING, 1)
DAY = Limit("key", 1, "", Counts.TOKENS, 1_000, DAY_MS)
LEASE_MS = 15_000


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Redis]:
    redis = connect(f"unix://{valkey.socket}")
    yield redis
    await redis.aclose()


async def take(limits: RateLimits, tokens: int) -> Taken:
    return await limits.take([DAY, ONE], uuid4(), model="small", tokens=tokens)


def run_of(taken: Taken) -> Run:
    return Run(
        Claimed(taken.id, 1, "small", 10, 1, is_test=False, organization_id=1),
        "web",
        runs_on=True,
        taken=taken,
    )


async def test_what_runs_has_its_place_though_its_lease_has_ended_in_the_queue(redis: Redis) -> None:
    limits = RateLimits(redis, "test:", lease_ms=LEASE_MS)
    run = run_of(
        await RateLimits(redis, "test:", lease_ms=1).take([DAY, ONE], uuid4(), model="small", tokens=800)
    )
    async with asyncio.timeout(5):
        while await redis.exists(*(run.taken.running if run.taken else ())):
            await asyncio.sleep(0.01)
    left_behind = LeftBehind(limits)
    await left_behind.sweep([run], {"web"})
    with pytest.raises(RateLimited):
        await take(limits, 0)
    left_behind.end(run, Tokens(60, 40))
    await left_behind.sweep([run], {"web"})
    assert (await take(limits, 0)).standings[0].remaining == 900


async def test_it_is_given_back_though_its_web_process_died_long_after_its_end(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before it would have asked the books again, 5 s after the end; that it is dead is seen 3 s later
    and at the next sweep.
    """
    limits, clock = RateLimits(redis, "test:", lease_ms=LEASE_MS), SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    left_behind = LeftBehind(limits)
    left_behind.end(run_of(await take(limits, 800)), Tokens(60, 40))
    for _ in range(4):
        clock.now += 2
        await left_behind.sweep([], set())
    clock.now += 2
    await left_behind.sweep([], {"web"})
    assert (await take(limits, 0)).standings[0].remaining == 900


async def test_what_a_web_process_that_lives_has_to_give_back_is_forgotten(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, clock = RateLimits(redis, "test:", lease_ms=LEASE_MS), SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    left_behind = LeftBehind(limits)
    left_behind.end(run_of(await take(limits, 800)), Tokens(60, 40))
    clock.now += 60
    await left_behind.sweep([], set())
    assert left_behind.inboxes == set()


async def test_a_worker_that_ends_gives_back_what_a_web_process_may_not_live_to(redis: Redis) -> None:
    limits = RateLimits(redis, "test:", lease_ms=LEASE_MS)
    left_behind = LeftBehind(limits)
    left_behind.end(run_of(await take(limits, 800)), Tokens(60, 40))
    await left_behind.close()
    assert (await take(limits, 0)).standings[0].remaining == 900
