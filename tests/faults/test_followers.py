"""Clients that follow another client's stream, when the stream can't go on as usual."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from chatapi.wire.sse import Parser
from tests.chatapi.http_client import HELLO, Client
from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]


def test_resumed_and_attached_clients_get_an_end_and_the_generations_run_on(
    installation: Installation, ask: Ask
) -> None:
    key = uuid4().hex
    with installation.another_web() as another:
        plain, named = ask("five-seconds").heard(1), ask("five-seconds", idempotency_key=key).heard(1)
        attached = ask("five-seconds", url=another.url, idempotency_key=key).heard(1)
        path = f"/openai/v1/generations/{plain.generation_id}/stream"
        with Client(another.url, installation.keys["live"]).exchange("GET", path, None, {}) as resuming:
            begin = resuming.response.readline()
            another.send("web", signal.SIGTERM)
            resumed = begin + resuming.response.read()
        assert another.end("web", signal.SIGCONT) == 0
    assert resumed.endswith(b"\n\ndata: [DONE]\n\n")
    assert resumed.count(b"[DONE]") == resumed.count(b'"server_shutting_down"') == 1
    assert b'"finish_reason":"stop"' not in resumed
    assert (attached.end().error["code"], attached.ends, attached.is_done) == (
        "server_shutting_down",
        1,
        True,
    )
    for own in (plain, named):
        assert (len(own.end().words), own.ends, own.is_done) == (250, 1, True)
        assert installation.receipt(own.generation_id)["outcome"] == "completed"


def test_a_follower_that_reads_on_behind_the_last_number_misses_no_event(installation: Installation) -> None:
    client = Client(installation.url, installation.keys["live"])
    body = {"model": "five-seconds", "input": "hello", "background": True}
    path = "/v1/responses/" + client.send("POST", "/v1/responses", json.dumps(body).encode()).json["id"]
    with installation.another_web() as another:
        there = Client(another.url, installation.keys["live"])
        with there.exchange("GET", f"{path}?stream=true", None, {}) as reading:
            begin = b"".join(reading.response.readline() for _ in range(12))
            another.send("web", signal.SIGTERM)
            shown = [json.loads(event.data) for event in Parser().feed(begin + reading.response.read())]
        assert another.end("web", signal.SIGCONT) == 0
    assert (shown[-2]["code"], shown[-1]["type"]) == ("server_shutting_down", "response.failed")
    last = shown[-1]["sequence_number"]
    rest = client.send("GET", f"{path}?stream=true&starting_after={last}").body
    shown[-2:] = [json.loads(event.data) for event in Parser().feed(rest)]
    assert [event["sequence_number"] for event in shown] == [*range(len(shown))]
    assert shown[-1]["type"] == "response.completed"


def test_a_client_that_comes_between_the_commit_and_the_end_gets_the_end(installation: Installation) -> None:
    """The row is final and the log is still empty: this is no expired stream and no lost one."""
    before = armed.strikes(installation, "worker", "settle.after_commit")
    armed.start(installation, "worker", "settle.after_commit=sleep:1.5")
    client, key = Client(installation.url, installation.keys["live"]), uuid4().hex
    body = json.dumps({"model": "never-begins", "messages": HELLO, "stream": True}).encode()
    accepted = client.send(
        "POST", "/openai/v1/chat/completions", body, prefer="respond-async", idempotency_key=key
    )
    with ThreadPoolExecutor() as clients:
        attached = clients.submit(
            client.send, "POST", "/openai/v1/chat/completions", body, idempotency_key=key
        )
        client.send("POST", f"/openai/v1/generations/{accepted.json['id']}/cancel", b"")
        assert installation.receipt(accepted.json["id"])["outcome"] == "client_cancelled"
        resumed = clients.submit(client.send, "GET", accepted.json["stream_url"])
        repeated = clients.submit(
            client.send, "POST", "/openai/v1/chat/completions", body, idempotency_key=key
        )
        answers = [attached.result(), resumed.result(), repeated.result()]
    assert armed.strikes(installation, "worker", "settle.after_commit") == before + 1
    assert [answer.status for answer in answers] == [200, 200, 200]
    for answer in answers:
        assert answer.body.count(b'"role":"assistant"') == answer.body.count(b'"finish_reason":"stop"') == 1
        assert answer.body.endswith(b"data: [DONE]\n\n")
    installation.end("worker", signal.SIGTERM)


BODIES: dict[str, dict[str, Any]] = {
    "/openai/v1/chat/completions": {"messages": HELLO, "stream": True},
    "/v1/responses": {"input": "hello", "background": True},
}


@pytest.mark.parametrize("path", BODIES)
def test_one_cancelled_without_output_ends_well_though_its_end_was_lost(
    installation: Installation, path: str
) -> None:
    """The worker dies between the commit and the publication."""
    strike = armed.Strike(installation, "settle.after_commit", "kill9")
    client = Client(installation.url, installation.keys["live"])
    body = json.dumps({"model": "never-begins", **BODIES[path]}).encode()
    accepted = client.send("POST", path, body, prefer="respond-async").json
    client.send("POST", f"/openai/v1/generations/{accepted['id']}/cancel", b"")
    strike.wait(lambda: False)
    installation.revive()
    assert installation.receipt(accepted["id"])["outcome"] == "client_cancelled"
    if "stream_url" in accepted:
        resumed = client.send("GET", accepted["stream_url"]).body
        assert resumed.count(b'"role":"assistant"') == resumed.count(b'"finish_reason":"stop"') == 1
        assert resumed.endswith(b"data: [DONE]\n\n")
    else:
        found = client.send("GET", f"{path}/{accepted['id']}")
        assert (found.status, found.json.get("status")) == (200, "cancelled"), found.body
