"""A cached value: concurrent callers share one reading, and one error."""

import asyncio
from collections.abc import Iterator

import pytest

from chatapi.concurrency import CachedValue


class Source:
    """Answers when the test says so, and remembers how often it was asked."""

    def __init__(self) -> None:
        self.readings = 0
        self.answers: asyncio.Queue[str | Exception] = asyncio.Queue()

    async def read(self) -> str:
        self.readings += 1
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def source() -> Source:
    return Source()


async def test_waiting_callers_share_one_read_and_its_value_is_kept(source: Source) -> None:
    recent = CachedValue(source.read)
    waiting = [asyncio.create_task(recent.get()) for _ in range(10)]
    await asyncio.sleep(0)
    source.answers.put_nowait("catalog")
    assert await asyncio.gather(*waiting) == ["catalog"] * 10
    assert (await recent.get(), source.readings) == ("catalog", 1)


async def test_nothing_is_a_value_too() -> None:
    found: Iterator[str | None] = iter([None])

    async def read() -> str | None:
        return next(found)

    recent = CachedValue(read)
    assert [await recent.get(), await recent.get()] == [None, None]


async def test_a_caller_that_wants_a_newer_value_has_it_read_again(source: Source) -> None:
    recent = CachedValue(source.read)
    for answer in ("catalog", "newer"):
        source.answers.put_nowait(answer)
    assert [await recent.get(), await recent.get(60), await recent.get(0), await recent.get()] == [
        "catalog",
        "catalog",
        "newer",
        "newer",
    ]
    assert source.readings == 2


async def test_a_reading_that_began_too_early_is_not_new_enough(source: Source) -> None:
    """A read that began before a write does not contain it."""
    recent = CachedValue(source.read)
    early = asyncio.create_task(recent.get())
    await asyncio.sleep(0)
    late = [asyncio.create_task(recent.get(0)) for _ in range(10)]
    await asyncio.sleep(0)
    source.answers.put_nowait("catalog")
    assert await early == "catalog"
    source.answers.put_nowait("newer")
    assert await asyncio.gather(*late) == ["newer"] * 10
    assert source.readings == 2


async def test_waiting_callers_share_one_error_and_the_next_reads_again(source: Source) -> None:
    recent = CachedValue(source.read)
    waiting = [asyncio.create_task(recent.get()) for _ in range(10)]
    await asyncio.sleep(0)
    source.answers.put_nowait(LookupError("away"))
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {LookupError}
    source.answers.put_nowait("catalog")
    assert (await recent.get(), source.readings) == ("catalog", 2)


async def test_a_cancelled_caller_leaves_the_reading_to_the_others(source: Source) -> None:
    recent = CachedValue(source.read)
    first, second = asyncio.create_task(recent.get()), asyncio.create_task(recent.get())
    await asyncio.sleep(0)
    first.cancel()
    source.answers.put_nowait("catalog")
    assert (await second, source.readings) == ("catalog", 1)
