"""The client routes that read: models, the calling key, receipts, and what every error looks like."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InternalError, OperationalError
from django.test import Client
from psycopg.errors import ReadOnlySqlTransaction
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts import api_keys, keys
from accounts.authentication import Caller
from accounts.models import APIKey, RateLimit
from chatapi import identity
from chatapi.api import views
from chatapi.models import Deployment, ServedModel
from chatapi.wire.dialects import DIALECTS
from tests.cast import Person, admit, run
from usage.books import credit, prices
from usage.books.credit import Note
from usage.models import BudgetLimit, Generation, LedgerEntry, Outcome, UsageSource
from usage.pricing import FREE, Tokens, to_usd

PREFIXES = ["", *(f"/{dialect}" for dialect in DIALECTS)]
RANDOM_ID = "chatcmpl-0192f0c57e7a7cc398c4dc0c0c07398f"


def error(response: Any, status: int) -> dict[str, Any]:
    """The error of an envelope, after a check of what every envelope must have."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", response.headers["x-request-id"])
    body: dict[str, dict[str, Any]] = json.loads(response.content)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


# ---- models


@pytest.mark.parametrize("prefix", PREFIXES)
def test_it_lists_what_is_served(alice: Person, small: ServedModel, prefix: str) -> None:
    body = alice.get(f"{prefix}/v1/models").json()
    listed = {
        "id": "small",
        "object": "model",
        "created": int(small.created_at.timestamp()),
        "owned_by": "acme",
        "type": "model",
        "display_name": "small",
        "created_at": f"{small.created_at:%Y-%m-%dT%H:%M:%S}.{small.created_at.microsecond // 1000:03}Z",
        "max_input_tokens": 128_000,
        "max_tokens": 16_384,
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


@pytest.mark.parametrize("name", ["limit=0", "limit=1001", "limit=a", "limit=", "after_id=x", "before_id="])
def test_a_page_that_does_not_exist_is_refused(alice: Person, name: str) -> None:
    assert error(alice.get(f"/v1/models?{name}"), 400)["param"] == name.partition("=")[0]


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
    served_ids = views._served_ids

    def served_until_now(caller: Caller) -> set[str]:
        known = served_ids(caller)
        Deployment.objects.all().delete()
        ServedModel.objects.all().delete()
        return known

    monkeypatch.setattr(views, "_served_ids", served_until_now)
    assert error(alice.get("/v1/models/small"), 404)["code"] == "model_not_found"


# ---- the key


def test_a_key_learns_who_it_is(alice: Person) -> None:
    body = alice.get("/v1/key").json()
    shown = {
        name: body[name]
        for name in ("id", "name", "redacted", "organization", "project", "is_test", "is_admin", "expires_at")
    }
    assert shown == {
        "id": alice.api_key.pk,
        "name": "alice",
        "redacted": alice.key[:12] + "…",
        "organization": "Acme",
        "project": "default",
        "is_test": False,
        "is_admin": False,
        "expires_at": None,
    }
    assert alice.key not in json.dumps(body)
    assert alice.api_key.digest not in json.dumps(body)


def test_a_key_sees_what_it_spent_and_holds(alice: Person) -> None:
    BudgetLimit.objects.create(
        scope="key", scope_id=alice.api_key.pk, period="month", limit_nanodollars=5_000_000_000
    )
    charged = run(alice).amount_nanodollars
    held = admit(alice).reserved_nanodollars
    budgets = {(each["scope"], each["period"]): each for each in alice.get("/v1/key").json()["budgets"]}
    assert set(budgets) == {("key", "day"), ("key", "month"), ("key", "ever")}
    month = budgets["key", "month"]
    assert (month["limit_usd"], month["limit_nanodollars"]) == ("5", 5_000_000_000)
    assert (month["posted_nanodollars"], month["pending_nanodollars"]) == (charged, held)
    assert month["posted_usd"] == "0.00024"
    assert budgets["key", "day"]["limit_usd"] is None


def test_a_colleagues_spending_is_told_only_where_it_limits(alice: Person, bob: Person) -> None:
    run(bob)
    assert {each["scope"] for each in alice.get("/v1/key").json()["budgets"]} == {"key"}
    BudgetLimit.objects.create(
        scope="organization",
        scope_id=alice.project.organization_id,
        period="ever",
        limit_nanodollars=1_000_000,
    )
    shared = alice.get("/v1/key").json()["budgets"][0]
    assert (shared["scope"], shared["posted_nanodollars"]) == ("organization", 240_000)


def test_a_key_sees_what_else_can_refuse_it(alice: Person) -> None:
    body = alice.get("/v1/key").json()
    assert (body["credit"], body["rate_limits"]) == (None, [])
    organization = alice.project.organization
    credit.grant(organization, 5_000_000_000, Note("invoice 17", "bookkeeper"))
    credit.require(organization)
    held = admit(alice).reserved_nanodollars
    RateLimit.objects.create(organization=organization, requests_per_minute=60, concurrent_requests=2)
    RateLimit.objects.create(api_key=alice.api_key, model="small", tokens_per_day=1_000)
    body = alice.get("/v1/key").json()
    assert body["credit"] == {
        "available_usd": to_usd(5_000_000_000 - held),
        "available_nanodollars": 5_000_000_000 - held,
    }
    assert {
        (each["scope"], each["model"], each["counts"], each["per"], each["limit"])
        for each in body["rate_limits"]
    } == {
        ("organization", None, "requests", "minute", 60),
        ("organization", None, "concurrent_requests", None, 2),
        ("key", "small", "tokens", "day", 1_000),
    }


# ---- receipts


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_receipt_tells_what_was_charged(alice: Person, prefix: str) -> None:
    generation = run(alice)
    body = alice.get(f"{prefix}/v1/generations/{generation}").json()
    assert (body["id"], body["object"], body["model"]) == (
        f"chatcmpl-{generation.id.hex}",
        "generation",
        "small",
    )
    assert (body["state"], body["outcome"], body["finish_reason"], body["error"]) == (
        "settled",
        "completed",
        "stop",
        None,
    )
    assert body["usage_source"] == "upstream"
    assert body["usage"] == {
        "prompt_tokens": 1_000,
        "completion_tokens": 200,
        "total_tokens": 1_200,
        "prompt_tokens_details": {"cached_tokens": 400},
    }
    assert (body["amount_nanodollars"], body["amount_usd"], body["is_waived"]) == (240_000, "0.00024", False)
    assert "deployment" not in body


def test_the_line_items_add_up(alice: Person) -> None:
    body = alice.get(f"/v1/generations/{run(alice)}").json()
    lines = [
        (line["name"], line["tokens"], line["price_per_mtok_usd"], line["amount_usd"])
        for line in body["line_items"]
    ]
    assert lines == [
        ("input", 600, "0.15", "0.00009"),
        ("cached_input", 400, "0.075", "0.00003"),
        ("output", 200, "0.6", "0.00012"),
    ]
    assert sum(line["amount_nanodollars"] for line in body["line_items"]) == body["amount_nanodollars"]


def test_a_receipt_keeps_the_price_of_its_day(alice: Person, small: ServedModel) -> None:
    generation = run(alice)
    before = alice.get(f"/v1/generations/{generation}").json()
    prices.change(small.id, FREE)
    assert alice.get(f"/v1/generations/{generation}").json() == before


def test_a_receipt_has_its_times(alice: Person) -> None:
    timings = alice.get(f"/v1/generations/{run(alice)}").json()["timings"]
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", timings[name])
        for name in ("admitted_at", "claimed_at", "settled_at")
    )
    assert timings["admitted_at"] <= timings["claimed_at"] <= timings["settled_at"]
    assert (timings["first_token_ms"], timings["last_token_ms"]) == (40, 900)
    assert 0 <= timings["queue_ms"] <= timings["total_ms"]


