"""A run and the ways to stop it."""

import asyncio

import pytest

from chatapi import identity
from chatapi.delta_stream import Cancellation
from chatapi.worker.run import Run
from chatapi.worker.tally import Ending
from usage.ledger import Claimed


@pytest.fixture
def run() -> Run:
    return Run(Claimed(identity.new_id(), 1, "model", 10, 1, is_test=False), "web")


async def wait_for_ever(run: Run) -> None:
    async with run.scope():
        await asyncio.Event().wait()


async def test_a_stop_ends_what_the_run_awaits(run: Run) -> None:
    asyncio.get_running_loop().call_soon(run.cancel, Cancellation.CLIENT_LEFT)
    with pytest.raises(TimeoutError):
        await wait_for_ever(run)
    assert run.stopped is not None
    assert run.stopped.ending is Ending.CLIENT_LEFT


async def test_the_first_reason_to_stop_counts(run: Run) -> None:
    run.fence_off()
    run.cancel(Cancellation.CLIENT_LEFT)
    run.lose_stream()
    assert run.stopped is not None
    assert run.stopped.ending is Ending.FENCED_OFF


async def test_a_stop_that_comes_when_the_engine_has_ended_changes_nothing(run: Run) -> None:
    async with run.scope():
        pass
    run.cancel(Cancellation.CLIENT_LEFT)
    await asyncio.sleep(0)


async def test_a_second_deployment_can_be_stopped_like_the_first(run: Run) -> None:
    async with run.scope():
        pass
    asyncio.get_running_loop().call_soon(run.fence_off)
    with pytest.raises(TimeoutError):
        await wait_for_ever(run)


async def test_a_deployment_that_goes_on_without_its_client_does(run: Run) -> None:
    run.stops_when_client_leaves = False
    run.cancel(Cancellation.CLIENT_LEFT)
    assert run.stopped is None


async def test_what_is_asked_to_stop_stops_and_ends_well(run: Run) -> None:
    run.stops_when_client_leaves = False
    run.cancel(Cancellation.ASKED)
    assert run.stopped is not None
    assert (run.stopped.ending, run.stopped.failure) == (Ending.CANCELLED, None)
