"""Rate limits over a real Valkey: all or nothing, released, and shared by all processes."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts import rate_limits as module
from accounts import redis_time_limit
from accounts.errors import RateLimited
from accounts.limits import DAY_MS, HIGHEST, MINUTE_MS, NOTHING_USED, Amounts, Counts, Limit
from accounts.rate_limits import Ask, Operation, RateLimits, Reservation, Run
from chatapi.concurrency import Batch
from chatapi.redis_client import connect
from chatapi.wire.caps import MAX_CHOICES, MAX_OUTPUT_TOKENS
from tests.accounts.limit_client import LEASE_MS, LimitClient, of_tokens, requests, running, tokens
from tests.chatapi.worker.processes import Valkey


@pytest.fixture
def client(redis: Redis) -> LimitClient:
    return LimitClient(redis)


# ---- taking


async def test_it_lets_pass_exactly_the_limit(client: LimitClient) -> None:
    limit = Limit("key", 1, "", Counts.REQUESTS, 7, DAY_MS)
    assert [(await client.take(limit)).statuses[0].remaining for _ in range(7)] == [6, 5, 4, 3, 2, 1, 0]
    refusal = await client.refusal(limit)
    assert refusal.limit == limit
    assert DAY_MS / 7 - 5_000 < (refusal.retry_after_ms or 0) <= DAY_MS / 7


@pytest.mark.parametrize("limit", [Limit("key", 1, "", Counts.REQUESTS, 60, DAY_MS), running(60)])
async def test_two_hundred_at_once_get_exactly_the_limit(client: LimitClient, limit: Limit) -> None:
    results = await asyncio.gather(*(client.take(limit) for _ in range(200)), return_exceptions=True)
    assert sum(isinstance(result, Reservation) for result in results) == 60
    assert sum(isinstance(result, RateLimited) for result in results) == 140


async def test_what_is_used_is_read_without_taking_anything(client: LimitClient) -> None:
    known = [requests(5), tokens(100), running(3), tokens(0, scope="project")]
    assert await client.rate_limits.used(known) == dict.fromkeys(known, 0)
    reservation = await client.take(*known[:3], tokens=40)
    for _ in range(3):
        assert list((await client.rate_limits.used(known)).values()) == [1, 40, 1, 0]
    await client.release(reservation, 15)
    assert list((await client.rate_limits.used(known)).values()) == [1, 15, 0, 0]
    await client.take_all(known[1], tokens=60)
    assert (await client.rate_limits.used(known))[known[1]] <= 100


async def test_two_hundred_at_once_can_share_round_trips(redis: Redis) -> None:
    round_trips: list[int] = []

    def share(run: Run) -> Ask:
        async def counted(operations: Sequence[Operation]) -> Sequence[object]:
            round_trips.append(len(operations))
            return await run(operations)

        return Batch(counted)

    rate_limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=LEASE_MS, share=share)
    waiting = [
        rate_limits.take([running(60)], uuid4(), model="small", amounts=NOTHING_USED) for _ in range(200)
    ]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(result, Reservation) for result in results) == 60
    assert round_trips == [200]


@pytest.mark.parametrize(
    "tight", [requests(0), requests(1, scope="project"), tokens(15), running(1)], ids=str
)
async def test_a_refusal_takes_nothing_from_other_limits(client: LimitClient, tight: Limit) -> None:
    others = [
        requests(9, scope="organization"),
        tokens(900, scope="organization"),
        running(9, scope="organization"),
    ]
    if tight.most:
        await client.take(*others, tight)
    refusals = [await client.refusal(*others[:2], tight, *others[2:]) for _ in range(20)]
    assert {refusal.limit for refusal in refusals} == {tight}
    taken = await client.take(*others, tokens=0)
    count = 2 if tight.most else 1
    assert [status.remaining for status in taken.statuses] == [9 - count, 900 - 10 * (count - 1)]
    for _ in range(9 - count):
        await client.take(others[2])
    assert (await client.refusal(others[2])).limit == others[2]


async def test_it_names_the_limit_to_wait_longest_for(client: LimitClient) -> None:
    day = Limit("project", 1, "", Counts.REQUESTS, 1, DAY_MS)
    await client.take(requests(1), day, running(1))
    refusal = await client.refusal(requests(1), day, running(1))
    assert (refusal.limit, (refusal.retry_after_ms or 0) > MINUTE_MS) == (day, True)


async def test_a_full_concurrency_limit_tells_a_wait(client: LimitClient) -> None:
    await client.take(running(1))
    assert (await client.refusal(running(1))).retry_after_ms == module.RUNNING_RETRY_MS


async def test_a_limit_of_a_model_is_only_for_that_model(client: LimitClient) -> None:
    limits = (requests(1, model="large"), requests(3))
    await client.take(*limits, model="large")
    await client.take(*limits, model="small")
    assert (await client.refusal(*limits, model="large")).limit == limits[0]
    await client.take(*limits, model="small")
    assert (await client.refusal(*limits, model="small")).limit == limits[1]


async def test_what_is_taken_comes_back_with_time(client: LimitClient) -> None:
    limit = Limit("key", 1, "", Counts.REQUESTS, 2, 400)
    refusal = await client.take_all(limit)
    await asyncio.sleep((refusal.retry_after_ms or 0) / 1_000)
    await client.take(limit)


async def test_the_highest_limit_is_counted_to_the_token(client: LimitClient) -> None:
    taken = await client.take(tokens(HIGHEST), tokens=3)
    assert taken.statuses[0].remaining == HIGHEST - 3


async def test_a_limit_of_zero_lets_nothing_pass_ever(client: LimitClient) -> None:
    refusal = await client.refusal(tokens(0))
    assert (refusal.limit, refusal.retry_after_ms) == (tokens(0), None)


async def test_a_lowered_limit_holds_at_once_and_is_paid_off_in_its_window(
    client: LimitClient,
) -> None:
    for _ in range(50):
        await client.take(requests(100))
    assert (await client.refusal(requests(5))).limit == requests(5)
    await client.take(requests(100))  # a process that does not know it yet
    assert ((await client.refusal(requests(5))).retry_after_ms or 0) <= MINUTE_MS


@pytest.mark.parametrize(
    ("before", "after", "asked"), [(1_000, 20, 1), (1_000, 100_000, 100_000)], ids=["lowered", "raised"]
)
async def test_the_wait_that_a_changed_limit_tells_is_long_enough(
    client: LimitClient, before: int, after: int, asked: int
) -> None:
    """From the first refusal on, time pays at the new limit's rate, from which the wait is computed, too."""
    await client.take(tokens(before, window_ms=2_000), tokens=before)
    changed = tokens(after, window_ms=2_000)
    told_ms = (await client.refusal(changed, tokens=asked)).retry_after_ms or 0
    assert 0 < told_ms <= 200
    await asyncio.sleep(told_ms / 1_000)
    await client.take(changed, tokens=asked)