def test_a_waived_generation_costs_nothing_and_has_no_lines(alice: Person) -> None:
    ending = {
        "outcome": Outcome.FAILED,
        "error_code": "upstream_timeout",
        "error_message": "It took too long.",
        "finish_reason": "",
    }
    body = alice.get(
        f"/v1/generations/{run(alice, tokens=Tokens(1_000), usage_source=UsageSource.COUNTED, **ending)}"
    ).json()
    assert body["error"] == {"code": "upstream_timeout", "message": "It took too long."}
    assert (body["is_waived"], body["amount_usd"], body["line_items"]) == (True, "0", [])
    assert body["usage"] == {"prompt_tokens": 1_000, "completion_tokens": 0, "total_tokens": 1_000}


def test_an_open_generation_has_no_usage_and_no_amount_yet(alice: Person) -> None:
    body = alice.get(f"/v1/generations/{admit(alice)}").json()
    assert (body["state"], body["outcome"], body["usage"], body["amount_usd"], body["line_items"]) == (
        "admitted",
        None,
        None,
        None,
        [],
    )
    assert (body["timings"]["claimed_at"], body["timings"]["queue_ms"]) == (None, None)


def test_the_id_may_be_in_any_form(alice: Person) -> None:
    uuid = run(alice).id
    forms = [f"chatcmpl-{uuid.hex}", f"cmpl-{uuid.hex}", f"stream:chat:{uuid}", str(uuid), uuid.hex]
    assert {alice.get(f"/v1/generations/{form}").json()["id"] for form in forms} == {f"chatcmpl-{uuid.hex}"}


