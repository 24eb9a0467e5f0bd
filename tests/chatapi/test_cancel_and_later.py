"""Cancelling, and asking for an answer later: what needs no connection that stays."""

import pytest

from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


def cancel(client: Client, generation_id: str) -> Answer:
    return client.send("POST", f"/v1/generations/{generation_id}/cancel", b"")


def ask_later(client: Client, model: str) -> Answer:
    messages = '[{"role": "user", "content": "hello"}]'
    body = f'{{"model": "{model}", "messages": {messages}, "stream": true}}'
    return client.send("POST", "/v1/chat/completions", body.encode(), prefer="wait=5, Respond-Async")


def test_a_cancelled_stream_ends_normally_with_its_usage(client: Client, installation: Installation) -> None:
    with client.asking("steady", stream=True) as exchange:
        texts = exchange.texts()
        next(texts)
        generation_id = exchange.response.headers["x-generation-id"]
        assert cancel(client, generation_id).status == 202
        *_, finish, usage, done = list(exchange.data())
    assert '"finish_reason":"stop"' in finish
    assert done == "[DONE]"
    receipt = installation.receipt(generation_id)
    assert (receipt["outcome"], receipt["finish_reason"]) == ("client_cancelled", "stop")
    assert f'"completion_tokens":{receipt["usage"]["completion_tokens"]}' in usage
    assert receipt["usage"]["completion_tokens"] > 0


def test_what_is_cancelled_before_its_first_token_begins_and_ends_all_the_same(client: Client) -> None:
    """openai-node raises an error for a choice that ends without a role."""
    accepted = ask_later(client, "begins-late")
    assert cancel(client, accepted.json["id"]).status == 202
    stream = client.send("GET", accepted.json["stream_url"]).body.decode()
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    beginning, end, usage, done = lines
    assert '"delta":{"role":"assistant"}' in beginning
    assert '"delta":{},"finish_reason":"stop"' in end
    assert '"completion_tokens":0' in usage
    assert done == "[DONE]"


def test_a_cancellation_stops_the_upstream(client: Client, installation: Installation) -> None:
    with client.asking("steady", stream=True) as exchange:
        next(exchange.texts())
        cancel(client, exchange.response.headers["x-generation-id"])
        wait_for(lambda: installation.calls("steady")[-1]["closed_at"] is not None, "the upstream's end", 2)


def test_what_has_ended_is_not_cancelled(client: Client) -> None:
    generation_id = client.complete("five").headers["x-generation-id"]
    wait_for(lambda: cancel(client, generation_id).status == 200, "its end")
    assert cancel(client, generation_id).json["state"] == "settled"


def test_nobody_elses_generation_can_be_cancelled(
    installation: Installation, client: Client, keys: dict[str, str]
) -> None:
    with client.asking("steady", stream=True) as exchange:
        next(exchange.texts())
        answer = cancel(
            Client(installation.url, keys["stranger"]), exchange.response.headers["x-generation-id"]
        )
        assert (answer.status, answer.error["code"]) == (404, "generation_not_found")
        next(exchange.texts())


def test_an_answer_can_be_fetched_later(client: Client, installation: Installation) -> None:
    accepted = ask_later(client, "five")
    assert accepted.status == 202
    assert accepted.headers["preference-applied"] == "respond-async"
    assert accepted.headers["x-generation-id"] == accepted.json["id"]
    assert accepted.headers["location"] == accepted.json["stream_url"]
    stream = client.send("GET", accepted.json["stream_url"])
    assert stream.body.endswith(b"data: [DONE]\n\n")
    receipt = client.send("GET", accepted.json["receipt_url"]).json
    assert (receipt["id"], receipt["outcome"]) == (accepted.json["id"], "completed")


def test_what_nobody_waits_for_runs_to_its_end(client: Client, installation: Installation) -> None:
    accepted = ask_later(client, "begins-late")
    assert installation.receipt(accepted.json["id"])["outcome"] == "completed"