# ---- tokens


async def test_unused_tokens_are_given_back(client: LimitClient) -> None:
    taken = await client.take(tokens(1_000), tokens=800)
    assert await client.remaining(tokens(1_000)) == 200
    await client.release(taken, 300)
    assert await client.remaining(tokens(1_000)) == 700


class TwoAmounts(NamedTuple):
    """Amounts of a service that also counts pictures."""

    tokens: int
    pictures: int

    def of(self, counts: Counts) -> int:
        return {"tokens": self.tokens, "pictures": self.pictures}[counts]


async def test_each_amount_is_taken_and_given_back_by_itself(client: LimitClient) -> None:
    pictures = Limit("key", 1, "", cast(Counts, "pictures"), 10, DAY_MS)
    limits, amounts = (tokens(1_000), pictures), cast(Amounts, TwoAmounts(tokens=800, pictures=4))
    taken = await client.rate_limits.take(limits, uuid4(), model="small", amounts=amounts)
    assert [status.remaining for status in taken.statuses] == [200, 6]
    await client.rate_limits.release(taken, cast(Amounts, TwoAmounts(tokens=300, pictures=1)))
    nothing = cast(Amounts, TwoAmounts(tokens=0, pictures=0))
    taken = await client.rate_limits.take(limits, uuid4(), model="small", amounts=nothing)
    assert [status.remaining for status in taken.statuses] == [700, 9]


@pytest.mark.parametrize("seed", range(5))
async def test_unused_tokens_come_back_in_any_order_of_ends(client: LimitClient, seed: int) -> None:
    dice, limit = random.Random(seed), tokens(1_000_000)
    running, used = [], 0
    for _ in range(60):
        took = dice.randint(1, 16_000)
        running.append((await client.take(limit, tokens=took), took))
        dice.shuffle(running)
        for _ in range(dice.randint(0, 2)):
            if running:
                taken, took = running.pop()
                uses = dice.choice([0, 100, took, 20_000])
                used += uses
                await client.release(taken, uses)
    for taken, _ in running:
        await client.release(taken, 1)
    # A million in a day is twelve in a second, which is what time pays meanwhile.
    assert 0 <= await client.remaining(limit) - (1_000_000 - used - len(running)) < 100


