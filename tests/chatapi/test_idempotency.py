"""The Idempotency-Key: the same request sent again is the same generation, running or finished, and charged
once.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from tests.chatapi.conftest import MODELS
from tests.chatapi.http_client import HELLO, Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


@pytest.fixture
def key() -> str:
    return f"key-{uuid4()}"


def ask(
    client: Client, key: str, model: str = "five", *, prefer: str | None = None, **parameters: Any
) -> Answer:
    body = {"model": model, "messages": HELLO, **parameters}
    return client.send(
        "POST", "/openai/v1/chat/completions", json.dumps(body).encode(), idempotency_key=key, prefer=prefer
    )


@contextmanager
def behaving(installation: Installation, model: str, **script: Any) -> Iterator[None]:
    """Change the upstream's behaviour for that model inside the block; by default it just answers."""
    installation.script(model, **script)
    try:
        yield
    finally:
        installation.script(model, **MODELS[model])


def forget_stream(installation: Installation, generation_id: str) -> None:
    """Delete the stream, as happens some minutes after its end."""
    installation.receipt(generation_id)
    with installation.open_valkey() as redis:
        assert redis.delete(f"chatapi:log:{generation_id.rpartition('-')[2]}")


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_answer_is_replayed(
    client: Client, installation: Installation, key: str, stream: bool
) -> None:
    calls = len(installation.calls("five"))
    first, again = ask(client, key, stream=stream), ask(client, key, stream=stream)
    assert again.body == first.body
    assert again.headers["x-generation-id"] == first.headers["x-generation-id"]
    assert (first.headers["idempotent-replayed"], again.headers["idempotent-replayed"]) == (None, "true")
    assert len(installation.calls("five")) == calls + 1


def test_many_at_once_are_one_generation(client: Client, installation: Installation, key: str) -> None:
    calls = len(installation.calls("begins-late"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(client, key, "begins-late", stream=True), range(8)))
    assert len({answer.body for answer in answers}) == 1
    assert len(installation.calls("begins-late")) == calls + 1


def test_many_at_once_at_two_web_processes_are_one_generation(
    client: Client, installation: Installation, key: str
) -> None:
    calls = len(installation.calls("begins-late"))
    with installation.another_web() as another, ThreadPoolExecutor(12) as pool:
        clients = [client, Client(another.url, client.key)]
        answers = list(
            pool.map(lambda number: ask(clients[number % 2], key, "begins-late", stream=True), range(12))
        )
    assert [answer.status for answer in answers] == [200] * 12
    assert len({answer.body for answer in answers}) == 1
    assert len(installation.calls("begins-late")) == calls + 1


def test_a_client_that_left_finds_its_answer(client: Client, installation: Installation, key: str) -> None:
    body = json.dumps({"model": "begins-late", "messages": HELLO}).encode()
    headers = {"Idempotency-Key": key}
    with client.exchange("POST", "/openai/v1/chat/completions", body, headers):
        pass
    answer = ask(client, key, "begins-late")
    assert answer.status == 200
    assert installation.receipt(answer.headers["x-generation-id"])["outcome"] == "completed"


# ---- what came to nothing


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["status-429", "status-500", "status-503"])
def test_a_failure_before_the_first_token_is_tried_again(
    client: Client, installation: Installation, key: str, model: str, stream: bool
) -> None:
    failed = ask(client, key, model, stream=stream)
    with behaving(installation, model):
        again = ask(client, key, model, stream=stream)
    assert (failed.status >= 429, again.status) == (True, 200)
    assert again.headers["idempotent-replayed"] is None
    assert again.headers["x-generation-id"] != failed.headers["x-generation-id"]
    assert ask(client, key, model, stream=stream).body == again.body


def test_all_attached_clients_get_the_failure(client: Client, installation: Installation, key: str) -> None:
    with behaving(installation, "refuses-late", ttft_ms=2_500, status=500), ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: ask(client, key, "refuses-late"), range(3)))
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(502, "upstream_error")}
    assert len({answer.headers["x-generation-id"] for answer in answers}) == 1
    assert {answer.headers["x-should-retry"] for answer in answers} == {None}
    with behaving(installation, "refuses-late"):
        assert ask(client, key, "refuses-late").status == 200


def test_a_failure_that_is_charged_is_repeated_and_not_worth_a_retry(
    client: Client, installation: Installation, key: str
) -> None:
    first = ask(client, key, "breaks-by-error")
    assert installation.receipt(first.headers["x-generation-id"])["amount_nanodollars"] > 0
    again = ask(client, key, "breaks-by-error")
    assert (again.status, again.body) == (first.status, first.body)
    assert again.headers["x-generation-id"] == first.headers["x-generation-id"]
    assert (first.headers["x-should-retry"], again.headers["x-should-retry"]) == (None, "false")
    assert again.headers["retry-after"] is None


# ---- later, or too late


def test_what_is_asked_for_later_is_one_generation_too(
    client: Client, installation: Installation, key: str
) -> None:
    calls = len(installation.calls("begins-late"))
    first, again = [ask(client, key, "begins-late", prefer="respond-async", stream=True) for _ in range(2)]
    assert (first.status, again.status) == (202, 202)
    assert again.json == first.json
    assert (first.headers["idempotent-replayed"], again.headers["idempotent-replayed"]) == (None, "true")
    now = ask(client, key, "begins-late", stream=True)
    assert now.headers["x-generation-id"] == first.json["id"]
    assert now.body.endswith(b"data: [DONE]\n\n")
    assert len(installation.calls("begins-late")) == calls + 1


@pytest.mark.parametrize("prefer", [None, "respond-async"])
def test_a_stream_that_is_not_kept_any_more_is_named(
    client: Client, installation: Installation, key: str, prefer: str | None
) -> None:
    generation_id = ask(client, key).headers["x-generation-id"]
    forget_stream(installation, generation_id)
    answer = ask(client, key, prefer=prefer)
    assert (answer.status, answer.error["code"]) == (410, "stream_expired")
    assert answer.headers["x-generation-id"] == generation_id


# ---- whose it is, and its form


def test_the_same_key_with_another_request_is_422(client: Client, key: str) -> None:
    ask(client, key)
    refused = ask(client, key, temperature=0.5)
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")


def test_keys_belong_to_an_api_key(
    client: Client, installation: Installation, keys: dict[str, str], key: str
) -> None:
    mine, theirs = ask(client, key), ask(Client(installation.url, keys["stranger"]), key)
    assert theirs.status == 200
    assert theirs.headers["x-generation-id"] != mine.headers["x-generation-id"]


def test_what_was_refused_may_be_tried_again(
    installation: Installation, keys: dict[str, str], key: str
) -> None:
    poor = Client(installation.url, keys["poor key"])
    assert [ask(poor, key).status for _ in range(2)] == [402, 402]


@pytest.mark.parametrize("bad", ["", "a b", "x" * 256, "\u00e9"])
def test_a_key_has_a_form(client: Client, bad: str) -> None:
    refused = ask(client, bad)
    assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")


def test_a_wrong_request_is_not_tried_again(client: Client, installation: Installation, key: str) -> None:
    first = ask(client, key, "status-400")
    with behaving(installation, "status-400"):
        again = ask(client, key, "status-400")
    assert (again.status, again.body, again.headers["idempotent-replayed"]) == (400, first.body, "true")
