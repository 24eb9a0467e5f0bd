"""Resuming a stream from its beginning or behind any event, while it runs and afterwards, byte for byte."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from chatapi.wire.protocols.chat import CHAT
from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def elsewhere(installation: Installation) -> Iterator[Client]:
    """Yield a client with the same key of a second web process, which has served none of the streams."""
    with installation.another_web() as another:
        yield Client(another.url, installation.keys["live"])


def resume(client: Client, generation_id: str, after: str | None = None, **headers: str) -> Answer:
    query = "" if after is None else f"?starting_after={after}"
    return client.send("GET", f"/v1/generations/{generation_id}/stream{query}", None, **headers)


def without_ids(body: bytes) -> bytes:
    return b"".join(line for line in body.splitlines(keepends=True) if not line.startswith(b"id: "))


def ids(body: bytes) -> list[str]:
    return [line.removeprefix("id: ") for line in body.decode().splitlines() if line.startswith("id: ")]


def completed(client: Client, dialect: str, **parameters: Any) -> tuple[str, bytes]:
    """Return a finished stream: its id and its bytes."""
    answer = client.complete("five", dialect=dialect, stream=True, **parameters)
    return answer.headers["x-generation-id"], answer.body


@pytest.mark.parametrize("dialect", CHAT.dialects)
@pytest.mark.parametrize(
    "parameters", [{}, {"n": 2, "stream_options": {"include_usage": True}}], ids=["one", "two choices, usage"]
)
def test_a_replay_is_what_the_client_got(client: Client, dialect: str, parameters: dict[str, Any]) -> None:
    generation_id, body = completed(client, dialect, **parameters)
    again = resume(client, generation_id)
    assert again.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert without_ids(again.body) == body


def test_an_answer_in_one_piece_is_published_in_one_piece(client: Client) -> None:
    answer = client.complete("five")
    *events, done = resume(client, answer.headers["x-generation-id"]).body.decode().split("data: ")[1:]
    chunks = [json.loads(event.partition("\n")[0]) for event in events]
    texts = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    assert list(filter(None, texts)) == [answer.json["choices"][0]["message"]["content"]]
    assert done.startswith("[DONE]")


@pytest.mark.parametrize("dialect", CHAT.dialects)
def test_the_remainder_behind_any_event_is_byte_identical(client: Client, dialect: str) -> None:
    generation_id, _ = completed(client, dialect)
    whole = resume(client, generation_id).body
    for event_id in ids(whole):
        _, _, rest = whole.partition(f"id: {event_id}\n".encode())
        _, _, behind = rest.partition(b"\n\n")
        assert resume(client, generation_id, event_id).body == behind
        assert resume(client, generation_id, last_event_id=event_id).body == behind


def test_a_last_event_id_in_the_header_wins_over_the_position_in_the_url(client: Client) -> None:
    """An EventSource does this by itself: it repeats the URL and sends the last id in a header."""
    generation_id, _ = completed(client, "openai")
    assert (
        resume(client, generation_id, "1-1", last_event_id="5-1").body
        == resume(client, generation_id, "5-1").body
    )


def test_a_running_stream_can_be_joined(client: Client, installation: Installation) -> None:
    with client.asking("begins-late", stream=True) as first:
        joined = resume(client, first.response.headers["x-generation-id"])
        assert without_ids(joined.body) == first.read().body


@pytest.mark.parametrize("after", ["x", "-1", "1-", "1-2-3", "9" * 30, "%D9%A1"])
def test_a_position_that_is_none_is_refused(client: Client, after: str) -> None:
    generation_id, _ = completed(client, "openai")
    answer = resume(client, generation_id, after)
    assert (answer.status, answer.error["param"]) == (400, "starting_after")


def test_a_position_may_be_behind_thousands_of_events_of_one_delta(client: Client) -> None:
    """A response has one for each page that its text refers to."""
    generation_id, _ = completed(client, "openai")
    answer = resume(client, generation_id, "2-10000")
    assert (answer.status, answer.body) == (200, resume(client, generation_id, "2").body)


@pytest.mark.parametrize("dialect", CHAT.dialects)
def test_a_position_that_the_stream_never_reached_is_refused(client: Client, dialect: str) -> None:
    generation_id, _ = completed(client, dialect)
    last, _, _ = ids(resume(client, generation_id).body)[-1].partition("-")
    beyond = f"{int(last) + 1}-1"
    by_query, by_header = (
        resume(client, generation_id, "999999999"),
        resume(client, generation_id, last_event_id=beyond),
    )
    assert (by_query.status, by_query.error["param"]) == (400, "starting_after")
    assert (by_header.status, by_header.error["param"]) == (400, "Last-Event-ID")
    assert (resume(client, generation_id, last).status, resume(client, generation_id, last).body) == (
        200,
        b"",
    )


def test_a_position_that_a_running_stream_has_not_reached_is_refused(client: Client) -> None:
    with client.asking("three-then-silence", stream=True) as first:
        next(first.texts())
        refused = resume(client, first.response.headers["x-generation-id"], last_event_id="500-3")
        assert (refused.status, refused.error["param"]) == (400, "Last-Event-ID")


def test_a_stream_that_is_not_kept_any_more_is_gone(client: Client, installation: Installation) -> None:
    key = f"key-{uuid4()}"
    generation_id = client.complete("five", dialect="openai", stream=True, idempotency_key=key).headers[
        "x-generation-id"
    ]
    forget(installation, generation_id)
    again = client.complete("five", dialect="openai", stream=True, idempotency_key=key)
    for gone in (resume(client, generation_id), resume(client, generation_id, "1-1"), again):
        assert (gone.status, gone.error["code"]) == (410, "stream_expired")


def forget(installation: Installation, generation_id: str) -> None:
    """Delete the log, as happens when its time is over."""
    with installation.open_valkey() as redis:
        (log,) = redis.scan_iter(f"*log:{generation_id.rpartition('-')[2]}")
        redis.delete(log)


def test_a_stream_that_broke_ends_as_it_did(client: Client) -> None:
    answer = client.complete("breaks-by-error", dialect="openai", stream=True)
    assert without_ids(resume(client, answer.headers["x-generation-id"]).body) == answer.body


def test_nobody_elses_stream_can_be_resumed(
    client: Client, installation: Installation, keys: dict[str, str]
) -> None:
    generation_id, _ = completed(client, "openai")
    stranger = Client(installation.url, keys["stranger"])
    assert (
        resume(stranger, generation_id).body
        == resume(stranger, "chatcmpl-00000000000070008000000000000000").body
    )
    assert resume(Client(installation.url, "x"), generation_id).status == 401


def test_another_dialect_may_be_asked_for(client: Client) -> None:
    generation_id, _ = completed(client, "openai")
    last = resume(client, generation_id, x_chatapi_dialect="bitseek").body.split(b"\n\n")[-2]
    assert json.loads(last.partition(b"data: ")[2])["choices"][0]["finish_reason"] == "stop"


# ---- at another web process than the one that serves the stream


def test_another_web_process_resumes_a_running_stream(client: Client, elsewhere: Client) -> None:
    with client.asking("begins-late", stream=True) as first:
        generation_id = first.response.headers["x-generation-id"]
        joined = resume(elsewhere, generation_id).body
        assert without_ids(joined) == first.read().body
    _, _, behind = joined.partition(f"id: {ids(joined)[2]}\n".encode())[2].partition(b"\n\n")
    assert resume(elsewhere, generation_id, ids(joined)[2]).body == behind


def test_another_web_process_cancels_a_running_stream(
    client: Client, elsewhere: Client, installation: Installation
) -> None:
    with client.asking("steady", stream=True) as exchange:
        next(exchange.texts())
        generation_id = exchange.response.headers["x-generation-id"]
        assert elsewhere.send("POST", f"/v1/generations/{generation_id}/cancel", b"").status == 202
        *_, finish, usage, done = list(exchange.data())
    assert ('"finish_reason":"stop"' in finish, done) == (True, "[DONE]")
    receipt = installation.receipt(generation_id)
    assert receipt["outcome"] == "client_cancelled"
    assert f'"completion_tokens":{receipt["usage"]["completion_tokens"]}' in usage
    assert resume(elsewhere, generation_id).body.endswith(b"data: [DONE]\n\n")
