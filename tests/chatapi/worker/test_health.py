"""The cool-down of a deployment, its probes, and failures that workers learn from each other."""

import asyncio

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from chatapi.redis_client import connect
from chatapi.wire.deltas import Failed
from chatapi.wire.upstream import upstream_errors
from chatapi.worker.routing import health as health_module
from chatapi.worker.routing.health import COOL_DOWN_S, MAX_COOL_DOWN_S, REST_S, CoolDown, Health
from chatapi.worker.routing.router import Router
from chatapi.worker.routing.shared_cool_downs import exchange
from tests.chatapi.worker.processes import Valkey

KEY = "model deployment"


class Clock:
    """The time that health is measured in."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(health_module, "time", clock)
    return clock


def fail(health: Health, failure: Failed = upstream_errors.UNAVAILABLE) -> None:
    health.failed(KEY, health.begin(KEY), failure)


def succeed(health: Health) -> None:
    health.succeeded(KEY, health.begin(KEY))


@pytest.mark.parametrize(
    "failure", [upstream_errors.UNAVAILABLE, upstream_errors.UNREACHABLE, upstream_errors.RATE_LIMITED]
)
def test_an_upstream_that_takes_no_requests_cools_down_at_once(clock: Clock, failure: Failed) -> None:
    health = Health()
    fail(health, failure)
    assert not health.is_healthy(KEY)


def test_a_request_that_is_larger_than_a_rate_limit_cools_nothing_down_at_once(clock: Clock) -> None:
    words = b"Request too large for m on tokens per min (TPM): Limit 30, Requested 36."
    health = Health()
    fail(health, upstream_errors.failure_of_status(429, b'{"error":{"message":"%s"}}' % words))
    assert health.is_healthy(KEY)


def test_other_failures_need_to_be_half_of_the_last_attempts(clock: Clock) -> None:
    health = Health()
    for _ in range(50):
        fail(health, upstream_errors.UPSTREAM_FAILED)
        for _ in range(3):
            succeed(health)
    assert health.is_healthy(KEY), "a quarter"
    for _ in range(3):
        fail(health, upstream_errors.UPSTREAM_FAILED)
    assert not health.is_healthy(KEY)
    clock.now_s += COOL_DOWN_S
    assert health.is_healthy(KEY)
    assert not health.is_flaky(KEY), "its probe does not wait"


def test_a_flaky_deployment_rests_between_two_requests_until_it_is_better(clock: Clock) -> None:
    health = Health()
    fail(health, upstream_errors.UPSTREAM_FAILED)
    assert not health.is_flaky(KEY), "one failure moves no requests"
    fail(health, upstream_errors.UPSTREAM_FAILED)
    for _ in range(2):
        assert health.is_flaky(KEY)
        assert health.is_healthy(KEY)
        clock.now_s += REST_S
        assert not health.is_flaky(KEY)
        succeed(health)
    assert not health.is_flaky(KEY)


def test_after_its_cool_down_one_probe_decides(clock: Clock) -> None:
    health = Health()
    fail(health)
    clock.now_s += COOL_DOWN_S
    assert health.is_healthy(KEY)
    began_at = health.begin(KEY)
    assert not health.is_healthy(KEY), "one probe at a time"
    clock.now_s += 0.1
    health.succeeded(KEY, began_at)
    assert health.is_healthy(KEY)


def test_each_failed_probe_doubles_the_cool_down(clock: Clock) -> None:
    health, waits = Health(), []
    for _ in range(7):
        fail(health)
        began_at = clock.now_s
        while not health.is_healthy(KEY):
            clock.now_s += 0.5
        waits.append(clock.now_s - began_at)
    assert waits == [min(COOL_DOWN_S * 2**number, MAX_COOL_DOWN_S) for number in range(7)]


def test_a_deployment_that_is_down_for_many_hours_still_cools_down(clock: Clock) -> None:
    health = Health()
    for _ in range(1_100):  # 2**1024 is too large for a float
        clock.now_s += MAX_COOL_DOWN_S
        fail(health)
    assert not health.is_healthy(KEY)


def test_retry_after_is_a_cool_down_too(clock: Clock) -> None:
    health = Health()
    fail(health, upstream_errors.failure_of_status(429, b"", {"retry-after": "20"}))
    clock.now_s += 19.9
    assert not health.is_healthy(KEY)
    clock.now_s += 0.1
    assert health.is_healthy(KEY)


def test_what_began_before_a_cool_down_does_not_judge_it(clock: Clock) -> None:
    health = Health()
    old = health.begin(KEY)
    clock.now_s += 1
    fail(health)
    health.succeeded(KEY, old)
    assert not health.is_healthy(KEY)
    clock.now_s += COOL_DOWN_S
    health.failed(KEY, old, upstream_errors.TIMED_OUT)
    assert health.is_healthy(KEY)


# ---- several workers


async def share(redis: Redis, *routers: Router) -> None:
    for number, router in enumerate(routers):
        await exchange(router, redis, "health:", f"worker-{number}")


@pytest.fixture
async def own_redis(redis: Redis) -> Redis:
    await redis.delete("health:routing:cooling", "health:routing:workers")
    return redis


async def test_workers_share_cool_downs_and_recoveries(own_redis: Redis) -> None:
    one, two = Router(), Router()
    fail(one.health)
    await share(own_redis, one, two)
    assert not two.health.is_healthy(KEY)
    one.health.succeeded(KEY, one.health.begin(KEY))
    await share(own_redis, one, two)
    assert two.health.is_healthy(KEY)


async def test_one_worker_is_granted_the_probe(own_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "COOL_DOWN_S", 0.05)
    routers = [Router(), Router(), Router()]
    fail(routers[0].health)
    await share(own_redis, *routers)
    await asyncio.sleep(0.06)
    await share(own_redis, *routers)
    assert [each.health.is_healthy(KEY) for each in routers] == [True, False, False]
    fail(routers[0].health)
    await share(own_redis, *routers)
    assert not any(each.health.is_healthy(KEY) for each in routers)


def test_a_worker_without_requests_keeps_its_probe(clock: Clock) -> None:
    """With few requests and many workers, the next request seldom comes to the one that was granted last."""
    health = Health()
    health.merge({KEY: CoolDown(0, 1, may_probe=True)})
    clock.now_s += 30
    health.merge({KEY: CoolDown(-30, 1)})
    assert health.is_healthy(KEY)
    health.begin(KEY)
    assert not health.is_healthy(KEY)


def test_a_probe_that_was_not_sent_is_not_sent_after_the_next_cool_down(clock: Clock) -> None:
    health = Health()
    health.merge({KEY: CoolDown(0, 1, may_probe=True)})
    assert health.is_healthy(KEY)
    health.merge({KEY: CoolDown(1, 2)})  # another worker's probe has failed meanwhile
    clock.now_s += 1
    assert not health.is_healthy(KEY)
    health.merge({KEY: CoolDown(0, 2, may_probe=True)})
    assert health.is_healthy(KEY)


async def test_workers_count_each_other(own_redis: Redis) -> None:
    routers = [Router(), Router(), Router()]
    await share(own_redis, *routers)
    await share(own_redis, *routers)
    assert [(each.workers, each.rank) for each in routers] == [(3, 0), (3, 1), (3, 2)]


async def test_without_redis_a_worker_goes_on_alone_and_shares_later(
    own_redis: Redis, clock: Clock, shared_valkey: Valkey
) -> None:
    one, two, nowhere = Router(), Router(), connect("unix:///nowhere")
    await share(own_redis, one, two)
    fail(one.health)
    with pytest.raises(RedisError):
        await share(nowhere, one)
    assert not one.health.is_healthy(KEY)
    await share(own_redis, one, two)
    assert not two.health.is_healthy(KEY)
    clock.now_s += COOL_DOWN_S + health_module.ALONE_AFTER_S
    with pytest.raises(RedisError):
        await share(nowhere, one)
    assert one.health.is_healthy(KEY)
    await nowhere.aclose()


async def test_a_redis_that_has_lost_its_data_ends_cool_downs(own_redis: Redis) -> None:
    one = Router()
    fail(one.health)
    await share(own_redis, one)
    await own_redis.delete("health:routing:cooling")
    await share(own_redis, one)
    assert one.health.is_healthy(KEY)
