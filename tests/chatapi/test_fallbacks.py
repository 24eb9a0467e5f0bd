"""A model that can't answer is replaced by another one: the client's, or its project's; the one that answered
is named, charged and on the receipt.
"""

import json
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from chatapi.wire.dialects import DIALECTS
from tests.chatapi.http_client import HELLO, Client, clients_of
from tests.chatapi.open_generations import OpenGenerations
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CATALOG = """
[[models]]
id = "{name}"
aliases = {aliases}
context_window = 8192
max_output_tokens = {most}
price = {{ input_per_mtok = "{price}", output_per_mtok = "{price}" }}
deployments = [{{ name = "only", engine = "openai_compatible", base_url = "{url}/v1", \
upstream_model = "{upstream}", on_disconnect = "cancel" }}]
"""
SANDBOX = """
[[models]]
id = "sandbox-error-before"
context_window = 8192
max_output_tokens = 1024
price = { input_per_mtok = "1", output_per_mtok = "1" }
deployments = [{ engine = "sandbox" }]
"""
MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
from accounts.models import RateLimit
from usage.models import BudgetLimit
project = get_or_create_project("Fallbacks", "default")
project.model_fallbacks = {"down": ["unknown", "sandbox-embedding", "fallback-b", "fallback-c"]}
project.model_aliases = {"my-b": "fallback-b"}
project.save()
def key(name, **rights):
    return create_key(project, name=name, **rights)
poor, poor_secret = key("poor")
BudgetLimit.objects.create(scope="key", scope_id=poor.pk, period="ever", limit_nanodollars=300_000)
limited, limited_secret = key("limited")
RateLimit.objects.create(api_key=limited, model="fallback-b", tokens_per_day=2_000)
keys = {"free": key("free"), "narrow": key("narrow", allowed_models=["down", "fallback-c"]),
        "test": key("test", is_test=True)}
