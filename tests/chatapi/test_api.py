"""The client routes that read: the calling key, accepted keys, and the form of every error."""

import json
import logging
import re
from collections.abc import Callable
from time import thread_time

import pytest
from django.contrib.auth.models import User
from django.db import InternalError, OperationalError
from django.test import Client
from psycopg.errors import ReadOnlySqlTransaction
from pytest_django import Settings
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts import api_keys, keys
from accounts.models import APIKey, RateLimit
from chatapi.models import ServedModel
from chatapi.wire.dialects import DIALECTS
from tests.cast import Person, admit, run
from tests.chatapi.envelopes import PREFIXES, RANDOM_ID, error
from usage.books import credit
from usage.books.credit import Note
from usage.models import BudgetLimit, Generation
from usage.pricing import to_usd

# ---- the key


def test_a_key_learns_its_own_name_and_organization(alice: Person) -> None:
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
    assert set(budgets) == {("key", period) for period in ("day", "week", "month", "ever")}
    month = budgets["key", "month"]
    assert (month["limit_usd"], month["limit_nanodollars"]) == ("5", 5_000_000_000)
    assert (month["posted_nanodollars"], month["pending_nanodollars"]) == (charged, held)
    assert month["posted_usd"] == "0.00024"
    assert budgets["key", "day"]["limit_usd"] is None


def test_a_colleagues_spending_is_shown_only_where_it_limits(alice: Person, bob: Person) -> None:
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


# ---- accepted keys


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
def test_a_request_without_a_key_is_refused(
    db: None, header: str | None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0):
        found = error(Client().get("/v1/models", headers={"authorization": header} if header else {}), 401)
    assert (found["code"], found["message"].partition(".")[0]) == ("invalid_api_key", "No API key was sent")


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
        ("/embeddings", "/v1/embeddings"),
        ("/openai/responses", "/openai/v1/responses"),
        ("/responses/resp_1/input_items", "/v1/responses/resp_1/input_items"),
        ("/organization/costs", "/v1/organization/costs"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/openai/v1/v1/models/org/large/", "/openai/v1/models/org/large"),
    ],
)
def test_an_url_that_is_nearly_right_names_the_one_that_is_meant(db: None, path: str, meant: str) -> None:
    response = Client(enforce_csrf_checks=True).post(path, "{}", "application/json", headers={"host": "any"})
    assert error(response, 404)["message"] == f"Invalid URL ({path}). Did you mean {meant}?"


@pytest.mark.parametrize("path", ["/api/chat", "/openai/deployments/small/chat/completions"])
def test_a_body_in_json_gets_an_envelope_anywhere(db: None, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    assert error(client.post(path, "{}", "application/json"), 404)["code"] == "unknown_url"


@pytest.mark.parametrize("path", ["/v1/generations/", "/v1/v1", "/v1/chat/", "/organization"])
def test_no_hint_names_a_route_that_does_not_exist(db: None, path: str) -> None:
    message = error(Client().post(path, "{}", "application/json"), 404)["message"]
    assert message == f"Invalid URL ({path}). See /docs for the routes."


def test_a_hint_leads_below_the_prefix_of_a_proxy(
    db: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "PATH_PREFIX", "/llm")
    message = error(Client().get("/v1/nothing"), 404)["message"]
    assert message.endswith("See /llm/docs for the routes.")


def test_no_unknown_url_takes_long(db: None) -> None:
    began = thread_time()
    assert error(Client().get("/v1" * 20_000 + "%0A"), 404)["code"] == "unknown_url"
    assert thread_time() - began < 1


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens", "/anthropic/messages"])
def test_a_hint_about_messages_is_anthropics_error(db: None, path: str) -> None:
    response = Client().post(path, "{}", "application/json")
    assert (response.status_code, response.json()["type"]) == (404, "error")
    meant = path.replace("/messages", "/v1/messages")
    assert response.json()["error"]["message"] == f"Invalid URL ({path}). Did you mean {meant}?"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/small", "/v1/key", f"/opentoken/v1/generations/{RANDOM_ID}"]
)
def test_other_methods_are_refused_with_those_that_are_allowed(db: None, method: str, path: str) -> None:
    response = Client(enforce_csrf_checks=True).generic(method, path, "{}", "application/json")
    assert error(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_the_management_api_refuses_other_methods_before_it_reads_the_key(db: None, method: str) -> None:
    response = Client().generic(method, "/v1/organization/projects", "{}", "application/json")
    assert error(response, 405)["message"] == f"{method} is not allowed here. Use GET or HEAD or POST."
    assert response.headers["allow"] == "GET, HEAD, POST"


# Claude Code asks for `/` when it starts.
@pytest.mark.parametrize("path", ["/", "/v1/models"])
def test_a_head_request_has_no_body(alice: Person, path: str) -> None:
    response = Client().head(path, headers={"authorization": f"Bearer {alice.key}"})
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "text/html", "*/*;q=x", "image/png", "", "application/xml, */*"]
)
def test_the_answer_is_json_for_every_accept_header(alice: Person, small: ServedModel, accept: str) -> None:
    assert alice.get("/v1/models?format=xml", accept=accept).headers["content-type"] == "application/json"
    error(alice.get("/v1/nothing", accept=accept), 404)


@pytest.mark.parametrize("path", ["/v1/key", "/v1/organization/projects", "/v1/organization/statements"])
def test_what_a_key_sees_is_not_cached(alice: Person, path: str) -> None:
    response = alice.manage_as("owner").get(path)
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")


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


@pytest.mark.parametrize(
    ("prefix", "host"),
    [*((PREFIXES[0], host) for host in HOSTS), *((prefix, HOSTS[0]) for prefix in PREFIXES[1:])],
)
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
        "/docs/quickstart",
        "/docs/reference/createChatCompletion",
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
def test_the_error_for_an_unknown_dialects_prefix_names_the_known_ones(
    db: None, method: str, path: str
) -> None:
    found = error(Client(enforce_csrf_checks=True).generic(method, path, "{}", "application/json"), 404)
    assert found["code"] == "unknown_url"
    assert ", ".join(f"/{name}/v1" for name in sorted(DIALECTS)) in found["message"]


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


@pytest.mark.parametrize("path", ["/admin/", "/console/"])
def test_a_page_whose_database_is_away_says_so_and_the_log_in_one_line(
    db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("server closed the connection unexpectedly\n\tThis probably means")

    monkeypatch.setattr("django.contrib.sessions.backends.db.SessionStore.load", fail)
    client = Client(raise_request_exception=False)
    client.cookies["sessionid"] = "0" * 32
    page = client.get(path)
    assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.splitlines() for line in lines] == [lines]


def test_no_dialects_prefix_is_missing_a_route(alice: Person, small: ServedModel) -> None:
    generation = run(alice)
    for path in ("models", "models/small", "key", f"generations/{generation}"):
        answers = [alice.get(f"{prefix}/v1/{path}") for prefix in PREFIXES]
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
    assert Generation.objects.count() == 1