@pytest.mark.parametrize(
    ("endpoint", "dialect", "form"),
    [
        ("chat.completions", "openai", "chatcmpl-{0.hex}"),
        ("chat.completions", "bitseek", "stream:chat:{0}"),
        ("completions", "opentoken", "cmpl-{0.hex}"),
    ],
)
def test_receipts_have_the_id_that_the_client_saw(
    alice: Person, endpoint: str, dialect: str, form: str
) -> None:
    row = run(alice)
    Generation.objects.filter(pk=row.pk).update(endpoint=endpoint, dialect=dialect)
    row.refresh_from_db()
    assert alice.get(f"/v1/generations/{row.id}").json()["id"] == form.format(row.id)
    entry = LedgerEntry.objects.get(generation=row)
    assert (str(row), entry.request_id) == (form.format(row.id),) * 2


def test_the_id_of_a_dropped_request_has_no_prefix(db: None) -> None:
    generation_id = identity.new_id()
    assert LedgerEntry(generation_id=generation_id).request_id == generation_id.hex


@pytest.mark.parametrize("who", ["bob", "charlie"])
def test_anothers_receipt_is_as_unknown_as_a_random_id(
    alice: Person, who: str, request: pytest.FixtureRequest
) -> None:
    other: Person = request.getfixturevalue(who)
    real, unknown = other.get(f"/v1/generations/{run(alice)}"), other.get(f"/v1/generations/{RANDOM_ID}")
    assert error(real, 404) == error(unknown, 404)
    assert error(real, 404)["code"] == "generation_not_found"


@pytest.mark.parametrize(
    "name", ["1", "chatcmpl-", "%00", "..", "chatcmpl-" + "g" * 32, RANDOM_ID + "0", "x" * 8_000]
)
def test_what_is_no_id_is_not_found(alice: Person, name: str) -> None:
    error(alice.get(f"/v1/generations/{name}"), 404)


