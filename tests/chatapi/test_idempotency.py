"""The Idempotency-Key: the same request sent again is the same generation, running or finished, and charged once."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


@pytest.fixture
def key() -> str:
    return f"key-{uuid4()}"


def ask(client: Client, key: str, model: str = "five", **parameters: Any) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **parameters}
    return client.send("POST", "/openai/v1/chat/completions", json.dumps(body).encode(), idempotency_key=key)


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_answer_is_replayed(client: Client, installation: Installation, key: str, stream: bool) -> None:
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


def test_a_client_that_left_finds_its_answer(client: Client, installation: Installation, key: str) -> None:
    body = json.dumps({"model": "begins-late", "messages": [{"role": "user", "content": "hello"}]}).encode()
    headers = {"Idempotency-Key": key}
    with client.exchange("POST", "/openai/v1/chat/completions", body, headers):
        pass
    answer = ask(client, key, "begins-late")
    assert answer.status == 200
    assert installation.receipt(answer.headers["x-generation-id"])["outcome"] == "completed"


def test_the_same_key_with_another_request_is_422(client: Client, key: str) -> None:
    ask(client, key)
    refused = ask(client, key, temperature=0.5)
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")


def test_keys_belong_to_an_api_key(client: Client, installation: Installation, keys: dict[str, str], key: str) -> None:
    mine, theirs = ask(client, key), ask(Client(installation.url, keys["stranger"]), key)
    assert theirs.status == 200
    assert theirs.headers["x-generation-id"] != mine.headers["x-generation-id"]


def test_what_was_refused_may_be_tried_again(installation: Installation, keys: dict[str, str], key: str) -> None:
    poor = Client(installation.url, keys["poor key"])
    assert [ask(poor, key).status for _ in range(2)] == [402, 402]


@pytest.mark.parametrize("bad", ["", "a b", "x" * 256, "\u00e9"])
def test_a_key_has_a_form(client: Client, bad: str) -> None:
    refused = ask(client, bad)
    assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")
