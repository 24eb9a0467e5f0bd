"""Upstream, queue and clocks misbehave, while our own processes live."""

import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from chatapi.celery import GENERATE_TASK, app
from chatapi.task_queue import TaskQueue
from tests.faults import skewed
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.usefixtures("reaper")]
"""A second reaper, which might take living runs for dead ones."""


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("resets", "upstream_disconnected"),
        ("closes", "upstream_disconnected"),
        ("stalls", "upstream_timeout"),
        ("talks-garbage", "upstream_invalid_response"),
    ],
)
def test_what_an_upstream_said_before_it_broke_off_is_counted_and_charged(
    installation: Installation, ask: Ask, model: str, code: str
) -> None:
    answer = ask(model).end()
    assert (answer.error["code"], answer.is_done) == (code, True)
    # A reset takes with it what the kernel has received and not yet handed over.
    assert len(answer.words) == 20 or (model == "resets" and 0 < len(answer.words) < 20)
    receipt = installation.receipt(answer.generation_id)
    assert (receipt["outcome"], receipt["error"]["code"], receipt["usage_source"]) == (
        "failed",
        code,
        "counted",
    )
    assert receipt["usage"]["completion_tokens"] == len(answer.words)
    assert (
        receipt["amount_nanodollars"] == sum(line["amount_nanodollars"] for line in receipt["line_items"]) > 0
    )


def test_without_a_worker_a_request_is_refused_in_time_and_costs_nothing(
    installation: Installation, ask: Ask
) -> None:
    calls = len(installation.calls("five"))
    installation.end("worker", signal.SIGTERM)
    answer = ask("five").end()
    assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
    assert held(installation) == 0
    receipt = installation.receipt(answer.generation_id)
    assert (receipt["outcome"], receipt["amount_nanodollars"]) == ("not_started", 0)
    installation.start_worker()
    wait_for(lambda: ask("five").end().is_done, "the new worker to take one in time")
    assert len(installation.calls("five")) == calls + 1, (
        "the message that was still queued has started nothing"
    )


@pytest.mark.parametrize("stream", [True, False])
def test_without_a_worker_and_a_reaper_the_web_process_itself_voids_a_request(
    installation: Installation, ask: Ask, stream: bool
) -> None:
    for name in ("worker", "reaper"):
        installation.end(name, signal.SIGTERM)
    answer = ask("five", stream=stream).end()
    assert (answer.status, answer.error["code"]) == (503, "queue_timeout")
    assert held(installation) == 0
    assert installation.receipt(answer.generation_id)["outcome"] == "not_started"


def test_a_message_that_comes_again_changes_nothing(installation: Installation, ask: Ask) -> None:
    queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
    calls = len(installation.calls("two-seconds"))
    with installation.open_valkey() as redis:
        answer = ask("two-seconds").heard(5)
        message = queue.message(answer.generation_id.removeprefix("chatcmpl-"), 1)
        redis.lpush(queue.key, message, message)
        assert len(answer.end().words) == 100
        redis.lpush(queue.key, message)
        wait_for(lambda: redis.llen(queue.key) == 0, "the worker to take them")
    assert ask("five").end().is_done
    assert len(installation.calls("two-seconds")) == calls + 1
    assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == 100


def test_a_message_that_comes_twice_at_once_starts_one_run(installation: Installation, ask: Ask) -> None:
    calls = len(installation.calls("five"))
    installation.send("worker", signal.SIGSTOP)
    with installation.open_valkey() as redis:
        answer = ask("five")
        wait_for(lambda: any(redis.scan_iter("*job:*")), "the request to be queued")
        (job,) = redis.scan_iter("*job:*")
        queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
        redis.lpush(queue.key, *[queue.message(job.decode().rpartition(":")[2], 1)] * 3)
        installation.send("worker", signal.SIGCONT)
        assert len(answer.end().words) == 5
    assert len(installation.calls("five")) == calls + 1


def held(installation: Installation) -> int:
    """Return the amount that running requests hold of the key's budgets, in nanodollars."""
    _, key = installation.get("/v1/key", installation.keys["live"])
    return sum(budget["pending_nanodollars"] for budget in key["budgets"])


@pytest.fixture
def wrong_clocks(installation: Installation) -> Iterator[None]:
    """Set the clocks of web and worker wrong, by an hour in opposite directions."""
    skewed.start(installation, "web", +3_600)
    skewed.start(installation, "worker", -3_600)
    yield
    for role in ("web", "worker"):
        installation.end(role)


def test_a_wrong_clock_moves_no_row_and_ends_no_lease(
    installation: Installation, ask: Ask, wrong_clocks: None
) -> None:
    answer = ask("two-seconds").end()
    assert (len(answer.words), answer.ends, answer.is_done) == (100, 1, True)
    receipt = installation.receipt(answer.generation_id)
    assert receipt["outcome"] == "completed"
    moments = [
        datetime.fromisoformat(receipt["timings"][name])
        for name in ("admitted_at", "claimed_at", "settled_at")
    ]
    assert moments == sorted(moments)
    assert abs(datetime.now(UTC) - moments[-1]) < timedelta(minutes=1)
    assert moments[-1] - moments[0] < timedelta(seconds=30)