@pytest.mark.parametrize("others", [0, 500], ids=["nothing is owed any more", "others are owed for"])
async def test_tokens_beyond_a_reservation_that_time_has_paid_for_are_charged(
    client: LimitClient, others: int
) -> None:
    limit = tokens(1_000_000)
    taken = await client.take(limit, tokens=1)
    await client.take(limit, tokens=others)
    async with asyncio.timeout(5):
        while await client.remaining(limit) < 1_000_000 - others:
            await asyncio.sleep(0.01)
    await client.release(taken, 2_001)
    # A million in a day is twelve in a second, which is what time pays meanwhile.
    assert 0 <= await client.remaining(limit) - (1_000_000 - others - 2_000) < 100


@pytest.mark.parametrize("limits", [[tokens(1_000)], [tokens(1_000), running(1)]], ids=["tokens", "both"])
async def test_a_full_redis_accepts_releases(client: LimitClient, redis: Redis, limits: list[Limit]) -> None:
    """Redis refuses commands that need memory; a refused take does not keep a release in the same batch from
    running.
    """
    taken = await client.take(*limits, tokens=800)
    shared = RateLimits(redis, client.prefix, lease_ms=LEASE_MS, share=Batch)
    await redis.config_set("maxmemory", "1")
    try:
        taking = asyncio.create_task(shared.take(limits, uuid4(), model="small", amounts=of_tokens(1)))
        await asyncio.gather(taking, shared.release(taken, of_tokens(100)), return_exceptions=True)
    finally:
        await redis.config_set("maxmemory", "0")
    assert await client.remaining(tokens(1_000)) >= 899


def ahead(client: LimitClient, redis: Redis) -> RateLimits:
    """Return the client's limits as of a Redis whose clock is an hour ahead."""
    found = RateLimits(redis, client.prefix, lease_ms=LEASE_MS)
    found._script = redis.register_script(module._SCRIPT.replace("+ time[2]", "+ time[2] + 3600 * 1000000"))
    return found


async def test_requests_release_unused_tokens_after_the_clock_of_redis_was_set_back(
    client: LimitClient, redis: Redis
) -> None:
    limit = tokens(1_000)
    await ahead(client, redis).take([limit], uuid4(), model="small", amounts=of_tokens(1))
    await client.release(await client.take(limit, tokens=900), 0)
    assert await client.remaining(limit) >= 999


async def test_time_pays_for_what_was_taken_while_the_clock_of_redis_was_ahead(
    client: LimitClient, redis: Redis
) -> None:
    limit = Limit("key", 1, "", Counts.REQUESTS, 2, 400)
    for _ in range(2):
        await ahead(client, redis).take([limit], uuid4(), model="small", amounts=of_tokens(1))
    for key in await redis.keys(f"{client.prefix}*"):
        await redis.pexpire(key, 3_600_000)  # as it were, had the clock itself been ahead
    async with asyncio.timeout(5):
        while await client.is_refused(limit):
            await asyncio.sleep(0.01)


