"""A worker that dies, freezes or gets SIGTERM, while clients wait for it."""

import json
import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.usefixtures("reaper")]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "20000"}
"""Longer than a worker needs to start."""


def test_a_killed_worker_is_an_error_in_mid_stream_and_the_visible_part_is_charged(
    installation: Installation, ask: Ask
) -> None:
    answer = ask("steady").heard(20)
    installation.end("worker")
    killed_at = time.monotonic()
    answer.end()
    assert answer.ended_at - killed_at < 3
    assert answer.error["code"] == "worker_lost"
    assert answer.is_done
    receipt = installation.receipt(answer.generation_id)
    assert receipt["outcome"] == "worker_lost"
    assert receipt["usage_source"] == "counted"
    assert receipt["usage"]["completion_tokens"] == len(answer.words)
    assert receipt["amount_nanodollars"] > 0


LAST = """
import json
from usage.models import Generation
row = Generation.objects.order_by("-id").first()
print(json.dumps([row.deployment, row.worker]))
"""


def test_the_books_know_where_a_lost_run_ran(installation: Installation, ask: Ask) -> None:
    answer = ask("steady").heard(60)  # longer than two heartbeats
    pid = installation.processes["worker"].pid
    installation.end("worker")
    answer.end()
    assert installation.receipt(answer.generation_id)["outcome"] == "worker_lost"
    deployment, worker = json.loads(installation.shell(LAST))
    assert (deployment, worker.rpartition(":")[2]) == ("upstream", str(pid))


def test_a_worker_killed_before_the_first_token_costs_nothing(installation: Installation, ask: Ask) -> None:
    calls = len(installation.calls("never-begins"))
    answer = ask("never-begins")
    wait_for(lambda: len(installation.calls("never-begins")) > calls, "the call")
    installation.end("worker")
    killed_at = time.monotonic()
    answer.end()
    assert answer.ended_at - killed_at < 3
    assert (answer.status, answer.error["code"]) == (502, "worker_lost")
    receipt = installation.receipt(answer.generation_id)
    assert (receipt["outcome"], receipt["amount_nanodollars"]) == ("worker_lost", 0)


def test_a_killed_worker_is_an_error_without_streaming(installation: Installation, ask: Ask) -> None:
    """An answer in one piece is published each second, so what is older is charged."""
    calls = len(installation.calls("steady"))
    answer = ask("steady", stream=False)
    wait_for(
        lambda: len(installation.calls("steady")) > calls and installation.calls("steady")[-1]["tokens"] > 75,
        "the tokens of more than a second",
    )
    installation.end("worker")
    killed_at = time.monotonic()
    answer.end()
    assert answer.ended_at - killed_at < 3
    assert (answer.status, answer.error["code"]) == (502, "worker_lost")
    assert (
        answer.error["message"]
        == "The worker was lost while it generated. What was generated is charged; see the receipt."
    )
    receipt = installation.receipt(answer.generation_id)
    assert receipt["outcome"] == "worker_lost"
    assert 0 < receipt["usage"]["completion_tokens"] <= installation.calls("steady")[-1]["tokens"]


def test_a_frozen_worker_is_fenced_off_and_adds_nothing_when_it_thaws(
    installation: Installation, ask: Ask
) -> None:
    answer = ask("steady").heard(10)
    installation.send("worker", signal.SIGSTOP)
    answer.end()
    assert answer.error["code"] == "worker_lost"
    receipt = installation.receipt(answer.generation_id)
    wait_for(
        lambda: installation.calls("steady")[-1]["tokens"] > len(answer.words) + 50,
        "more tokens on their way",
    )
    installation.send("worker", signal.SIGCONT)
    wait_for(lambda: installation.calls("steady")[-1]["is_peer_gone"], "the worker to give up")
    assert installation.receipt(answer.generation_id) == receipt
    assert receipt["usage"]["completion_tokens"] == len(answer.words)
    assert ask("five").end().is_done


def test_a_worker_lets_short_answers_finish_on_sigterm(installation: Installation, ask: Ask) -> None:
    short = [ask("two-seconds").heard(5) for _ in range(3)]
    long = [ask("steady").heard(5) for _ in range(3)]
    assert installation.end("worker", signal.SIGTERM) == 0
    assert [len(answer.end().words) for answer in short] == [100] * 3
    assert [answer.end().error["code"] for answer in long] == ["server_shutting_down"] * 3
    assert all(answer.is_done for answer in [*short, *long])
    for answer in [*short, *long]:
        assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == len(answer.words)


def test_what_a_stopping_worker_leaves_in_the_queue_the_next_one_does(
    installation: Installation, ask: Ask
) -> None:
    running = ask("steady").heard(5)
    drains = installation.log("worker").count("Draining")
    installation.send("worker", signal.SIGTERM)
    wait_for(lambda: installation.log("worker").count("Draining") > drains, "the drain")
    queued = [ask("five") for _ in range(5)]
    assert installation.end("worker", signal.SIGTERM) == 0
    installation.start_worker()
    assert [len(answer.end().words) for answer in queued] == [5] * 5
    assert running.end().error["code"] == "server_shutting_down"


def test_a_worker_is_one_process_so_that_no_part_of_it_dies_alone(
    installation: Installation, ask: Ask
) -> None:
    assert ask("five").end().is_done
    pid = installation.processes["worker"].pid
    children = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    assert "".join(children).split() == []