secrets = {name: secret for name, (_, secret) in keys.items()}
print(json.dumps(secrets | {"poor": poor_secret, "limited": limited_secret}))
"""
DOWN = [f"down-{number}" for number in range(12)]
"""Each with a deployment of its own, which does not cool down yet."""


@pytest.fixture(scope="module")
def clients(installation: Installation) -> dict[str, Client]:
    """Serve `down`, which always fails, and three models that may answer instead."""
    installation.script("down-upstream", status=502)
    installation.script("refusing-upstream", status=400, error_message="no such tools here")
    rows = [
        *((name, "[]", 1024, "1", "down-upstream") for name in ["down", *DOWN]),
        ("refusing", "[]", 1024, "1", "refusing-upstream"),
        ("fallback-b", '["short-b"]', 1024, "3", "five"),
        ("fallback-c", "[]", 3, "5", "five"),
        ("dear", "[]", 1024, "1000", "five"),
    ]
    url = installation.upstream_url
    models = [
        CATALOG.format(name=name, aliases=aliases, most=most, price=price, upstream=upstream, url=url)
        for name, aliases, most, price, upstream in rows
    ]
    installation.load_catalog("".join(models) + SANDBOX)
    clients = clients_of(installation, MAKE)
    wait_for(lambda: clients["free"].complete("dear").status == 200, "the catalog")
    return clients


def send(client: Client, path: str = "chat/completions", **members: Any) -> Any:
    prompts: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": HELLO},
        "completions": {"prompt": "hello"},
        "responses": {"input": "hello"},
        "messages": {"messages": HELLO, "max_tokens": 9},
        "embeddings": {"input": "hello"},
    }
    url = f"/{path}" if "v1/" in path else f"/v1/{path}"
    prompt = prompts[path.rpartition("v1/")[2]]
    return client.send("POST", url, json.dumps({"model": "down"} | prompt | members).encode())


def receipt(client: Client, answer: Any) -> Any:
    found: Any = {}

    def is_settled() -> bool:
        found.update(client.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json)
        return bool(found["state"] == "settled")

    wait_for(is_settled, "the settlement")
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_the_next_model_answers_in_every_protocol(
    clients: dict[str, Client], path: str, stream: bool
) -> None:
    client, model = clients["free"], DOWN.pop()
    answer = send(client, path, model=model, models=["my-b", "dear"], stream=stream)
    assert answer.status == 200, answer.body
    text = answer.body.decode()
    assert '"model":"my-b"' in text, "as it was named"
    assert f'"model":"{model}"' not in text
    shown = receipt(client, answer)
    assert (shown["model"], shown["requested_model"], shown["is_fallback"]) == ("fallback-b", model, True)
    assert shown["usage"]["completion_tokens"] == 5
    assert shown["amount_nanodollars"] == 3_000 * shown["usage"]["total_tokens"]
    assert len(shown["attempts"]) > 1
    for attempt in shown["attempts"][:-1]:
        assert (attempt["model"], attempt["error"]) == (model, "upstream_error")
    assert (shown["attempts"][-1]["model"], shown["attempts"][-1]["error"]) == ("fallback-b", None)
    again = client.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}/stream")
    assert '"model":"my-b"' in again.body.decode()


def test_a_stored_response_names_it_too(clients: dict[str, Client]) -> None:
    client = clients["free"]
    answer = send(client, "responses", model=DOWN.pop(), models=["my-b"])
    assert client.send("GET", f"/v1/responses/{answer.json['id']}").json["model"] == "my-b"
    follow_up = {"previous_response_id": answer.json["id"], "input": "go on"}
    assert send(client, "responses", model="fallback-c", **follow_up).json["model"] == "fallback-c"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_names_the_model_that_answered(clients: dict[str, Client], dialect: str) -> None:
    answer = send(clients["free"], f"{dialect}/v1/chat/completions", models=["fallback-b"], stream=True)
    text = answer.body.decode()
    assert '"model":"fallback-b"' in text
    assert '"model":"down"' not in text


def test_the_usage_of_a_stream_is_what_is_charged(clients: dict[str, Client]) -> None:
    options = {"include_usage": True}
    answer = send(clients["free"], models=["fallback-b"], stream=True, stream_options=options)
    chunks = [
        json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")
    ]
    assert {chunk["model"] for chunk in chunks} == {"fallback-b"}
    shown = receipt(clients["free"], answer)
    assert chunks[-1]["usage"]["total_tokens"] == shown["usage"]["total_tokens"]


def test_the_projects_list_is_used_and_what_does_not_fit_is_left_out(clients: dict[str, Client]) -> None:
    answer = send(clients["free"])
    assert (answer.status, answer.json["model"]) == (200, "fallback-b")
    # This key may not use the first one. The cap is the answering model's own.
    answer = send(clients["narrow"])
    assert (answer.status, answer.json["model"]) == (200, "fallback-c")
    assert answer.json["usage"]["completion_tokens"] == 3
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_a_requests_own_list_comes_before_the_projects(clients: dict[str, Client]) -> None:
    assert send(clients["free"], models=["fallback-c"]).json["model"] == "fallback-c"
    alone = send(clients["free"], models=[])
    assert (alone.status, alone.error["code"]) == (502, "upstream_error")
    shown = receipt(clients["free"], alone)
    assert (shown["model"], shown["requested_model"], shown["amount_nanodollars"]) == ("down", None, 0)


@pytest.mark.parametrize(
    ("who", "models", "status", "code", "param"),
    [
        ("free", ["fallback-b", "no-such"], 404, "model_not_found", "models[1]"),
        ("narrow", ["fallback-b"], 403, "model_not_allowed", "models[0]"),
        ("free", ["sandbox-embedding"], 400, "model_not_supported", "models[0]"),
        ("free", ["fallback-b"] * 9, 400, "invalid_value", "models"),
        ("free", "fallback-b", 400, "invalid_type", "models"),
    ],
)
def test_a_bad_candidate_is_refused_by_its_place(
    clients: dict[str, Client], who: str, models: Any, status: int, code: str, param: str
) -> None:
    refused = send(clients[who], models=models)
    assert (refused.status, refused.error["code"], refused.error["param"]) == (status, code, param)


def test_embeddings_have_no_fallbacks(clients: dict[str, Client]) -> None:
    refused = send(clients["free"], "embeddings", model="sandbox-embedding", models=["fallback-b"])
    assert (refused.status, refused.error["param"]) == (400, "models")


def test_the_budget_must_cover_the_dearest_candidate(clients: dict[str, Client]) -> None:
    refused = send(clients["poor"], models=["fallback-b", "dear"], max_tokens=5)
    assert (refused.status, refused.error["code"]) == (402, "insufficient_quota")
    answer = send(clients["poor"], models=["fallback-b"], max_tokens=5)
    assert (answer.status, answer.json["model"]) == (200, "fallback-b")


def test_an_idempotency_key_gets_the_same_answer_of_the_same_model(clients: dict[str, Client]) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    body = json.dumps({"model": "down", "messages": HELLO, "models": ["fallback-b"]}).encode()
    send_it = partial(clients["free"].send, "POST", "/v1/chat/completions", body, **key)
    first, second = send_it(), send_it()
    assert (first.status, second.status) == (200, 200)
    assert second.headers["idempotent-replayed"] == "true"
    assert first.body == second.body
    assert second.json["model"] == "fallback-b"


def test_a_refusal_by_the_requested_model_is_the_clients(
    installation: Installation, clients: dict[str, Client]
) -> None:
    calls = len(installation.calls("five"))
    refused = send(clients["free"], model="refusing", models=["fallback-b"])
    assert (refused.status, refused.error["message"]) == (400, "no such tools here")
    assert len(installation.calls("five")) == calls


def test_a_refusal_by_another_model_is_not(clients: dict[str, Client]) -> None:
    answer = send(clients["free"], models=["refusing", "fallback-b"])
    assert (answer.status, answer.json["model"]) == (200, "fallback-b")
    failed = send(clients["free"], model=(model := DOWN.pop()), models=["refusing"])
    assert (failed.status, failed.error["code"]) == (502, "upstream_error"), "that of the requested model"
    shown = receipt(clients["free"], failed)
    assert (shown["model"], shown["requested_model"]) == ("refusing", model)
    assert (shown["outcome"], shown["amount_nanodollars"], shown["is_waived"]) == ("failed", 0, True)


def test_a_client_that_leaves_ends_the_attempt_at_the_next_model(
    installation: Installation, clients: dict[str, Client], open_generations: OpenGenerations
) -> None:
    calls, client = len(installation.calls("never-begins")), clients["free"]
    with client.asking(DOWN.pop(), models=["never-begins", "fallback-b"], stream=True) as exchange:
        wait_for(lambda: len(installation.calls("never-begins")) > calls, "the other model to be asked")
        (generation_id,) = open_generations.new()
        exchange.leave()

    def shown() -> Any:
        return client.send("GET", f"/v1/generations/{generation_id}").json

    wait_for(lambda: shown()["state"] == "settled", "its end")
    assert (shown()["model"], shown()["outcome"]) == ("never-begins", "client_cancelled")
    assert shown()["amount_nanodollars"] == 0


def test_the_requested_model_answers_if_it_can(clients: dict[str, Client]) -> None:
    answer = send(clients["free"], model="fallback-c", models=["dear"])
    shown = receipt(clients["free"], answer)
    assert (shown["model"], shown["requested_model"], shown["is_fallback"]) == ("fallback-c", None, False)
    assert shown["amount_nanodollars"] == 5_000 * shown["usage"]["total_tokens"]


def test_tokens_are_taken_from_the_limits_of_the_model_that_answered(clients: dict[str, Client]) -> None:
    client = clients["limited"]
    for _ in range(8):  # with 400 tokens each, if they were not given back
        answer = send(client, model="fallback-c", models=["fallback-b"], max_tokens=400)
        assert (answer.status, answer.json["model"]) == (200, "fallback-c")


def test_a_test_key_can_try_it_in_the_sandbox(clients: dict[str, Client]) -> None:
    alone = send(clients["test"], model="sandbox-error-before")
    assert alone.status == 500
    answer = send(clients["test"], model="sandbox-error-before", models=["fallback-b"])
    assert (answer.status, answer.json["model"]) == (200, "fallback-b")
    assert receipt(clients["test"], answer)["amount_nanodollars"] == 0
