"""The reservations of a web process: renewed, released at the end, rolled back if a client leaves."""

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from accounts import redis_time_limit
from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.limits import DAY_MS, NOTHING_USED, Counts, Limit
from accounts.rate_limits import RUNNING_LEASE_MS, Ask, Operation, RateLimits, Run
from chatapi.concurrency import Batch
from chatapi.redis_client import connect
from chatapi.web import rates as rates_module
from chatapi.web.rates import Rates
from chatapi.web.services import Services
from tests.accounts.limit_client import of_tokens
from tests.chatapi.worker.processes import Valkey
from usage.books import reports
from usage.pricing import Tokens

ONE = Limit("key", 1, "", Counts.RUNNING, 1, 0)
DAY = Limit("key", 1, "", Counts.TOKENS, 1_000, DAY_MS)


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Redis]:
    redis = connect(f"unix://{valkey.socket}")
    yield redis
    await redis.aclose()


async def broken(_: UUID) -> reports.End | None:
    raise ValueError("a row that can't be read")


async def unknown(_: UUID) -> reports.End | None:
    return None


background: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(work)
    background.add(task)
    task.add_done_callback(background.discard)
    return task


class Away:
    """A Redis that can be away, between a process and the real one."""

    def __init__(self, redis: Redis) -> None:
        self.is_away, self.refused = False, asyncio.Event()
        self.limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=RUNNING_LEASE_MS, share=self._share)

    def _share(self, run: Run) -> Ask:
        return Batch(partial(self._run, run))

    async def _run(self, run: Run, operations: Sequence[Operation]) -> Sequence[Any]:
        if self.is_away:
            self.refused.set()
            raise RedisConnectionError("away")
        return await run(operations)


def caller(*limits: Limit) -> Caller:
    return Caller(
        1, 1, 1, is_test=False, is_admin=False, default_dialect="", time_zone="UTC", rate_limits=limits
    )


async def remaining(rates: Rates, *limits: Limit) -> int | None:
    """Return what is left of the first of them, None if there is no room."""
    try:
        reservation = await rates.take(caller(*limits), uuid4(), model="small", amounts=of_tokens(0))
    except RateLimited:
        return None
    await rates.release(reservation, NOTHING_USED)
    return reservation.statuses[0].remaining


async def test_a_failure_of_the_books_keeps_no_lease(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "RENEW_S", 0.01)
    rates = Rates(RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=500), broken, in_background)
    reservation = await rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(10))
    renewing = asyncio.create_task(rates.renew())
    with pytest.raises(RateLimited):
        await rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(10))
    with pytest.raises(ValueError, match="a row that"):
        await rates.release(reservation, None)
    async with asyncio.timeout(5):
        while await remaining(rates, DAY, ONE) is None:
            await asyncio.sleep(0.01)
    renewing.cancel()


async def test_a_request_is_released_with_what_the_books_say_that_it_used(redis: Redis) -> None:
    limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=RUNNING_LEASE_MS)

    async def ended(_: UUID) -> reports.End | None:
        return cast(reports.End, SimpleNamespace(tokens=Tokens(60, 40), model="small"))

    rates = Rates(limits, ended, in_background)
    for _ in range(2):  # a second release changes nothing
        reservation = await rates.take(caller(DAY, ONE), uuid4(), model="small", amounts=of_tokens(800))
        await rates.release(reservation, None)
        await rates.release(reservation, NOTHING_USED)
    assert await remaining(rates, DAY, ONE) == 800


async def test_limits_of_the_models_that_did_not_answer_get_all_back(redis: Redis) -> None:
    limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=RUNNING_LEASE_MS)

    async def ended(_: UUID) -> reports.End | None:
        return cast(reports.End, SimpleNamespace(tokens=Tokens(60, 40), model="large"))

    rates = Rates(limits, ended, in_background)
    of_models = {name: replace(DAY, model=name) for name in ("small", "large", "other")}
    amounts = of_tokens(800)
    reservation = await rates.take(
        caller(DAY, *of_models.values()), uuid4(), model="small", amounts=amounts, fallbacks=["large"]
    )
    assert [status.remaining for status in reservation.statuses] == [200, 200, 200], "not of the other"
    await rates.release(reservation, None)
    used = await limits.used([DAY, *of_models.values()])
    assert list(used.values()) == [100, 0, 100, 0]


async def test_a_release_while_redis_is_away_is_made_when_it_is_back(redis: Redis) -> None:
    away = Away(redis)
    rates, limits = Rates(away.limits, unknown, in_background), (DAY, ONE)
    reservation = await rates.take(caller(*limits), uuid4(), model="small", amounts=of_tokens(800))
    away.is_away = True
    giving_back = asyncio.create_task(rates.release(reservation, of_tokens(100)))
    await away.refused.wait()
    away.is_away = False
    await giving_back
    found = await rates.take(caller(*limits), uuid4(), model="small", amounts=NOTHING_USED)
    assert found.statuses[0].remaining == 900


async def test_the_lease_that_a_frozen_redis_grants_when_it_goes_on_expires(
    redis: Redis, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "RENEW_S", 0.01)
    rates = Rates(
        RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=500, share=Batch), unknown, in_background
    )
    renewing = asyncio.create_task(rates.renew())
    assert await remaining(rates, DAY, ONE) == 1_000  # from now on Redis knows the script
    with valkey.frozen(), monkeypatch.context() as patch:
        patch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.1)
        with pytest.raises(RedisError):
            await rates.take(caller(DAY, ONE), uuid4(), model="small", amounts=of_tokens(800))
    async with asyncio.timeout(10):
        while (left := await remaining(rates, DAY, ONE)) is None:
            await asyncio.sleep(0.01)
    assert left <= 200 + 10  # nobody knows that its tokens were taken: time pays for them
    renewing.cancel()


