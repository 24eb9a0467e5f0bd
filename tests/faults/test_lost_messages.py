"""A message that never reaches a worker: the generation runs all the same, or is voided, soon after a worker
is free.
"""

import json
import time
from uuid import uuid4

import pytest
from redis import Redis

from tests.chatapi.http_client import Client
from tests.fake_completion import WORDS
from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("lost-messages"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "60000"}
"""As in production: nothing here may have to wait for the end of its time in the queue."""
FOUND_WITHIN_S = 2.0
SLACK_S = 1.5
"""For a machine that is busy with other tests."""


def start_worker(installation: Installation) -> float:
    """Start a worker; return the time at which it could take tasks."""
    installation.replace("worker", "manage.py")
    return time.monotonic()


def queued(valkey: Redis) -> int:
    return int(valkey.zcard("chatapi:generations:turns"))


def prompt_of(*calls: dict[str, object]) -> list[str]:
    return [str(call["body"]["messages"][0]["content"]) for call in calls]  # type: ignore[index]


def test_a_request_that_was_queued_in_an_emptied_valkey_is_voided(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    installation.end("worker")
    answers = [ask("five"), ask("five", stream=False)]
    wait_for(lambda: queued(valkey) == 2, "the messages")
    valkey.flushall()
    ready_at = start_worker(installation)
    for answer in answers:
        answer.end()
        assert (answer.status, answer.error["code"]) == (503, "request_lost")
        # Found, and then answered from the row, because the client's inbox is not known any more.
        assert answer.ended_at - ready_at < FOUND_WITHIN_S + 2 + SLACK_S
        assert installation.receipt(answer.generation_id)["amount_nanodollars"] == 0


def test_a_message_that_only_the_queue_has_lost_is_enqueued_again(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    installation.end("worker")
    prompt = f"lost {uuid4()}"
    answer = ask("five", messages=[{"role": "user", "content": prompt}])
    wait_for(lambda: queued(valkey) == 1, "the message")
    valkey.delete("chatapi:generations:turns")
    ready_at = start_worker(installation)
    assert answer.end().words == WORDS[:5]
    assert answer.ended_at - ready_at < FOUND_WITHIN_S + SLACK_S
    assert prompt_of(*installation.calls("five")).count(prompt) == 1


def test_what_a_worker_had_popped_when_it_was_killed_runs_on_another(
    installation: Installation, ask: Ask
) -> None:
    armed.start(installation, "worker", "claim.before=kill9@1")
    process = installation.processes["worker"]
    prompt = f"popped {uuid4()}"
    answer = ask("five", messages=[{"role": "user", "content": prompt}])
    process.wait(10)
    ready_at = start_worker(installation)
    assert answer.end().words == WORDS[:5]
    assert answer.ended_at - ready_at < FOUND_WITHIN_S + SLACK_S
    assert prompt_of(*installation.calls("five")).count(prompt) == 1


def test_what_a_web_process_had_not_queued_when_it_was_killed_is_voided(
    installation: Installation, ask: Ask
) -> None:
    armed.start(installation, "web", "admit.after_commit=kill9@1")
    process = installation.processes["web"]
    ask("five")
    process.wait(10)
    killed_at = time.monotonic()
    installation.end("web")
    wait_for(
        lambda: "request_lost" in last_ends(installation), "the generation to be voided", FOUND_WITHIN_S + 10
    )
    assert installation.log("worker").count("is enqueued again") >= 1
    assert time.monotonic() - killed_at < 15
    installation.start_web()


LAST = """
from usage.models import Generation
row = Generation.objects.order_by("-id").first()
open_s = (row.settled_at - row.admitted_at).total_seconds() if row.settled_at else ""
print(row.error_code, row.amount_nanodollars, open_s)
"""


def last_ends(installation: Installation) -> str:
    return installation.shell(LAST)


def test_many_workers_run_what_was_lost_once(installation: Installation, ask: Ask, valkey: Redis) -> None:
    installation.end("worker")
    prompt = f"many {uuid4()}"
    answers = [ask("five", messages=[{"role": "user", "content": prompt}]) for _ in range(20)]
    wait_for(lambda: queued(valkey) == 20, "the messages")
    valkey.delete("chatapi:generations:turns")
    try:
        installation.start_worker("second worker")
        start_worker(installation)
        assert [answer.end().words for answer in answers] == [WORDS[:5]] * 20
    finally:
        installation.end("second worker")
    assert prompt_of(*installation.calls("five")).count(prompt) == 20


def test_a_repeat_with_the_same_idempotency_key_enqueues_what_was_never_queued(
    installation: Installation,
) -> None:
    """The web process is killed between commit and enqueue, and no worker is there to find the generation."""
    installation.end("worker")
    armed.start(installation, "web", "admit.after_commit=kill9@1")
    process = installation.processes["web"]
    key, prompt = uuid4().hex, f"repeated {uuid4()}"
    body = json.dumps(
        {"model": "five", "messages": [{"role": "user", "content": prompt}], "stream": True}
    ).encode()
    client = Client(installation.url, installation.keys["live"], 30)
    with pytest.raises(ConnectionError):
        client.send("POST", "/openai/v1/chat/completions", body, idempotency_key=key)
    process.wait(10)
    installation.end("web")
    installation.start_web()
    with client.exchange("POST", "/openai/v1/chat/completions", body, {"Idempotency-Key": key}) as repeated:
        start_worker(installation)
        answer = repeated.read()
    assert (answer.status, answer.headers["idempotent-replayed"]) == (200, "true")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in answer.body
    assert prompt_of(*installation.calls("five")).count(prompt) == 1
