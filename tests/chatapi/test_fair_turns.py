"""Parties take turns on a loop that has more to do than one iteration should."""

import asyncio
from collections import Counter

from chatapi.fair_turns import FairTurns, Senders


async def work(turns: FairTurns, party: str, units: int, done: list[str], times: int = 1) -> None:
    for _ in range(times):
        await turns.take(party, units)
        done.append(party)


async def finish(tasks: list["asyncio.Task[None]"]) -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)


async def test_little_work_does_not_wait() -> None:
    turns = FairTurns()
    done: list[str] = []
    for _ in range(127):
        turn = turns.take("a", 1)
        try:
            turn.send(None)
        except StopIteration:
            done.append("a")
    assert len(done) == 127


async def test_an_iteration_does_no_more_than_its_bound() -> None:
    turns = FairTurns(iteration_units=8, visit_units=4)
    done: list[str] = []
    tasks = [asyncio.create_task(work(turns, f"{number % 3}", 1, done)) for number in range(100)]
    before = 0
    async with asyncio.timeout(10):
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            # A visit may end within an iteration's bound and begin there: its turns are small, so it passes
            # the bound by less than a visit.
            assert len(done) - before < 8 + 4 + 4
            before = len(done)
    assert len(done) == 100


async def test_a_party_with_little_to_do_does_not_wait_for_one_with_much() -> None:
    turns = FairTurns(iteration_units=8, visit_units=4)
    done: list[str] = []
    flood = [asyncio.create_task(work(turns, "flood", 4, done, times=20)) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = len(done)
    honest = asyncio.create_task(work(turns, "honest", 1, done, times=10))
    async with asyncio.timeout(10):
        await honest
    # Each of its turns waits for one visit of the flood, and an iteration holds two of those; without turns
    # it would wait for all 50.
    assert Counter(done[before:])["flood"] <= 10 * 5
    await finish(flood)


async def test_a_turn_that_is_too_large_is_owed() -> None:
    turns = FairTurns(iteration_units=8, visit_units=4)
    done: list[str] = []
    large = [asyncio.create_task(work(turns, "large", 40, done)) for _ in range(3)]
    await asyncio.sleep(0)
    small = [asyncio.create_task(work(turns, "small", 1, done)) for _ in range(40)]
    await finish([*large, *small])
    # The first was alone, the second has its turn before any small one waits, the third pays for the second:
    # nine visits.
    assert [place for place, party in enumerate(done) if party == "large"][:2] == [0, 1]
    assert done[2:38] == ["small"] * 36


async def test_a_cancelled_turn_gives_its_place_to_the_next() -> None:
    turns = FairTurns(iteration_units=2, visit_units=2)
    done: list[str] = []
    tasks = [asyncio.create_task(work(turns, "a", 1, done)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[2:9]:
        task.cancel()
    await asyncio.wait(tasks)
    async with asyncio.timeout(10):
        await tasks[9]
    assert len(done) == 3


def test_a_loop_is_shared_from_the_second_party_on() -> None:
    senders = Senders()
    assert [senders.is_shared_with(party) for party in "aabaaa"] == [False, False, True, True, True, True]


def test_a_loop_is_not_shared_any_more_after_a_while() -> None:
    senders = Senders(shared_s=0)
    assert not any(senders.is_shared_with(party) for party in "abaa")
