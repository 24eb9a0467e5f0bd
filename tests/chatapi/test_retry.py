"""A call is repeated after the errors that are expected of it; work that has begun is not cancelled."""

import asyncio

import pytest

from chatapi.concurrency import retry, shield_until_done


class Call:
    """Raises these errors, one for each attempt, and then returns how often it was called."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.attempts = 0

    async def __call__(self) -> int:
        self.attempts += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.attempts


async def test_a_call_is_repeated_while_it_raises_an_expected_error() -> None:
    call = Call(ConnectionError("away"), TimeoutError("late"))
    assert await retry(call, (0, 0, 0), (ConnectionError, TimeoutError)) == 3


async def test_the_error_of_the_last_attempt_is_raised() -> None:
    call = Call(*(ConnectionError(f"attempt {number}") for number in (1, 2, 3, 4)))
    with pytest.raises(ConnectionError, match="attempt 3"):
        await retry(call, (0, 0), (ConnectionError,))
    assert call.attempts == 3


async def test_any_other_error_is_raised_at_once() -> None:
    call = Call(LookupError("a bug"))
    with pytest.raises(LookupError, match="a bug"):
        await retry(call, (0, 0), (ConnectionError,))
    assert call.attempts == 1


async def test_each_wait_comes_after_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    call, waited = Call(ConnectionError(), ConnectionError()), list[tuple[int, float]]()

    async def sleep(wait_s: float) -> None:
        waited.append((call.attempts, wait_s))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await retry(call, (0.1, 5, 30), (ConnectionError,))
    assert waited == [(1, 0.1), (2, 5)]


async def begun(finished: asyncio.Event) -> "asyncio.Task[tuple[str, bool]]":
    """Return a caller that waits for work, which ends after the event."""
    has_begun = asyncio.Event()

    async def work() -> str:
        has_begun.set()
        await finished.wait()
        return "committed"

    caller = asyncio.create_task(shield_until_done(work()))
    await has_begun.wait()
    return caller


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_work_is_done_and_its_caller_learns_of_a_cancellation(is_cancelled: bool) -> None:
    finished = asyncio.Event()
    caller = await begun(finished)
    if is_cancelled:
        caller.cancel()
        await asyncio.sleep(0)  # it has its turn
    finished.set()
    assert await caller == ("committed", is_cancelled)


async def test_a_second_cancellation_cancels_the_work() -> None:
    caller = await begun(asyncio.Event())
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_an_error_of_the_work_is_its_callers() -> None:
    with pytest.raises(LookupError, match="a bug"):
        await shield_until_done(Call(LookupError("a bug"))())
