"""A request that failed by a fault is repeated with its Idempotency-Key: it runs, and does not get the old
error for a day.
"""

import signal
from uuid import uuid4

import pytest

from tests.chatapi.http_client import Client
from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("keys-after-faults"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "2500"}
"""What is admitted and never started is to be closed soon."""


@pytest.fixture
def key() -> str:
    return uuid4().hex


def test_what_could_not_be_queued(installation: Installation, ask: Ask, key: str) -> None:
    assert ask("five").end().is_done
    installation.end("valkey")
    refused = ask("five", idempotency_key=key).end()
    assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
    installation.start_valkey()
    wait_for(lambda: ask("five").end().is_done, "service", pause_s=0.2)
    assert ask("five", idempotency_key=key).end().is_done


def test_what_no_worker_was_there_for(installation: Installation, ask: Ask, key: str) -> None:
    installation.end("worker", signal.SIGTERM)
    installation.start_reaper()
    waiting = [ask("five", idempotency_key=key) for _ in range(2)]
    assert {(each.end().status, each.error["code"]) for each in waiting} == {(503, "queue_timeout")}
    installation.start_worker()
    wait_for(lambda: ask("five").end().is_done, "the worker", pause_s=0.2)
    again = ask("five", idempotency_key=key).end()
    assert again.is_done
    assert again.generation_id not in {each.generation_id for each in waiting}


def test_what_its_web_process_admitted_and_never_queued(
    installation: Installation, ask: Ask, key: str
) -> None:
    armed.start(installation, "web", "admit.after_commit=kill9")
    assert ask("five", idempotency_key=key).end().is_broken
    installation.end("web")
    installation.start_web()
    # As long as it might still be started, a request with the key waits for it, and gets its refusal.
    wait_for(lambda: ask("five", idempotency_key=key).end().is_done, "an answer", pause_s=0.2)


def test_only_free_requests_say_that_they_cost_nothing(installation: Installation, ask: Ask) -> None:
    charged = ask("five").end().generation_id
    installation.receipt(charged)
    client = Client(installation.url, installation.keys["live"])
    installation.end("valkey")
    answers = [client.complete("five"), client.send("GET", f"/v1/generations/{charged}/stream")]
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(503, "service_unavailable")}
    assert ["Nothing was charged" in answer.error["message"] for answer in answers] == [True, False]
