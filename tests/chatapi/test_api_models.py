"""The routes that list and show models."""

from datetime import date

import pytest
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts import keys
from accounts.authentication import Caller
from chatapi.api import views
from chatapi.catalog import CatalogModel
from chatapi.models import Deployment, ServedModel
from tests.cast import Person
from tests.chatapi.envelopes import PREFIXES, error
from usage.books import prices
from usage.pricing import FREE


@pytest.mark.parametrize("prefix", PREFIXES)
def test_it_lists_what_is_served(alice: Person, small: ServedModel, prefix: str) -> None:
    body = alice.get(f"{prefix}/v1/models").json()
    listed = {
        "id": "small",
        "object": "model",
        "created": int(small.created_at.timestamp()),
        "owned_by": "acme",
        "kind": "chat",
        "type": "model",
        "display_name": "small",
        "created_at": f"{small.created_at:%Y-%m-%dT%H:%M:%S}.{small.created_at.microsecond // 1000:03}Z",
        "max_input_tokens": 128_000,
        "max_tokens": 16_384,
        "lifecycle": "active",
        "deprecated_at": None,
    }
    page = {"has_more": False, "first_id": "small", "last_id": "small"}
    assert body == {"object": "list", "data": [listed], **page}


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", "abcde", False),
        ("limit=1000", "abcde", False),
        ("limit=2", "ab", True),
        ("limit=2&after_id=b", "cd", True),
        ("limit=2&after_id=c", "de", False),
        ("limit=2&before_id=d", "bc", True),
        ("after_id=a&before_id=d", "bc", False),
        ("after_id=e", "", False),
    ],
)
def test_the_list_has_pages(alice: Person, query: str, ids: str, has_more: bool) -> None:
    for name in "abcde":
        model = ServedModel.objects.create(id=name)
        Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
        prices.change(name, FREE)
    body = alice.get(f"/v1/models?{query}").json()
    assert ("".join(model["id"] for model in body["data"]), body["has_more"]) == (ids, has_more)
    assert (body["first_id"], body["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["later", "old", "small"]),
        ("lifecycle[]=active", ["later", "small"]),
        ("lifecycle[]=deprecated", ["old"]),
        ("lifecycle[]=active&lifecycle[]=deprecated", ["later", "old", "small"]),
        ("lifecycle[]=active&limit=1&after_id=later", ["small"]),
        ("lifecycle[]=retired", []),
    ],
)
def test_a_deprecated_model_says_so_from_its_day_on(
    alice: Person, small: ServedModel, query: str, ids: list[str]
) -> None:
    for name, day in (("old", date(2026, 1, 31)), ("later", date(2999, 1, 31))):
        model = ServedModel.objects.create(id=name, deprecated_on=day)
        Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
        prices.change(name, FREE)
    listed = {model["id"]: model for model in alice.get(f"/v1/models?{query}").json()["data"]}
    assert list(listed) == ids
    said = {name: (model["lifecycle"], model["deprecated_at"]) for name, model in listed.items()}
    active, old = ("active", None), ("deprecated", "2026-01-31T00:00:00.000Z")
    assert said == {name: old if name == "old" else active for name in ids}


@pytest.mark.parametrize("path", ["/v1/models", "/anthropic/v1/models"])
def test_clients_of_anthropic_find_their_request_id(alice: Person, path: str) -> None:
    answer = alice.get(path, **{"anthropic-version": "2023-06-01"})
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert "request-id" not in alice.get(path).headers


@pytest.mark.parametrize(
    "name",
    ["limit=0", "limit=1001", "limit=a", "limit=", "after_id=x", "before_id=", "lifecycle[]=new"],
)
def test_a_page_that_does_not_exist_is_refused(alice: Person, name: str) -> None:
    assert error(alice.get(f"/v1/models?{name}"), 400)["param"] == name.partition("=")[0]


@pytest.mark.parametrize("name", ["limit", "after_id", "before_id"])
def test_a_parameter_that_comes_twice_is_refused(alice: Person, small: ServedModel, name: str) -> None:
    refused = error(alice.get(f"/v1/models?{name}=1&{name}=2"), 400)
    assert (refused["param"], refused["code"]) == (name, "duplicate_parameter")


def test_too_many_query_parameters_are_refused(alice: Person) -> None:
    assert error(alice.get("/v1/models?" + "a&" * 2_000), 400)["code"] == "request_too_large"


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/models/small", "/v1/key", "/openapi.json"])
def test_a_head_is_a_get_without_its_body(alice: Person, small: ServedModel, path: str) -> None:
    headers = {"authorization": f"Bearer {alice.key}"}
    answer, head = Client().get(path, headers=headers), Client().head(path, headers=headers)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == answer.headers["content-type"]


def test_a_model_that_is_not_served_is_not_listed(alice: Person, small: ServedModel) -> None:
    unpriced = ServedModel.objects.create(id="unpriced")
    Deployment.objects.create(model=unpriced, name="sandbox", engine="sandbox")
    Deployment.objects.create(
        model=ServedModel.objects.create(id="inactive", is_active=False), name="sandbox", engine="sandbox"
    )
    Deployment.objects.create(
        model=ServedModel.objects.create(id="stopped"), name="sandbox", engine="sandbox", is_active=False
    )
    for name in ("inactive", "stopped", "undeployed"):
        prices.change(name, FREE)
    ServedModel.objects.create(id="undeployed")
    assert [model["id"] for model in alice.get("/v1/models").json()["data"]] == ["small"]
    assert error(alice.get("/v1/models/unpriced"), 404)["code"] == "model_not_found"


def test_a_test_key_sees_the_same_list(alice: Person, small: ServedModel) -> None:
    row, key = keys.create_key(alice.project, name="test", is_test=True)
    tester = Person(alice.user, alice.project, row, key)
    assert tester.get("/v1/models").json() == alice.get("/v1/models").json()


def test_a_list_costs_as_many_queries_as_before_with_more_models(
    alice: Person, small: ServedModel, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(20):
        model = ServedModel.objects.create(id=f"model-{number}")
        Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
        prices.change(model.id, FREE)
    with django_assert_max_num_queries(6):
        assert len(alice.get("/v1/models").json()["data"]) == 21


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_models_id_may_contain_slashes(alice: Person, prefix: str) -> None:
    model = ServedModel.objects.create(id="meta-llama/Llama-3:8b@x")
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    prices.change(model.id, FREE)
    assert alice.get(f"{prefix}/v1/models/meta-llama/Llama-3:8b@x").json()["id"] == model.id


@pytest.mark.parametrize(
    "name", ["nothing", "small/", "SMALL", "%00", "%ED%A0%80", "a%0Ab", "'--", "x" * 8_000]
)
def test_an_unknown_model_is_a_404(alice: Person, small: ServedModel, name: str) -> None:
    assert error(alice.get(f"/v1/models/{name}"), 404)["code"] in {"model_not_found", "unknown_url"}


def test_a_model_that_is_deleted_meanwhile_is_a_404(
    alice: Person, small: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = views._served

    def served_until_now(caller: Caller) -> dict[str, CatalogModel]:
        known = served(caller)
        Deployment.objects.all().delete()
        ServedModel.objects.all().delete()
        return known

    monkeypatch.setattr(views, "_served", served_until_now)
    assert error(alice.get("/v1/models/small"), 404)["code"] == "model_not_found"
