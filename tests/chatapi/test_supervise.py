"""A loop of a process runs again after every end."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from chatapi import concurrency


@pytest.mark.parametrize("made", [lambda loop: loop, partial], ids=["a function", "a partial"])
async def test_a_loop_that_fails_is_logged_and_runs_again(
    made: Callable[[concurrency.Loop], concurrency.Loop],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(concurrency, "RESTART_DELAY_S", 0)
    runs = 0
    was_there = asyncio.Event()

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            was_there.set()
            await asyncio.Event().wait()
        elif runs == 1:
            raise LookupError("a bug")

    running = asyncio.create_task(concurrency.supervise(made(loop)))
    await asyncio.wait_for(was_there.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (record,) = caplog.records
    assert (record.levelname, runs) == ("ERROR", 3)
    assert "loop" in record.getMessage()
    assert record.exc_info
    assert isinstance(record.exc_info[1], LookupError)


class Sweeper:
    """A loop as the services have it: a method."""

    async def run(self) -> None:
        raise LookupError("a bug")


@pytest.mark.parametrize("made", [lambda loop: loop, partial], ids=["a method", "a partial"])
async def test_the_log_names_the_class_of_a_loop_that_fails(
    made: Callable[[concurrency.Loop], concurrency.Loop], caplog: pytest.LogCaptureFixture
) -> None:
    """Most loops are called `run`."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(concurrency.supervise(made(Sweeper().run)), 0.1)
    (record,) = caplog.records
    assert "Sweeper.run" in record.getMessage()
