"""A key's rights on the routes that read: what it lacks is a 403 that says so, and other models do not exist
for it.
"""

from typing import Any

import pytest

from accounts.models import APIKey, KeyScope
from chatapi.models import Deployment, ServedModel
from chatapi.wire.dialects import DIALECTS
from tests.cast import Person, run
from usage.books import prices
from usage.pricing import FREE

RECEIPT = "/v1/generations/chatcmpl-0192f0c57e7a7cc398c4dc0c0c07398f"
READING = {
    "/v1/models": KeyScope.MODELS,
    "/v1/models/small": KeyScope.MODELS,
    RECEIPT: KeyScope.GENERATIONS,
    "/v1/organization/usage/completions?start_time=1": KeyScope.USAGE,
    "/v1/organization/costs?start_time=1": KeyScope.USAGE,
}


def give(person: Person, **rights: Any) -> None:
    APIKey.objects.filter(pk=person.api_key.pk).update(**rights)


@pytest.mark.parametrize("path", READING)
@pytest.mark.parametrize("prefix", ["", "/llama"])
def test_a_reading_route_wants_its_scope(alice: Person, small: ServedModel, path: str, prefix: str) -> None:
    give(alice, is_admin=True, scopes=[scope for scope in KeyScope.values if scope != READING[path]])
    response = alice.get(prefix + path)
    assert response.status_code == 403
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        None,
        "permission_denied",
    )
    assert error["message"] == f"This API key may not do this: it lacks the scope '{READING[path]}'."
    give(alice, scopes=[READING[path]])
    assert alice.get(prefix + path).status_code == (404 if path == RECEIPT else 200)


def test_the_scope_alone_makes_no_admin_key(alice: Person) -> None:
    give(alice, scopes=["usage"])
    assert alice.get("/v1/organization/costs?start_time=1").status_code == 403


@pytest.mark.parametrize("scope", KeyScope.values)
def test_every_key_may_ask_what_it_may_do(alice: Person, scope: str) -> None:
    give(alice, scopes=[scope], allowed_models=["small"])
    body = alice.get("/v1/key").json()
    assert (body["scopes"], body["models"]) == ([scope], ["small"])


@pytest.mark.parametrize("prefix", ["", *(f"/{dialect}" for dialect in DIALECTS)])
def test_only_models_that_the_key_may_use_are_listed_and_found(
    alice: Person, small: ServedModel, prefix: str
) -> None:
    large = ServedModel.objects.create(id="large")
    Deployment.objects.create(model=large, name="sandbox", engine="sandbox")
    prices.change(large.id, FREE)
    give(alice, allowed_models=["large", "retired"])
    assert [model["id"] for model in alice.get(f"{prefix}/v1/models").json()["data"]] == ["large"]
    assert alice.get(f"{prefix}/v1/models/large").status_code == 200
    for name in ("small", "retired"):
        response = alice.get(f"{prefix}/v1/models/{name}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_a_model_that_was_taken_away_does_not_hide_its_receipts(alice: Person, small: ServedModel) -> None:
    generation = run(alice)
    give(alice, allowed_models=["large"])
    assert alice.get(f"/v1/generations/{generation}").json()["model"] == "small"
