"""What must leave no trace: keys anywhere, and what was said once a stream is not kept any more. Each is a
word that occurs nowhere else.

Keys are sent in every way that there is, good and bad; everything is said in every way that ends. Then all of
the database, all of Valkey and every log are searched. That no page shows a key: tests/chatapi/test_admin.py.
"""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from tests import canaries
from tests.canaries import found, held_by, is_forgotten, logs
from tests.chatapi.http_client import Answer, Client
from tests.faults import armed
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("canaries"), pytest.mark.timeout(120)]

PROMPT, SAID = (f"canary{uuid4().hex}" for _ in range(2))
STREAM_TTL_MS = 3_000
CHUNK = {"choices": [{"index": 0, "delta": {"content": SAID}, "finish_reason": "stop"}]}
MODELS: dict[str, dict[str, Any]] = {
    "says-it": {"raw": f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n"},
    "quotes-it": {"status": 400, "error_message": f"I don't like {PROMPT}", "error_code": "bad_prompt"},
    "fails-with-it": {"status": 500, "error_message": f"Traceback: {PROMPT}"},
    "breaks-with-it": {"error_frame": 3, "error_message": f"{PROMPT} and {SAID}"},
    "stalls": {"tokens": 1_000, "stall_after": 3},
}
HASHES_END_USERS = "from accounts.models import Project; Project.objects.update(hashes_end_users=True)"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start an installation that logs as much as possible, forgets streams soon, hashes end users, and fails
    its first admission.
    """
    settings = {
        "CHATAPI_LOG_LEVEL": "DEBUG",
        "CHATAPI_STREAM_TTL_MS": str(STREAM_TTL_MS),
        "CHATAPI_TICKET_TTL_MS": "1000",
    }
    with Installation(
        tmp_path_factory.mktemp("canaries"), CHATAPI_FAILPOINTS="admit.before_commit=raise@1", **settings
    ) as installation:
        installation.start(MODELS)
        installation.shell(HASHES_END_USERS)
        assert ask(installation, "says-it").status == 500
        installation.keys["narrow"] = installation.create_key("--organization", "Tests", "--model", "says-it")
        yield installation
        installation.verify()


@pytest.fixture(scope="module")
def valkey(installation: Installation) -> Iterator[Redis]:
    with canaries.open_valkey(installation) as redis:
        yield redis


def secrets_of(key: str) -> list[bytes]:
    """Return the parts of a key that may not be stored anywhere."""
    *_, secret = key.split("_")
    return [key.encode(), secret.encode(), secret[:-6].encode()]


def ask(installation: Installation, model: str) -> Answer:
    return Client(installation.url, installation.keys["live"]).complete(
        model, messages=[{"role": "user", "content": PROMPT}]
    )


def say_everything(installation: Installation) -> None:
    """Send requests with the word, for every kind of end."""
    client, messages = (
        Client(installation.url, installation.keys["live"]),
        [{"role": "user", "content": PROMPT}],
    )
    for model in (*MODELS, "sandbox-echo", "sandbox", "no-such-model"):
        for stream in (True, False):
            client.complete(model, messages=messages, stream=stream, user=PROMPT, metadata={"a": PROMPT})
    body = json.dumps({"model": "sandbox", "messages": messages}).encode()
    client.send("POST", "/v1/chat/completions", body, idempotency_key=PROMPT, x_request_id=PROMPT)
    client.send("POST", "/v1/chat/completions", body, prefer="respond-async")
    client.send("POST", "/v1/chat/completions/tickets", body)
    client.send(
        "POST", "/v1/completions", json.dumps({"model": "sandbox", "prompt": PROMPT, "echo": True}).encode()
    )
    client.send(
        "POST",
        "/v1/completions",
        json.dumps({"model": "sandbox", "prompt": PROMPT + " hello" * 200_000}).encode(),
    )
    for stop in ("", " [sandbox error=server_error]"):
        body_of_inputs = {"model": "sandbox-embedding", "input": [PROMPT + stop], "user": PROMPT}
        client.send("POST", "/v1/embeddings", json.dumps(body_of_inputs).encode())
    say_in_other_protocols(client, messages)
    narrow = Client(installation.url, installation.keys["narrow"])
    narrow.send(
        "POST", "/v1/chat/completions", body.replace(b"sandbox", PROMPT.encode()), x_request_id=PROMPT
    )
    for wrong in (
        b'{"model": "sandbox", "messages": [{"role": "%b"}]}',
        b'{"%b"',
        b'{"model": "sandbox", "messages": "%b", "n": "x"}',
    ):
        client.send("POST", "/v1/chat/completions", wrong.replace(b"%b", PROMPT.encode()))
    with client.asking("stalls", messages=messages, stream=True) as exchange:
        next(exchange.texts())  # and leave


def say_in_other_protocols(client: Client, messages: list[dict[str, Any]]) -> None:
    """Send Responses, which are stored, continued and counted, and Messages."""
    for model in (*MODELS, "sandbox-echo"):
        for stream in (True, False):
            asked = {"model": model, "stream": stream}
            answer = post(client, "responses", asked | {"input": PROMPT, "instructions": PROMPT})
            kept = {"previous_response_id": answer.headers["x-generation-id"] or "", "input": PROMPT}
            post(client, "responses", asked | kept)
            post(client, "responses/input_tokens", {"model": model} | kept)
            post(client, "messages", asked | {"messages": messages, "system": PROMPT, "max_tokens": 9})
    background = {"model": "says-it", "input": PROMPT, "background": True, "metadata": {"a": PROMPT}}
    response_id = post(client, "responses", background).json["id"]
    client.send("GET", f"/v1/responses/{response_id}/input_items?after={PROMPT}")
    client.send("GET", f"/v1/responses/{PROMPT}")
    post(client, "messages/count_tokens", {"model": "says-it", "messages": messages})
    for wrong in (
        {"input": [{"type": PROMPT}]},
        {"input": [{"id": PROMPT}]},
        {"previous_response_id": PROMPT},
    ):
        post(client, "responses", {"model": "says-it"} | wrong)
    post(client, "messages", {"model": "says-it", "messages": [{"role": PROMPT}], "max_tokens": 1})


def post(client: Client, route: str, body: dict[str, Any]) -> Answer:
    return client.send("POST", f"/v1/{route}", json.dumps(body).encode())


def test_no_content_is_left_when_its_stream_is_not_kept_any_more(
    installation: Installation, valkey: Redis
) -> None:
    assert ask(installation, "says-it").json["choices"][0]["message"]["content"] == SAID
    assert SAID.encode() in held_by(valkey)
    say_everything(installation)
    assert any(PROMPT in str(call["body"]) for call in installation.calls("says-it"))
    wait_for(lambda: is_forgotten(valkey), "all streams to be forgotten", timeout_s=20)
    assert b"Traceback" in logs(installation)
    assert found([PROMPT.encode(), SAID.encode()], installation, valkey) == []


@pytest.mark.parametrize(
    ("model", "carrier", "failpoint"), [("says-it", "worker", "settle"), ("stalls", "reaper", "reaper")]
)
def test_no_content_is_left_after_the_death_of_its_settler(
    installation: Installation, valkey: Redis, model: str, carrier: str, failpoint: str
) -> None:
    """The process dies between the commit and the end; no other process returns to a settled generation."""
    installation.revive()
    installation.end("reaper", signal.SIGTERM)
    armed.start(installation, carrier, f"{failpoint}.after_commit=kill9")
    with ThreadPoolExecutor() as clients:
        answer = clients.submit(ask, installation, model)
        if carrier == "reaper":
            wait_for(lambda: b":log:" in held_by(valkey), "something to be said")
            installation.end("worker")
        installation.processes[carrier].wait(20)
        assert PROMPT.encode() in held_by(valkey)
        installation.revive()
        assert answer.result().status in {200, 502}
    wait_for(lambda: is_forgotten(valkey), "all streams to be forgotten", timeout_s=20)
    assert found([PROMPT.encode(), SAID.encode()], installation, valkey) == []


STORING = """
from accounts.models import Project
Project.objects.update(stores_responses_days={days})
"""


def test_stored_responses_are_only_encrypted_and_gone_in_time(
    installation: Installation, valkey: Redis
) -> None:
    installation.revive()
    installation.shell(STORING.format(days=1))
    client = Client(installation.url, installation.keys["live"])
    body = json.dumps({"model": "says-it", "input": PROMPT, "instructions": PROMPT}).encode()
    wait_for(lambda: "24h0m0s" in client.send("GET", "/v1/responses/resp_0").error["message"], "the setting")
    answer = client.send("POST", "/v1/responses", body)
    assert (answer.status, answer.json["store"]) == (200, True)
    response_id = answer.json["id"]
    wait_for(lambda: not valkey.keys("*unstored"), "the responses to be stored")
    wait_for(lambda: not valkey.keys("*state:*"), "all streams to be forgotten", timeout_s=20)
    assert SAID.encode() in client.send("GET", f"/v1/responses/{response_id}").body
    words = [PROMPT.encode(), SAID.encode(), PROMPT.encode().hex().encode(), SAID.encode().hex().encode()]
    assert found(words, installation, valkey) == []
    assert is_any_stored(installation)
    installation.shell(STORING.format(days=0))
    installation.end("reaper", signal.SIGTERM)
    installation.start_reaper()
    wait_for(lambda: not is_any_stored(installation), "the responses to be deleted", timeout_s=40)
    assert client.send("GET", f"/v1/responses/{response_id}").status == 404


def is_any_stored(installation: Installation) -> bool:
    code = "from chatapi.models import StoredResponse; print(StoredResponse.objects.count())"
    return installation.shell(code) != "0"


def wrong_uses(key: str) -> list[tuple[str, str, bytes, dict[str, str | None]]]:
    """Return requests with the key in right and in wrong places: method, path, body, headers."""
    chat = json.dumps({"model": "sandbox", "messages": [{"role": "user", "content": "hello"}]}).encode()
    message = chat[:-1] + b', "max_tokens": 9}'
    named = json.dumps({"model": key, "messages": [], "api_key": key, key: 1}).encode()
    return [
        ("POST", "/v1/chat/completions", chat, {}),
        ("POST", "/v1/chat/completions", named, {}),
        ("POST", "/v1/chat/completions", chat, {"Authorization": f"Bearer {key[:-1]}!"}),
        ("POST", "/v1/chat/completions", chat, {"Authorization": f"Bearer {key}x"}),
        ("POST", "/v1/chat/completions", chat, {"Authorization": f"Basic {key}"}),
        (
            "POST",
            "/v1/chat/completions",
            chat,
            {"Authorization": None, "X-Api-Key": key, "Cookie": f"sessionid={key}"},
        ),
        ("POST", "/v1/messages", message, {"Authorization": None, "X-Api-Key": key, "Anthropic-Beta": key}),
        ("POST", "/v1/messages", message, {"X-Api-Key": key + "x", "Anthropic-Version": key}),
        ("POST", "/v1/responses", json.dumps({"model": "sandbox", "input": [{"id": key}]}).encode(), {}),
        ("POST", "/v1/responses", json.dumps({"previous_response_id": key, key: 1}).encode(), {}),
        ("POST", "/v1/embeddings", json.dumps({"model": key, "input": "hello"}).encode(), {}),
        ("GET", f"/v1/responses/{key}?after={key}", b"", {}),
        ("GET", f"/messages/{key}", b"", {"Anthropic-Version": key}),
        (
            "POST",
            "/v1/chat/completions",
            chat,
            {"Idempotency-Key": key, "X-Request-Id": key, "OpenAI-Organization": key},
        ),
        ("POST", "/v1/chat/completions", chat, {"X-ChatAPI-Dialect": key, "Content-Type": key}),
        ("GET", f"/v1/chat/completions?ticket={key}", b"", {}),
        ("GET", f"/v1/models?api_key={key}", b"", {"Authorization": None}),
        ("GET", f"/v1/models/{key}", b"", {}),
        ("GET", f"/v1/generations/{key}", b"", {}),
        ("GET", f"/v1/generations/{key}/stream", b"", {"Last-Event-ID": key}),
        ("GET", f"/{key}", b"", {}),
        ("GET", f"/admin/login/?next=/{key}", b"", {}),
        ("GET", "/v1/models", b"", {"Host": key}),
        (key, "/v1/models", b"", {}),
    ]


def test_a_key_is_nowhere_however_it_is_used(installation: Installation, valkey: Redis) -> None:
    for key in installation.keys.values():
        client = Client(installation.url, key)
        for method, path, body, headers in wrong_uses(key):
            with suppress(HTTPException), client.exchange(method, path, body, headers) as exchange:
                exchange.read()
    parts = [part for key in installation.keys.values() for part in secrets_of(key)]
    assert found(parts, installation, valkey) == []


def test_the_search_finds_what_is_there(installation: Installation, valkey: Redis) -> None:
    """Without this check, a search that finds nothing would prove nothing."""
    public = installation.keys["test"].split("_")[2]
    valkey.set("canary:search", "x" * 100 + public, px=10_000)
    (installation.folder / "canary.log").write_text(public)
    assert found([public.encode()], installation, valkey) == [
        f"{public} in {place}" for place in ("database", "Valkey", "logs")
    ]