async def test_a_release_that_never_reaches_redis_is_logged(
    client: LimitClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RELEASE_AFTER_S", (0, 0.01))
    reservation = await client.take(running(1))
    await LimitClient(connect("unix:///nowhere")).release(reservation, 0)
    assert reservation.id.hex in caplog.text


async def test_a_frozen_redis_releases_once(
    client: LimitClient, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has received the command and executes it when it continues; a second one would release the tokens
    of others.
    """
    limit = tokens(10_000)
    reservation, _ = await client.take(limit, tokens=4_000), await client.take(limit, tokens=4_000)
    with valkey.frozen(), monkeypatch.context() as patch:
        patch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.1)
        await client.release(reservation, 0)
    assert 6_000 <= await client.remaining(limit) < 6_100


async def test_tokens_of_an_unknown_number_used_stay_taken(client: LimitClient) -> None:
    await client.release(await client.take(tokens(1_000), tokens=800), None)
    assert await client.remaining(tokens(1_000)) == 200


async def test_tokens_beyond_what_was_taken_are_charged_at_the_end(client: LimitClient) -> None:
    await client.release(await client.take(tokens(1_000), tokens=100), 1_500)
    refusal = await client.refusal(tokens(1_000), tokens=1)
    assert refusal.statuses[0].remaining == 0
    assert (refusal.retry_after_ms or 0) > DAY_MS / 2  # 500 above the limit, of 1000 a day


async def test_a_request_larger_than_the_limit_needs_all_of_it_and_owes_it(client: LimitClient) -> None:
    await client.take(tokens(1_000), tokens=1)
    await client.refusal(tokens(1_000), tokens=1_500)
    other = Limit("key", 2, "", Counts.TOKENS, 1_000, DAY_MS)
    taken = await client.take(other, tokens=1_500)
    assert (await client.refusal(other, tokens=1)).statuses[0].reset_ms > DAY_MS
    await client.release(taken, 400)
    assert await client.remaining(other) == 600


async def test_a_request_may_owe_more_than_redis_can_wait_for(client: LimitClient) -> None:
    taken = await client.take(tokens(1), tokens=MAX_CHOICES * MAX_OUTPUT_TOKENS)
    assert (await client.refusal(tokens(1), tokens=1)).limit == tokens(1)
    await client.release(taken, 0)
    assert await client.remaining(tokens(1)) == 1


async def test_what_time_has_paid_for_is_not_given_back(client: LimitClient) -> None:
    limit = tokens(1_000, window_ms=2_000)
    old, _ = await client.take(limit, tokens=500), await client.take(limit, tokens=500)
    refusal = await client.refusal(limit, tokens=500)
    await asyncio.sleep((refusal.retry_after_ms or 0) / 1_000)
    await client.take(limit, tokens=500)
    await client.release(old, 0)
    assert (await client.refusal(limit, tokens=500)).limit == limit


async def test_what_time_has_paid_for_is_shared_by_all_that_run(client: LimitClient) -> None:
    """Requests that end first lose no more of their reservation than those that end later."""
    limit = tokens(1_000, window_ms=2_000)
    running = [await client.take(limit, tokens=250) for _ in range(4)]
    await asyncio.sleep(1)
    for ended, reservation in enumerate(running, start=1):
        before = await client.remaining(limit)
        await client.release(reservation, 250 - ended)
        assert ended <= await client.remaining(limit) - before < ended + 100


async def test_long_requests_do_not_release_more_than_the_limit_together(
    client: LimitClient,
) -> None:
    limit = tokens(1_000, window_ms=100)
    long = []
    for _ in range(10):
        wait_ms = (await client.take_all(limit, tokens=1_000)).retry_after_ms or 0
        await asyncio.sleep(wait_ms / 1_000)
        long.append(await client.take(limit, tokens=1_000))
    passed, began_at = 0, time.monotonic()
    for reservation in long:
        await client.release(reservation, 0)
        passed += not await client.is_refused(limit, tokens=1_000)
    assert passed <= 1 + (time.monotonic() - began_at) / 0.1


async def test_a_lost_bucket_gives_nothing_back(client: LimitClient, redis: Redis) -> None:
    """A request from before Redis lost its data, or before its tokens have leaked, must not undo later
    reservations.
    """
    old = await client.take(tokens(1_000), tokens=800)
    await redis.delete(*await redis.keys(f"{client.prefix}*"))
    await client.take(tokens(1_000), tokens=600)
    await client.release(old, 0)
    assert await client.remaining(tokens(1_000)) == 400


async def test_a_lease_that_nobody_renews_expires(redis: Redis) -> None:
    client, began_at = LimitClient(redis, lease_ms=1_000), time.monotonic()
    await client.take_all(running(1))
    async with asyncio.timeout(5):
        while await client.is_refused(running(1)):
            await asyncio.sleep(0.01)
    assert time.monotonic() - began_at > 0.9


# ---- clocks, several processes, no Redis


async def test_only_the_clock_of_redis_counts(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    client = LimitClient(redis)
    await client.take(requests(1), running(1))
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 3_600)
    assert (await client.refusal(requests(1))).limit == requests(1)
    assert (await client.refusal(running(1))).limit == running(1)


def test_processes_share_the_limits(valkey: Valkey) -> None:
    most, began_at = 300, time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tests.accounts.limit_client_process",
        valkey.socket,
        f"test-{uuid4().hex}:",
        str(most),
    ]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) for _ in range(2)
    ]
    counts = [int(process.communicate(timeout=30)[0]) for process in processes]
    elapsed_ms = (time.monotonic() - began_at) * 1_000
    assert most <= sum(counts) <= most + most * elapsed_ms / MINUTE_MS


async def test_without_limits_nobody_is_asked() -> None:
    nowhere = connect("unix:///nowhere")
    rate_limits = RateLimits(nowhere, "test:", lease_ms=LEASE_MS)
    taken = await rate_limits.take(
        [requests(1, model="large")], uuid4(), model="small", amounts=of_tokens(10)
    )
    assert (taken.headers(), taken.statuses) == ([], ())
    await rate_limits.release(taken, of_tokens(5))
    await rate_limits.renew([taken])


async def test_a_redis_that_has_restarted_gets_the_script_again(client: LimitClient, valkey: Valkey) -> None:
    await client.take(requests(2))
    valkey.client.script_flush()
    await client.take(requests(2))
    await client.refusal(requests(2))


async def test_nothing_passes_when_redis_is_away() -> None:
    rate_limits = RateLimits(connect("unix:///nowhere"), "test:", lease_ms=LEASE_MS)
    with pytest.raises(RedisError):
        await rate_limits.take([requests(1)], uuid4(), model="small", amounts=NOTHING_USED)


async def test_nothing_passes_when_redis_is_frozen(
    redis: Redis, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.1)
    valkey.client.client_pause(500)
    with pytest.raises(RedisError):
        await RateLimits(redis, "test:", lease_ms=LEASE_MS).take(
            [requests(1)], uuid4(), model="small", amounts=NOTHING_USED
        )


# ---- requests that are refused


async def test_looking_takes_nothing(client: LimitClient) -> None:
    limits = (requests(2), tokens(5), running(1))
    for _ in range(5):
        await client.rate_limits.look(limits)
    await client.take_all(requests(2))
    for _ in range(5):
        with pytest.raises(RateLimited) as refused:
            await client.rate_limits.look(limits)
    assert (refused.value.limit, refused.value.statuses[0].remaining) == (requests(2), 0)
    assert 0 < (refused.value.retry_after_ms or 0) <= MINUTE_MS / 2


async def test_looking_asks_only_for_requests_of_any_model(client: LimitClient) -> None:
    await client.take(requests(1, model="large"), model="large")
    await client.take(tokens(5), running(1))
    await client.rate_limits.look((requests(1, model="large"), tokens(5), running(1)))
    with pytest.raises(RateLimited):
        await client.rate_limits.look((requests(0),))


async def test_a_refused_request_takes_one_from_each_limit_of_requests(client: LimitClient) -> None:
    limits = (requests(3), requests(3, scope="project"), tokens(5), running(1))
    for _ in range(3):
        await client.rate_limits.take_refused(limits, uuid4())
    with pytest.raises(RateLimited):
        await client.rate_limits.take_refused(limits, uuid4())
    assert (await client.refusal(requests(3))).limit == requests(3)
    assert (await client.refusal(requests(3, scope="project"))).statuses[0].remaining == 0
    await client.take(tokens(5), running(1))


@pytest.mark.parametrize("tight", [tokens(15), running(1)], ids=str)
async def test_what_tokens_or_leases_refuse_takes_one_from_the_keys_requests(
    client: LimitClient, tight: Limit
) -> None:
    """The project's requests stay: other keys do not pay for refusals of this one."""
    limits = (requests(3), requests(9, scope="project"), tight)
    await client.take(*limits)
    refusals = [await client.refusal(*limits) for _ in range(4)]
    assert [refusal.limit for refusal in refusals[:2]] == [tight, tight]
    assert (await client.refusal(requests(3))).statuses[0].remaining == 0
    assert (await client.take(requests(9, scope="project"))).statuses[0].remaining == 7


async def test_the_wait_that_a_concurrency_limit_tells_makes_room_for_a_request(client: LimitClient) -> None:
    limit, place = Limit("key", 1, "", Counts.REQUESTS, 2, 3_000), running(1)
    first = await client.take(limit, place)
    told_ms = (await client.refusal(limit, place)).retry_after_ms or 0
    assert told_ms >= module.RUNNING_RETRY_MS
    await client.release(first, 0)
    await asyncio.sleep(told_ms / 1_000)
    await client.take(limit, place)
