"""Processes get SIGTERM while clients wait: one after the other, twice, and in the end by force."""

import signal
from functools import partial

import pytest

from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("signals"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "20000", "CHATAPI_DRAIN_MS": "5000"}


@pytest.fixture(autouse=True)
def reaper(installation: Installation) -> None:
    """Start a reaper for the work of killed processes."""
    installation.revive()


def is_draining(installation: Installation, role: str, before: int) -> bool:
    return installation.log(role).count("Draining") > before


def test_workers_that_are_replaced_one_after_the_other_cost_nobody_an_answer(
    installation: Installation, ask: Ask
) -> None:
    installation.start_worker("worker-2")
    answers = []
    for name in ("worker", "worker-2"):
        answers += [ask("two-seconds").heard(2) for _ in range(4)]
        wait_for(partial(installation.is_ready_to_stop, name), f"{name} to catch signals")
        assert installation.end(name, signal.SIGTERM) == 0
        answers += [ask("five") for _ in range(4)]
        installation.start_worker(name)
    assert [(len(answer.end().words), answer.ends, answer.is_done) for answer in answers] == (
        [(100, 1, True)] * 4 + [(5, 1, True)] * 4
    ) * 2
    installation.end("worker-2", signal.SIGTERM)


def test_a_second_sigterm_ends_a_workers_answers_at_once(installation: Installation, ask: Ask) -> None:
    answers = [ask("steady").heard(5) for _ in range(3)]
    before = installation.log("worker").count("Draining")
    installation.send("worker", signal.SIGTERM)
    wait_for(lambda: is_draining(installation, "worker", before), "the drain")
    installation.end("worker", signal.SIGTERM, timeout_s=4)
    for answer in answers:
        assert (answer.end().error["code"], answer.ends, answer.is_done) == ("server_shutting_down", 1, True)
        assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == len(answer.words)


def test_a_worker_that_is_killed_while_it_drains_leaves_its_answers_to_the_reaper(
    installation: Installation, ask: Ask
) -> None:
    answers = [ask("steady").heard(5) for _ in range(3)]
    before = installation.log("worker").count("Draining")
    installation.send("worker", signal.SIGTERM)
    wait_for(lambda: is_draining(installation, "worker", before), "the drain")
    installation.end("worker")
    for answer in answers:
        assert (answer.end().error["code"], answer.ends, answer.is_done) == ("worker_lost", 1, True)
        assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == len(answer.words)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_web_process_leaves_behind_that_does_not_get_its_time_is_settled(
    installation: Installation, ask: Ask, second: signal.Signals
) -> None:
    answers = [ask("steady").heard(5) for _ in range(3)]
    installation.send("web", signal.SIGTERM)
    wait_for(lambda: installation.get("/readyz")[0] in {0, 503}, "/readyz to say no")
    installation.end("web", second, timeout_s=4)
    assert all(answer.end().ends <= 1 for answer in answers)
    installation.start_web()
    for answer in answers:
        receipt = installation.receipt(answer.generation_id)
        assert receipt["outcome"] == "client_cancelled"
        assert receipt["usage"]["completion_tokens"] >= len(answer.words)
