"""A run and the ways to stop it."""

import asyncio
import sys
from typing import cast

import pytest

from chatapi import identity
from chatapi.delta_stream import Cancellation, DeltaStream
from chatapi.models import OnDisconnect
from chatapi.wire.deltas import AnyDelta, Started, Text
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker.runs.publisher import Publisher
from chatapi.worker.runs.run import SHUTTING_DOWN, Run
from chatapi.worker.runs.run_usage import End, Ending
from usage.books.ledger import Claimed


@pytest.fixture
def run() -> Run:
    return Run(Claimed(identity.new_id(), 1, "model", 10, 1, is_test=False, organization_id=1), "web")


def test_a_run_has_a_dict_that_shares_its_keys(run: Run) -> None:
    assert sys.getsizeof(vars(run)) < 600, "with its own keys it has 1.6 kB"


async def wait_forever(run: Run) -> None:
    async with run.scope():
        await asyncio.Event().wait()


async def test_a_stop_ends_what_the_run_awaits(run: Run) -> None:
    run.begin_attempt("openai", OnDisconnect.CANCEL)
    asyncio.get_running_loop().call_soon(run.cancel, Cancellation.CLIENT_LEFT)
    with pytest.raises(TimeoutError):
        await wait_forever(run)
    assert run.stopped is not None
    assert run.stopped.ending is Ending.CLIENT_LEFT


async def test_the_first_reason_to_stop_counts(run: Run) -> None:
    run.fence_off()
    run.cancel(Cancellation.CLIENT_LEFT)
    run.lose_stream([])
    assert run.stopped is not None
    assert run.stopped.ending is Ending.FENCED_OFF


async def test_a_stop_that_comes_when_the_engine_has_ended_changes_nothing(run: Run) -> None:
    run.begin_attempt("openai", OnDisconnect.CANCEL)
    async with run.scope():
        pass
    run.cancel(Cancellation.CLIENT_LEFT)
    await asyncio.sleep(0)


async def test_a_pause_ends_with_its_time_or_with_the_run(run: Run) -> None:
    assert await run.pause(0.01) is None
    asyncio.get_running_loop().call_soon(run.cancel, Cancellation.ASKED)
    async with asyncio.timeout(20):
        assert await run.pause(3_600) == run.stopped == End(Ending.CANCELLED)
        assert await run.pause(3_600) == run.stopped, "it is stopped already"


async def test_a_second_deployment_can_be_stopped_like_the_first(run: Run) -> None:
    async with run.scope():
        pass
    asyncio.get_running_loop().call_soon(run.fence_off)
    with pytest.raises(TimeoutError):
        await wait_forever(run)


@pytest.mark.parametrize(
    ("rule", "has_published", "stops"),
    [
        ("cancel", False, True),
        ("cancel", True, True),
        ("drain", False, True),
        ("drain", True, False),
        ("continue", False, False),
    ],
)
@pytest.mark.parametrize("leaves", ["before", "after"])
def test_the_deployment_says_what_follows_when_the_client_leaves(
    run: Run, rule: str, has_published: bool, stops: bool, leaves: str
) -> None:
    """Nothing is decided before a deployment is chosen."""
    if leaves == "before":
        run.cancel(Cancellation.CLIENT_LEFT)
        assert run.stopped is None
    run.has_published = has_published
    run.begin_attempt("openai", OnDisconnect(rule))
    run.cancel(Cancellation.CLIENT_LEFT)
    assert (run.stopped is not None) is stops


def test_a_generation_that_runs_on_is_finished_under_any_rule() -> None:
    run = Run(
        Claimed(identity.new_id(), 1, "model", 10, 1, is_test=False, organization_id=1), "web", runs_on=True
    )
    run.begin_attempt("openai", OnDisconnect.CANCEL)
    run.cancel(Cancellation.CLIENT_LEFT)
    assert run.stopped is None


async def test_what_is_asked_to_stop_stops_and_ends_well(run: Run) -> None:
    run.begin_attempt("openai", OnDisconnect.CONTINUE)
    run.cancel(Cancellation.ASKED)
    assert run.stopped is not None
    assert (run.stopped.ending, run.stopped.failure) == (Ending.CANCELLED, None)


async def test_what_an_operator_stops_does_not_look_like_a_whole_answer(run: Run) -> None:
    run.begin_attempt("openai", OnDisconnect.CONTINUE)
    run.cancel(Cancellation.STOPPED)
    assert run.stopped is not None
    assert (run.stopped.ending, run.stopped.error_code) == (Ending.FAILED, "stopped_by_operator")


def test_a_failed_and_a_cut_off_attempt_are_both_recorded(run: Run) -> None:
    """The attempt that still ran has not failed, after every kind of end."""
    run.begin_attempt("first", OnDisconnect.CANCEL)
    run.end_attempt("upstream_timeout")
    run.begin_attempt("second", OnDisconnect.CANCEL)
    end = run.ended(End(Ending.FAILED, SHUTTING_DOWN))
    assert (end.ending, end.error_code) == (Ending.FAILED, "server_shutting_down")
    assert [(each.deployment, each.error_code) for each in end.attempts] == [
        ("first", "upstream_timeout"),
        ("second", ""),
    ]


def test_a_deployment_is_not_asked_for_what_nobody_wants_any_more(run: Run) -> None:
    run.cancel(Cancellation.STOPPED)
    stopped = run.begin_attempt("openai", OnDisconnect.CONTINUE)
    assert stopped is not None
    assert (run.deployment, run.ended(stopped).attempts) == ("", ())


async def test_a_held_answers_echo_of_the_prompt_is_not_to_be_charged() -> None:
    """A heartbeat tells it, for a reaper that finds no log any more."""
    claimed = Claimed(identity.new_id(), 1, "model", 10, 1, is_test=False, organization_id=1, is_stream=False)
    run = Run(claimed, "web", is_held=True)
    request = parse_text(b'{"model": "m", "prompt": "One two", "echo": true}')
    run.usage.expect_echo(request)
    publisher = Publisher(cast(DeltaStream, None))
    answer: list[AnyDelta] = [Started(), Text("One"), Text(" two"), Text(" three"), Text(" four")]
    run.publish(publisher, run.usage.add(answer))
    assert run.published_pieces == 0, "nothing is published"
    run.publish_held(publisher)
    assert run.published_pieces == 2