async def test_a_client_that_leaves_while_limits_are_taken_releases_all(redis: Redis) -> None:
    rates, limits = Rates(Away(redis).limits, unknown, in_background), (DAY, ONE)
    taking = asyncio.create_task(rates.take(caller(*limits), uuid4(), model="small", amounts=of_tokens(800)))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with asyncio.timeout(10):
        while await remaining(rates, *limits) != 1_000:
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_while_it_is_refused_leaves_nothing_taken(redis: Redis) -> None:
    unnoticed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unnoticed.append(context["message"]))
    rates = Rates(Away(redis).limits, unknown, in_background)
    await rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(1))
    taking = asyncio.create_task(rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(1)))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with asyncio.timeout(5):
        while background:
            await asyncio.sleep(0.01)
    gc.collect()
    assert unnoticed == []


async def test_a_rollback_that_fails_is_logged(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unreadable(*_: object) -> None:
        raise ValueError("a reply that can't be read")

    services, limits = Services(), Away(redis).limits
    monkeypatch.setattr(limits, "release", unreadable)
    rates = Rates(limits, unknown, services.in_background)
    taking = asyncio.create_task(rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(1)))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    async with asyncio.timeout(5):
        while "a reply that can't be read" not in caplog.text:
            await asyncio.sleep(0.01)
    await services.commits.close()


async def test_what_runs_has_its_lease_again_in_a_redis_that_has_lost_its_data(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "RENEW_S", 0.01)
    rates = Rates(
        RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=RUNNING_LEASE_MS), unknown, in_background
    )
    reservation = await rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(1))
    await redis.delete(*reservation.leases)
    renewing = asyncio.create_task(rates.renew())
    async with asyncio.timeout(5):
        while not await redis.exists(*reservation.leases):
            await asyncio.sleep(0.01)
    renewing.cancel()


async def test_what_runs_on_without_its_client_keeps_its_lease(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "RENEW_S", 0.01)
    rates = Rates(RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=200), unknown, in_background)
    reservation = await rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(1))
    tasks = [asyncio.create_task(work) for work in (rates.renew(), rates.release(reservation, None))]
    await asyncio.sleep(0.5)
    await refused(rates, ONE)
    for task in tasks:
        task.cancel()


MINUTE = Limit("key", 1, "", Counts.REQUESTS, 1, 60_000)
BLINK = Limit("key", 2, "", Counts.REQUESTS, 1, 200)


async def refused(rates: Rates, *limits: Limit) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await rates.take(caller(*limits), uuid4(), model="small", amounts=of_tokens(1))
    return caught.value


async def test_a_full_limit_of_requests_is_remembered_for_a_while(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Away(redis)
    rates = Rates(away.limits, unknown, in_background)
    rates.check(caller(MINUTE))
    await rates.take(caller(MINUTE), uuid4(), model="small", amounts=of_tokens(1))
    rates.check(caller(MINUTE))  # nobody was refused
    shown = await refused(rates, MINUTE, DAY)
    away.is_away = True
    with pytest.raises(RateLimited) as remembered:
        rates.check(caller(DAY, MINUTE))
    assert (remembered.value.limit, remembered.value.statuses) == (MINUTE, shown.statuses)
    assert 0 < (remembered.value.retry_after_ms or 0) <= (shown.retry_after_ms or 0)
    rates.check(caller(replace(MINUTE, most=2)))  # another limit, as of now
    monkeypatch.setattr(rates_module, "REMEMBERED_S", 0)
    away.is_away = False
    await refused(rates, MINUTE)
    rates.check(caller(MINUTE))


async def test_the_wait_of_a_remembered_limit_is_long_enough(redis: Redis) -> None:
    rates = Rates(Away(redis).limits, unknown, in_background)
    await rates.take(caller(BLINK), uuid4(), model="small", amounts=of_tokens(1))
    shown = await refused(rates, BLINK)
    await asyncio.sleep((shown.retry_after_ms or 0) / 1_000)
    rates.check(caller(BLINK))
    await rates.take(caller(BLINK), uuid4(), model="small", amounts=of_tokens(1))


async def test_limits_of_tokens_and_concurrency_are_not_remembered(redis: Redis) -> None:
    rates = Rates(Away(redis).limits, unknown, in_background)
    await rates.take(caller(ONE), uuid4(), model="small", amounts=of_tokens(1))
    await refused(rates, ONE)
    rates.check(caller(ONE))
    await rates.look(caller(ONE))


async def test_refused_requests_use_up_the_limit_of_requests(redis: Redis) -> None:
    away = Away(redis)
    rates = Rates(away.limits, unknown, in_background)
    for _ in range(2):  # the second finds no room, and says so to nobody but the process
        await rates.take_refused(caller(MINUTE), uuid4())
    with pytest.raises(RateLimited):
        rates.check(caller(MINUTE))
    with pytest.raises(RateLimited):
        await rates.look(caller(MINUTE))
    away.is_away = True
    await rates.take_refused(caller(MINUTE), uuid4())
    with pytest.raises(RedisError):
        await rates.look(caller(MINUTE))
