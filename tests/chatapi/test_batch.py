"""Concurrent calls that share one round trip."""

import asyncio
from collections.abc import Sequence

import pytest

from chatapi.concurrency import Batch


class Trips:
    """Round trips that last until the test lets them end; each item's result is ten times the item."""

    def __init__(self) -> None:
        self.items: list[list[int]] = []
        self.under_way = asyncio.Semaphore(0)
        self.may_end = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.items.append(list(items))
        self.under_way.release()
        await self.may_end.acquire()
        if self.error is not None:
            raise self.error
        return [10 * item for item in items]


@pytest.fixture
def trips() -> Trips:
    return Trips()


async def test_a_call_alone_goes_at_once(trips: Trips) -> None:
    trips.may_end.release()
    assert await Batch(trips)(4) == 40
    assert trips.items == [[4]]


async def test_what_comes_meanwhile_goes_together_with_the_next(trips: Trips) -> None:
    batch = Batch(trips)
    first = asyncio.ensure_future(batch(1))
    await trips.under_way.acquire()
    later = [asyncio.ensure_future(batch(number)) for number in (2, 3, 4)]
    for _ in range(2):
        trips.may_end.release()
    assert await asyncio.gather(first, *later) == [10, 20, 30, 40]
    assert trips.items == [[1], [2, 3, 4]]


async def test_everyone_gets_the_error_of_their_trip_and_the_next_one_goes_well(trips: Trips) -> None:
    batch = Batch(trips)
    trips.error = ConnectionError("gone")
    trips.may_end.release()
    results = await asyncio.gather(batch(1), batch(2), return_exceptions=True)
    assert [str(result) for result in results] == ["gone", "gone"]
    trips.error = None
    trips.may_end.release()
    assert await batch(3) == 30


async def test_too_few_results_are_an_error_of_every_caller() -> None:
    async def forgetful(items: Sequence[int]) -> list[int]:
        return list(items[1:])

    batch = Batch(forgetful)
    results = await asyncio.gather(batch(1), batch(2), return_exceptions=True)
    assert [str(result) for result in results] == ["1 results for a batch of 2"] * 2


async def test_cancelling_a_caller_neither_takes_its_item_back_nor_harms_the_others(trips: Trips) -> None:
    batch = Batch(trips)
    first, second = asyncio.ensure_future(batch(1)), asyncio.ensure_future(batch(2))
    await trips.under_way.acquire()
    first.cancel()
    trips.may_end.release()
    assert await second == 20
    assert trips.items == [[1, 2]]
    with pytest.raises(asyncio.CancelledError):
        await first
