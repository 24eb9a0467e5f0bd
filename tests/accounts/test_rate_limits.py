"""Rate limits over a real Valkey: all or nothing, given back, and the same for all processes."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts import rate_limits as module
from accounts.errors import RateLimited
from accounts.limits import DAY_MS, HIGHEST, MINUTE_MS, Counts, Limit
from accounts.rate_limits import Ask, Operation, RateLimits, Run, Taken
from chatapi.concurrency import Batch
from chatapi.redis_client import connect
from chatapi.wire.caps import MAX_CHOICES, MAX_OUTPUT_TOKENS
from tests.accounts.taker import LEASE_MS, Taker, requests, running, tokens
from tests.chatapi.worker.processes import Valkey


@pytest.fixture
def taker(redis: Redis) -> Taker:
    return Taker(redis)


# ---- taking


async def test_it_lets_pass_exactly_the_limit(taker: Taker) -> None:
    limit = Limit("key", 1, "", Counts.REQUESTS, 7, DAY_MS)
    assert [(await taker.take(limit)).standings[0].remaining for _ in range(7)] == [6, 5, 4, 3, 2, 1, 0]
    refusal = await taker.refusal(limit)
    assert refusal.limit == limit
    assert DAY_MS / 7 - 5_000 < (refusal.retry_after_ms or 0) <= DAY_MS / 7


@pytest.mark.parametrize("limit", [Limit("key", 1, "", Counts.REQUESTS, 60, DAY_MS), running(60)])
async def test_two_hundred_at_once_get_exactly_the_limit(taker: Taker, limit: Limit) -> None:
    results = await asyncio.gather(*(taker.take(limit) for _ in range(200)), return_exceptions=True)
    assert sum(isinstance(result, Taken) for result in results) == 60
    assert sum(isinstance(result, RateLimited) for result in results) == 140


async def test_two_hundred_at_once_can_share_round_trips(redis: Redis) -> None:
    round_trips: list[int] = []

    def share(run: Run) -> Ask:
        async def counted(operations: Sequence[Operation]) -> Sequence[object]:
            round_trips.append(len(operations))
            return await run(operations)

        return Batch(counted)

    rate_limits = RateLimits(redis, f"test-{uuid4().hex}:", lease_ms=LEASE_MS, share=share)
    waiting = [rate_limits.take([running(60)], uuid4(), model="small", tokens=1) for _ in range(200)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(result, Taken) for result in results) == 60
    assert round_trips == [200]


@pytest.mark.parametrize(
    "tight", [requests(0), requests(1, scope="project"), tokens(15), running(1)], ids=str
)
async def test_what_one_limit_refuses_takes_nothing_from_the_others(taker: Taker, tight: Limit) -> None:
    others = [
        requests(9, scope="organization"),
        tokens(900, scope="organization"),
        running(9, scope="organization"),
    ]
    if tight.most:
        await taker.take(*others, tight)
    refusals = [await taker.refusal(*others[:2], tight, *others[2:]) for _ in range(20)]
    assert {refusal.limit for refusal in refusals} == {tight}
    taken = await taker.take(*others, tokens=0)
    count = 2 if tight.most else 1
    assert [standing.remaining for standing in taken.standings] == [9 - count, 900 - 10 * (count - 1)]
    for _ in range(9 - count):
        await taker.take(others[2])
    assert (await taker.refusal(others[2])).limit == others[2]


async def test_it_names_the_limit_to_wait_longest_for(taker: Taker) -> None:
    day = Limit("project", 1, "", Counts.REQUESTS, 1, DAY_MS)
    await taker.take(requests(1), day, running(1))
    refusal = await taker.refusal(requests(1), day, running(1))
    assert (refusal.limit, (refusal.retry_after_ms or 0) > MINUTE_MS) == (day, True)


async def test_a_full_house_says_when_to_ask_again(taker: Taker) -> None:
    await taker.take(running(1))
    assert (await taker.refusal(running(1))).retry_after_ms == module.RUNNING_RETRY_MS


async def test_a_limit_of_a_model_is_only_for_that_model(taker: Taker) -> None:
    limits = (requests(1, model="large"), requests(3))
    await taker.take(*limits, model="large")
    await taker.take(*limits, model="small")
    assert (await taker.refusal(*limits, model="large")).limit == limits[0]
    await taker.take(*limits, model="small")
    assert (await taker.refusal(*limits, model="small")).limit == limits[1]


async def test_what_is_taken_comes_back_with_time(taker: Taker) -> None:
    limit = Limit("key", 1, "", Counts.REQUESTS, 2, 400)
    refusal = await taker.take_all(limit)
    await asyncio.sleep((refusal.retry_after_ms or 0) / 1_000)
    await taker.take(limit)


async def test_the_highest_limit_is_counted_to_the_token(taker: Taker) -> None:
    taken = await taker.take(tokens(HIGHEST), tokens=3)
    assert taken.standings[0].remaining == HIGHEST - 3


async def test_a_limit_of_zero_lets_nothing_pass_ever(taker: Taker) -> None:
    refusal = await taker.refusal(tokens(0))
    assert (refusal.limit, refusal.retry_after_ms) == (tokens(0), None)


async def test_a_lowered_limit_holds_at_once_and_refuses_for_at_most_its_window(
    taker: Taker,
) -> None:
    for _ in range(50):
        await taker.take(requests(100))
    assert (await taker.refusal(requests(5))).limit == requests(5)
    await taker.take(requests(100))  # a process that has not heard of it yet
    assert ((await taker.refusal(requests(5))).retry_after_ms or 0) <= MINUTE_MS


@pytest.mark.parametrize(
    ("before", "after", "asked"), [(1_000, 20, 1), (1_000, 100_000, 100_000)], ids=["lowered", "raised"]
)
async def test_who_waits_as_long_as_a_changed_limit_tells_gets_in(
    taker: Taker, before: int, after: int, asked: int
) -> None:
    """Time pays at the new limit's rate from the first refusal, and not at the old one's while waits are told
    by the new one.
    """
    await taker.take(tokens(before, window_ms=2_000), tokens=before)
    changed = tokens(after, window_ms=2_000)
    told_ms = (await taker.refusal(changed, tokens=asked)).retry_after_ms or 0
    assert 0 < told_ms <= 200
    await asyncio.sleep(told_ms / 1_000)
    await taker.take(changed, tokens=asked)


# ---- tokens


async def test_unused_tokens_are_given_back(taker: Taker) -> None:
    taken = await taker.take(tokens(1_000), tokens=800)
    assert await taker.remaining(tokens(1_000)) == 200
    await taker.rate_limits.give_back(taken, 300)
    assert await taker.remaining(tokens(1_000)) == 700


@pytest.mark.parametrize("seed", range(5))
async def test_unused_tokens_are_given_back_in_whatever_order_requests_end(taker: Taker, seed: int) -> None:
    dice, limit = random.Random(seed), tokens(1_000_000)
    running, used = [], 0
    for _ in range(60):
        took = dice.randint(1, 16_000)
        running.append((await taker.take(limit, tokens=took), took))
        dice.shuffle(running)
        for _ in range(dice.randint(0, 2)):
            if running:
                taken, took = running.pop()
                uses = dice.choice([0, 100, took, 20_000])
                used += uses
                await taker.rate_limits.give_back(taken, uses)
    for taken, _ in running:
        await taker.rate_limits.give_back(taken, 1)
    # A million in a day is twelve in a second, which is what time pays meanwhile.
    assert 0 <= await taker.remaining(limit) - (1_000_000 - used - len(running)) < 100


async def test_what_has_ended_is_kept_in_as_many_places_as_requests_run(taker: Taker, redis: Redis) -> None:
    limit = tokens(1_000_000)
    longest = await taker.take(limit)
    await taker.take(limit)
    for taken in [await taker.take(limit, tokens=100) for _ in range(50)]:
        await taker.rate_limits.give_back(taken, 7)
    await taker.rate_limits.give_back(longest, 10)
    (key,) = [key async for key in redis.scan_iter(f"{taker.prefix}rate:key:*")]
    *_, ended = msgspec.msgpack.decode(cast(bytes, await redis.get(key)))
    assert ended == [[0, 10, 0], [20, 5_020, 50 * 93]]


@pytest.mark.parametrize("used", [100, 800, 900])
async def test_what_is_given_back_twice_is_given_back_once(taker: Taker, used: int) -> None:
    limit = tokens(10_000)
    await taker.take(limit, tokens=500)
    taken = await taker.take(limit, tokens=800)
    await taker.rate_limits.give_back(taken, used)
    await taker.rate_limits.give_back(taken, used)
    assert await taker.remaining(limit) == 10_000 - 500 - used


@pytest.mark.parametrize("others", [0, 500], ids=["nothing is owed any more", "others are owed for"])
async def test_what_was_used_beyond_is_charged_once_though_time_has_paid_for_the_rest(
    taker: Taker, others: int
) -> None:
    limit = tokens(1_000_000)
    taken = await taker.take(limit, tokens=1)
    await taker.take(limit, tokens=others)
    async with asyncio.timeout(5):
        while await taker.remaining(limit) < 1_000_000 - others:
            await asyncio.sleep(0.01)
    await taker.rate_limits.give_back(taken, 2_001)
    await taker.rate_limits.give_back(taken, 2_001)
    # A million in a day is twelve in a second, which is what time pays meanwhile.
    assert 0 <= await taker.remaining(limit) - (1_000_000 - others - 2_000) < 100


async def test_who_has_not_heard_whether_it_has_taken_gives_all_back(taker: Taker) -> None:
    limits, generation_id = [tokens(1_000), running(1)], uuid4()
    await taker.take(*limits, tokens=800, generation_id=generation_id)
    await taker.rate_limits.undo_patiently(taker.rate_limits.asked(limits, generation_id, model="small"))
    assert (await taker.take(*limits, tokens=0)).standings[0].remaining == 1_000


async def test_what_is_undone_takes_nothing_when_it_comes_only_then(taker: Taker) -> None:
    """Each connection has its own retransmissions: what was sent first may arrive last."""
    limits, generation_id = [tokens(1_000), running(1)], uuid4()
    await taker.rate_limits.undo_patiently(taker.rate_limits.asked(limits, generation_id, model="small"))
    await taker.take(*limits, tokens=800, generation_id=generation_id)
    assert (await taker.take(*limits, tokens=0)).standings[0].remaining == 1_000


async def test_a_receipt_is_enough_to_give_back(taker: Taker) -> None:
    limits = [tokens(1_000), running(1)]
    taken = await taker.take(*limits, tokens=800)
    await taker.rate_limits.give_back(taker.rate_limits.on_receipt(taken.id), 100)
    assert (await taker.take(*limits, tokens=0)).standings[0].remaining == 900


async def test_a_full_redis_takes_back(taker: Taker, redis: Redis) -> None:
    """It refuses commands that need memory; those who give back must not lose by it, nor by others' requests
    of the same moment.
    """
    limits = [tokens(1_000), running(1)]
    taken = await taker.take(*limits, tokens=800)
    shared = RateLimits(redis, taker.prefix, lease_ms=LEASE_MS, share=Batch)
    await redis.config_set("maxmemory", "1")
    try:
        taking = asyncio.create_task(shared.take(limits, uuid4(), model="small", tokens=1))
        await asyncio.gather(taking, shared.give_back(taken, 100), return_exceptions=True)
    finally:
        await redis.config_set("maxmemory", "0")
    assert await taker.remaining(tokens(1_000)) >= 899


async def test_requests_made_while_the_clock_of_redis_was_ahead_are_paid_for_from_now_on(
    taker: Taker, redis: Redis
) -> None:
    limit = Limit("key", 1, "", Counts.REQUESTS, 2, 400)
    ahead = RateLimits(redis, taker.prefix, lease_ms=LEASE_MS)
    ahead._script = redis.register_script(module._SCRIPT.replace("+ time[2]", "+ time[2] + 3600 * 1000000"))
    for _ in range(2):
        await ahead.take([limit], uuid4(), model="small", tokens=1)
    for key in await redis.keys(f"{taker.prefix}*"):
        await redis.pexpire(key, 3_600_000)  # as it were, had the clock itself been ahead
    async with asyncio.timeout(5):
        while await taker.is_refused(limit):
            await asyncio.sleep(0.01)


async def test_to_give_back_what_was_never_taken_changes_nothing(taker: Taker) -> None:
    limits = [tokens(1_000), running(1)]
    await taker.take(*limits, tokens=800)
    for used in (0, 800, 900):
        await taker.rate_limits.give_back(taker.rate_limits.asked(limits, uuid4(), model="small"), used)
    assert await taker.remaining(limits[0]) == 200
    assert (await taker.refusal(*limits)).limit == limits[1]


async def test_who_gives_back_patiently_gives_up_in_the_end(
    taker: Taker, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(module, "GIVE_BACK_AFTER_S", (0, 0.01))
    taken = taker.rate_limits.asked([running(1)], uuid4(), model="small")
    await Taker(connect("unix:///nowhere")).rate_limits.give_back_patiently(taken, 0)
    assert taken.id.hex in caplog.text


async def test_tokens_that_nobody_counted_stay_taken(taker: Taker) -> None:
    await taker.rate_limits.give_back(await taker.take(tokens(1_000), tokens=800), None)
    assert await taker.remaining(tokens(1_000)) == 200


async def test_tokens_beyond_what_was_taken_are_charged_at_the_end(taker: Taker) -> None:
    await taker.rate_limits.give_back(await taker.take(tokens(1_000), tokens=100), 1_500)
    refusal = await taker.refusal(tokens(1_000), tokens=1)
    assert refusal.standings[0].remaining == 0
    assert (refusal.retry_after_ms or 0) > DAY_MS / 2  # 500 above the limit, of 1000 a day


async def test_a_request_larger_than_the_limit_needs_all_of_it_and_owes_the_rest(taker: Taker) -> None:
    await taker.take(tokens(1_000), tokens=1)
    await taker.refusal(tokens(1_000), tokens=1_500)
    other = Limit("key", 2, "", Counts.TOKENS, 1_000, DAY_MS)
    taken = await taker.take(other, tokens=1_500)
    assert (await taker.refusal(other, tokens=1)).standings[0].reset_ms > DAY_MS
    await taker.rate_limits.give_back(taken, 400)
    assert await taker.remaining(other) == 600


async def test_a_request_may_owe_more_than_redis_can_wait_for(taker: Taker) -> None:
    taken = await taker.take(tokens(1), tokens=MAX_CHOICES * MAX_OUTPUT_TOKENS)
    assert (await taker.refusal(tokens(1), tokens=1)).limit == tokens(1)
    await taker.rate_limits.give_back(taken, 0)
    assert await taker.remaining(tokens(1)) == 1


async def test_what_time_has_paid_for_is_not_given_back(taker: Taker) -> None:
    limit = tokens(1_000, window_ms=2_000)
    old, _ = await taker.take(limit, tokens=500), await taker.take(limit, tokens=500)
    refusal = await taker.refusal(limit, tokens=500)
    await asyncio.sleep((refusal.retry_after_ms or 0) / 1_000)
    await taker.take(limit, tokens=500)
    await taker.rate_limits.give_back(old, 0)
    assert (await taker.refusal(limit, tokens=500)).limit == limit


@pytest.mark.parametrize("lost", ["*", "rate:key:*"], ids=["all", "only the bucket"])
async def test_a_lost_bucket_gives_nothing_back(taker: Taker, redis: Redis, lost: str) -> None:
    """After Redis has lost its data, or time has paid for all of it, a request of before must not undo what
    was taken since.
    """
    old = await taker.take(tokens(1_000), tokens=800)
    await redis.delete(*await redis.keys(f"{taker.prefix}{lost}"))
    await taker.take(tokens(1_000), tokens=600)
    await taker.rate_limits.give_back(old, 0)
    assert await taker.remaining(tokens(1_000)) == 400


async def test_a_place_is_free_when_nobody_renews_it(redis: Redis) -> None:
    taker, began_at = Taker(redis, lease_ms=1_000), time.monotonic()
    await taker.take_all(running(1))
    async with asyncio.timeout(5):
        while await taker.is_refused(running(1)):
            await asyncio.sleep(0.01)
    assert time.monotonic() - began_at > 0.9


# ---- whose clock, which processes, no Redis


async def test_only_the_clock_of_redis_counts(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = Taker(redis)
    await taker.take(requests(1), running(1))
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 3_600)
    assert (await taker.refusal(requests(1))).limit == requests(1)
    assert (await taker.refusal(running(1))).limit == running(1)


def test_processes_share_the_limits(valkey: Valkey) -> None:
    most, began_at = 300, time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tests.accounts.taker_process",
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
    taken = await rate_limits.take([requests(1, model="large")], uuid4(), model="small", tokens=10)
    assert (taken.headers(), taken.standings) == ([], ())
    await rate_limits.give_back(taken, 5)
    await rate_limits.renew([taken])


async def test_a_redis_that_has_started_anew_is_told_the_script_again(taker: Taker, valkey: Valkey) -> None:
    await taker.take(requests(2))
    valkey.client.script_flush()
    await taker.take(requests(2))
    await taker.refusal(requests(2))


async def test_nothing_passes_when_redis_is_away() -> None:
    rate_limits = RateLimits(connect("unix:///nowhere"), "test:", lease_ms=LEASE_MS)
    with pytest.raises(RedisError):
        await rate_limits.take([requests(1)], uuid4(), model="small", tokens=10)


async def test_nothing_passes_when_redis_is_frozen(
    redis: Redis, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLY_TIMEOUT_S", 0.1)
    valkey.client.client_pause(500)
    with pytest.raises(RedisError):
        await RateLimits(redis, "test:", lease_ms=LEASE_MS).take(
            [requests(1)], uuid4(), model="small", tokens=10
        )


# ---- requests that are refused


async def test_to_look_takes_nothing(taker: Taker) -> None:
    limits = (requests(2), tokens(5), running(1))
    for _ in range(5):
        await taker.rate_limits.look(limits)
    await taker.take_all(requests(2))
    for _ in range(5):
        with pytest.raises(RateLimited) as refused:
            await taker.rate_limits.look(limits)
    assert (refused.value.limit, refused.value.standings[0].remaining) == (requests(2), 0)
    assert 0 < (refused.value.retry_after_ms or 0) <= MINUTE_MS / 2


async def test_to_look_asks_only_for_requests_of_any_model(taker: Taker) -> None:
    await taker.take(requests(1, model="large"), model="large")
    await taker.take(tokens(5), running(1))
    await taker.rate_limits.look((requests(1, model="large"), tokens(5), running(1)))
    with pytest.raises(RateLimited):
        await taker.rate_limits.look((requests(0),))


async def test_a_refused_request_takes_one_from_each_limit_of_requests(taker: Taker) -> None:
    limits = (requests(3), requests(3, scope="project"), tokens(5), running(1))
    for _ in range(3):
        await taker.rate_limits.take_refused(limits, uuid4())
    with pytest.raises(RateLimited):
        await taker.rate_limits.take_refused(limits, uuid4())
    assert (await taker.refusal(requests(3))).limit == requests(3)
    assert (await taker.refusal(requests(3, scope="project"))).standings[0].remaining == 0
    await taker.take(tokens(5), running(1))


@pytest.mark.parametrize("tight", [tokens(15), running(1)], ids=str)
async def test_what_tokens_or_places_refuse_takes_one_from_the_keys_requests(
    taker: Taker, tight: Limit
) -> None:
    """Not from its project's: those of other keys do not pay for it."""
    limits = (requests(3), requests(9, scope="project"), tight)
    await taker.take(*limits)
    refusals = [await taker.refusal(*limits) for _ in range(4)]
    assert [refusal.limit for refusal in refusals[:2]] == [tight, tight]
    assert (await taker.refusal(requests(3))).standings[0].remaining == 0
    assert (await taker.take(requests(9, scope="project"))).standings[0].remaining == 7


async def test_whoever_waits_as_long_as_places_told_finds_room_for_a_request(taker: Taker) -> None:
    limit, place = Limit("key", 1, "", Counts.REQUESTS, 2, 3_000), running(1)
    first = await taker.take(limit, place)
    told_ms = (await taker.refusal(limit, place)).retry_after_ms or 0
    assert told_ms >= module.RUNNING_RETRY_MS
    await taker.rate_limits.give_back(first, 0)
    await asyncio.sleep(told_ms / 1_000)
    await taker.take(limit, place)
