"""New work begins no faster than the event loop keeps up."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from chatapi import pace
from chatapi.pace import Pace


class Hog:
    """Something that keeps the loop from being on time, and counts how often."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            time.sleep(3 * pace.TICK_S)  # noqa: ASYNC251  that is what it is for
            self.turns += 1
            await asyncio.sleep(0)


@pytest.fixture
async def watched() -> AsyncIterator[Pace]:
    """A pace that is being kept."""
    kept = Pace()
    running = asyncio.create_task(kept.run())
    yield kept
    running.cancel()


@pytest.fixture
async def hog(watched: Pace) -> AsyncIterator[Hog]:
    """Returned when the loop is late because of it."""
    found = Hog()
    running = asyncio.create_task(found.run())
    await watched.turn()
    while not watched.is_late:
        await asyncio.sleep(0)
    yield found
    running.cancel()


async def test_all_begin_at_once_while_the_loop_is_on_time() -> None:
    kept = Pace()
    turns = [asyncio.create_task(kept.turn()) for _ in range(100)]
    for _ in range(2 * len(turns)):
        await asyncio.sleep(0)
    assert all(turn.done() for turn in turns)


async def test_one_after_the_other_begins_while_it_is_late(watched: Pace, hog: Hog) -> None:
    begun: list[tuple[int, int]] = []

    async def begin(number: int) -> None:
        await watched.turn()
        begun.append((number, hog.turns))

    await asyncio.gather(*(begin(number) for number in range(5)))
    assert [number for number, _ in begun] == [0, 1, 2, 3, 4]
    # The loop had time for the others between any two of them.
    assert len({turns for _, turns in begun}) == 5


@pytest.mark.usefixtures("hog")
async def test_who_leaves_keeps_nobody_from_beginning(watched: Pace) -> None:
    turns = [asyncio.create_task(watched.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    turns[0].cancel()
    turns[1].cancel()
    await turns[2]


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE_S", 0.01)
    kept = Pace()
    kept.is_late = True  # and nobody is there to notice that it is not any more
    await asyncio.gather(*(kept.turn() for _ in range(20)))


async def test_an_idle_process_is_left_in_peace(watched: Pace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LULL_S", 0.0)
    for _ in range(2):
        await watched.turn()
        while watched._is_busy.is_set():
            await asyncio.sleep(0)