# ---- who is let in


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/small", "/v1/key", f"/v1/generations/{RANDOM_ID}", "/openai/v1/key"]
)
def test_every_refusal_of_a_key_looks_the_same(alice: Person, path: str) -> None:
    revoked, key = keys.create_key(alice.project, name="revoked")
    keys.revoke(APIKey.objects.filter(pk=revoked.pk))
    sent = ["nonsense", api_keys.generate(is_test=False), key, "٣\xff"]
    answers = [Client().get(path, headers={"authorization": f"Bearer {each}"}) for each in sent]
    assert len({answer.content for answer in answers}) == 1
    assert error(answers[0], 401)["code"] == "invalid_api_key"
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}


@pytest.mark.parametrize("header", [None, "Bearer", "Basic YTpi"])
def test_who_sends_no_key_is_told_so(
    db: None, header: str | None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0):
        told = error(Client().get("/v1/models", headers={"authorization": header} if header else {}), 401)
    assert (told["code"], told["message"].partition(".")[0]) == ("invalid_api_key", "No API key was sent")


def test_a_malformed_key_costs_no_query(db: None, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        error(Client().get("/v1/models", headers={"authorization": "Bearer ck_live_nonsense"}), 401)


def test_a_session_does_not_open_the_client_routes(db: None) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    assert client.get("/admin/").status_code == 200
    for path in ("/v1/models", "/v1/key", f"/openai/v1/generations/{RANDOM_ID}"):
        error(client.get(path), 401)


def test_a_key_does_not_open_the_admin(alice: Person) -> None:
    row, key = keys.create_key(alice.project, name="admin", is_admin=True)
    response = Person(alice.user, alice.project, row, key).get("/admin/")
    assert (response.status_code, response.headers["location"]) == (302, "/admin/login/?next=/admin/")


# ---- errors, ids, formats


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/models/",
        "/v1/generations/",
        "/v1/key/",
        "/v1//models",
        "/v1/admin/",
    ],
)
def test_an_unknown_route_is_an_envelope(db: None, prefix: str, path: str) -> None:
    assert error(Client().get(prefix + path), 404)["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/llama/completions", "/llama/v1/completions"),
        ("/models/small", "/v1/models/small"),
        ("/organization/costs", "/v1/organization/costs"),
    ],
)
def test_an_url_without_version_names_the_one_that_is_meant(db: None, path: str, meant: str) -> None:
    response = Client(enforce_csrf_checks=True).post(path, "{}", "application/json", headers={"host": "any"})
    assert error(response, 404)["message"] == f"Invalid URL ({path}). Did you mean {meant}?"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/small", "/v1/key", f"/opentoken/v1/generations/{RANDOM_ID}"]
)
def test_other_methods_are_refused_with_those_that_are_allowed(db: None, method: str, path: str) -> None:
    response = Client(enforce_csrf_checks=True).generic(method, path, "{}", "application/json")
    assert error(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "GET, HEAD"


def test_a_head_request_has_no_body(alice: Person) -> None:
    response = Client().head("/v1/models", headers={"authorization": f"Bearer {alice.key}"})
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "text/html", "*/*;q=x", "image/png", "", "application/xml, */*"]
)
def test_the_answer_is_json_whatever_is_accepted(alice: Person, small: ServedModel, accept: str) -> None:
    assert alice.get("/v1/models?format=xml", accept=accept).headers["content-type"] == "application/json"
    error(alice.get("/v1/nothing", accept=accept), 404)


def test_what_a_key_sees_is_not_cached(alice: Person) -> None:
    assert alice.get("/v1/key").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/nothing", "/nothing", "/admin/login/"])
def test_a_harmless_request_id_is_echoed(db: None, path: str) -> None:
    assert Client().get(path, headers={"x-request-id": "my_id-1"}).headers["x-request-id"] == "my_id-1"


@pytest.mark.parametrize("path", ["/v1/models", "/openai/v1/models", "/v1/nowhere"])
def test_the_apis_answers_say_their_version_and_time(db: None, path: str) -> None:
    headers = Client().get(path).headers
    assert headers["openai-version"] == "2020-10-01"
    assert int(headers["openai-processing-ms"]) >= 0
    assert "openai-version" not in Client().get("/docs").headers


