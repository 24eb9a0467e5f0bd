"""A burst goes through a few at a time."""

import asyncio

from chatapi.turnstile import Turnstile

LONG_S = 60.0


class Visitors:
    """Callers that stay inside until they are told to leave."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self.inside: list[int] = []
        self.may_leave = asyncio.Event()
        self.entered = asyncio.Semaphore(0)

    async def __call__(self, number: int) -> None:
        async with self._turnstile.passing():
            self.inside.append(number)
            self.entered.release()
            await self.may_leave.wait()

    async def have_entered(self, count: int) -> None:
        for _ in range(count):
            await self.entered.acquire()


async def test_the_next_comes_in_when_one_leaves() -> None:
    visitors = Visitors(Turnstile(width=2, hold_s=LONG_S))
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(visitors(number))
        await visitors.have_entered(2)
        assert visitors.inside == [0, 1]
        visitors.may_leave.set()
    assert visitors.inside == [0, 1, 2, 3, 4]


async def test_whoever_takes_long_holds_nobody_up() -> None:
    visitors = Visitors(Turnstile(width=1, hold_s=0.001))
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(visitors(number))
        await visitors.have_entered(3)
        visitors.may_leave.set()
    assert visitors.inside == [0, 1, 2]


async def test_one_that_left_late_makes_room_once() -> None:
    turnstile = Turnstile(width=1, hold_s=0.05)
    slow = Visitors(turnstile)
    async with asyncio.TaskGroup() as group:
        group.create_task(slow(0))
        group.create_task(slow(1))
        await slow.have_entered(2)
        slow.may_leave.set()
    later = Visitors(turnstile)
    async with asyncio.TaskGroup() as group:
        group.create_task(later(0))
        group.create_task(later(1))
        await later.have_entered(1)
        assert later.inside == [0]
        later.may_leave.set()


async def test_one_that_is_cancelled_leaves() -> None:
    turnstile = Turnstile(width=1, hold_s=LONG_S)
    first, second = Visitors(turnstile), Visitors(turnstile)
    task = asyncio.create_task(first(0))
    await first.have_entered(1)
    task.cancel()
    await asyncio.wait([task])
    second.may_leave.set()
    await second(1)
    assert second.inside == [1]