@pytest.mark.parametrize("wish", ["", "a b", "x" * 65, "a\nb", "é", "<script>"])
def test_any_other_request_id_is_replaced(db: None, wish: str) -> None:
    ids = {
        Client().get("/v1/models", headers={"x-request-id": wish}).headers["x-request-id"] for _ in range(2)
    }
    assert len(ids) == 2
    assert all(re.fullmatch("req_[0-9a-f]{32}", each) for each in ids)


HOSTS = ["web:8000", "10.1.2.3:8000", "chat_api", "evil.example", "a b/c@d", ""]
"""What containers, probes and the LAN call a server, and what is no name at all."""


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_api_answers_under_any_host_as_its_hot_routes_do(
    alice: Person, small: ServedModel, prefix: str, host: str
) -> None:
    generation = run(alice)
    for path in ("models", "models/small", "key", f"generations/{generation}"):
        assert alice.get(f"{prefix}/v1/{path}", host=host).json() == alice.get(f"{prefix}/v1/{path}").json()
    assert (
        error(Client().get(f"{prefix}/v1/models", headers={"host": host}), 401)["code"] == "invalid_api_key"
    )
    assert error(Client().get(f"{prefix}/v1/nothing", headers={"host": host}), 404)["code"] == "unknown_url"


def test_an_unlisted_host_appears_in_no_answer_of_the_api(db: None) -> None:
    for path in (
        "/v1/models",
        "/v1/models/",
        "/v1",
        "/klingon/v1/models",
        "/docs",
        "/docs?script",
        "/openapi.json",
    ):
        response = Client().get(path, headers={"host": "evil.example"})
        assert response.status_code < 405
        assert b"evil" not in response.content
        assert "evil" not in str(response.headers) + str(response.cookies)


@pytest.mark.parametrize(
    "path", ["/", "/admin/", "/admin/login/", "/admin/v1/", "/admin/v1/models", "/nothing"]
)
def test_a_page_under_a_foreign_host_is_refused(db: None, path: str) -> None:
    page = Client().get(path, headers={"host": "evil.example"})
    assert (page.status_code, page.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert not page.cookies


@pytest.mark.parametrize("path", ["/klingon/v1/models", "/klingon/v1", "/OpenAI/v1/chat/completions"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_dialects_prefix_is_told_the_known_ones(db: None, method: str, path: str) -> None:
    told = error(Client(enforce_csrf_checks=True).generic(method, path, "{}", "application/json"), 404)
    assert told["code"] == "unknown_url"
    assert "/bitseek/v1, /llama/v1, /openai/v1, /opentoken/v1" in told["message"]


def test_a_failure_inside_tells_nothing(
    alice: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("chatapi.catalog.load", fail)
    response = alice.get("/v1/models")
    assert error(response, 500)["code"] == "internal_error"
    assert "secret" not in response.content.decode()
    assert "secret detail" in caplog.text


def is_locked(*_: object) -> None:
    raise OperationalError("database is locked")


def is_read_only(*_: object) -> None:
    raise InternalError("cannot execute UPDATE in a read-only transaction") from ReadOnlySqlTransaction()


@pytest.mark.parametrize("fail", [is_locked, is_read_only])
def test_a_database_that_is_away_is_a_503_that_can_be_retried(
    alice: Person, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., None]
) -> None:
    monkeypatch.setattr("accounts.api.look_up", fail)
    response = alice.get("/v1/key")
    assert error(response, 503)["code"] == "service_unavailable"
    assert response.headers["retry-after"] == "1"


def test_no_dialects_prefix_is_missing_a_route(alice: Person, small: ServedModel) -> None:
    generation = run(alice)
    for path in ("models", "models/small", "key", f"generations/{generation}"):
        answers = [alice.get(f"{prefix}/v1/{path}") for prefix in PREFIXES]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
    assert Generation.objects.count() == 1
