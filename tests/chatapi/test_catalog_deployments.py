"""Deployments in the admin: what may be typed, and what a test of one calls, shows and leaves behind."""

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from chatapi.catalog import file
from chatapi.models import TIMEOUTS, Deployment, ServedModel
from chatapi.pages import deployment_pages
from chatapi.pages.catalog_admin import _FIELDS
from chatapi.pages.catalog_forms import DeploymentForm
from chatapi.worker.engines import Timeouts
from tests import fake_upstream
from tests.admin_pages import text
from tests.fake_completion import Script
from tests.fake_upstream import Upstream
from usage.models import Generation, LedgerEntry


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """Start an upstream in a thread of its own, because the view blocks."""
    started: Future[tuple[Upstream, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with fake_upstream.serve() as server:
            over = asyncio.Event()
            started.set_result((server, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    server, loop, over = started.result(timeout=10)
    yield server
    loop.call_soon_threadsafe(over.set)
    thread.join()


# ---- what may be typed

ADD = "/admin/chatapi/deployment/add/"


def form(model: ServedModel, **changes: object) -> dict[str, object]:
    """Return the form of a new deployment as a browser sends it."""
    usual = {
        "model": model.pk,
        "name": "new",
        "engine": "openai_compatible",
        "base_url": "http://vllm:8000/v1",
        "weight": 1,
        "priority": 0,
        "retries": 3,
    }
    return {**usual, "on_disconnect": "cancel", "streaming": "always", **changes}


def test_timeouts_and_parameters_are_typed_as_numbers_and_names(root: Client, small: ServedModel) -> None:
    typed = {"connect_ms": "100", "total_ms": "5000", "extra_parameters": " top_k, min_p top_k "}
    assert root.post(ADD, form(small, **typed)).status_code == 302
    row = Deployment.objects.get(name="new")
    assert (row.timeouts, row.extra_parameters) == (
        {"connect_ms": 100, "total_ms": 5_000},
        ["top_k", "min_p"],
    )
    page = root.get(reverse("admin:chatapi_deployment_change", args=[row.pk])).content.decode()
    assert re.search(r'name="connect_ms" value="100"', page)
    assert re.search(r'name="extra_parameters" value="top_k min_p"', page)


def test_empty_timeouts_and_parameters_are_none(root: Client, small: ServedModel) -> None:
    assert root.post(ADD, form(small, connect_ms="", extra_parameters="")).status_code == 302
    row = Deployment.objects.get(name="new")
    assert (row.timeouts, row.extra_parameters) == ({}, [])


def test_a_timeout_that_is_emptied_is_gone_and_the_others_stay(root: Client, small: ServedModel) -> None:
    row = Deployment.objects.create(
        model=small, name="new", engine="sandbox", timeouts={"connect_ms": 1, "total_ms": 2}
    )
    root.post(
        reverse("admin:chatapi_deployment_change", args=[row.pk]), form(small, connect_ms="", total_ms="2")
    )
    row.refresh_from_db()
    assert row.timeouts == {"total_ms": 2}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"connect_ms": "soon"}, "Enter a whole number."),
        ({"total_ms": "0"}, "greater than or equal to 1"),
        ({"total_ms": "86400001"}, "less than or equal to 86400000"),
        (
            {"extra_parameters": '{"top_k": 1}'},
            "is none of the engine parameters that can be passed on, such as top_k",
        ),
        ({"extra_parameters": "top_k api_key"}, "&#x27;api_key&#x27; is none of the engine parameters"),
        ({"weight": "0"}, "greater than or equal to 1"),
        ({"max_concurrent": "0"}, "greater than or equal to 1"),
        ({"retries": "11"}, "less than or equal to 10"),
        (
            {"api_key_env": "sk-proj-123"},
            "must be the name of an environment variable, such as OPENAI_API_KEY; never the key itself",
        ),
        ({"api_key_env": "CHATAPI_KEY_PEPPER"}, "must not be a variable of this server&#x27;s own settings"),
        ({"base_url": "vllm:8000"}, "must be a URL such as"),
        ({"engine": "sandbox"}, "the sandbox engine has none"),
    ],
)
def test_what_no_engine_could_work_with_is_refused_in_words(
    root: Client, small: ServedModel, typed: Any, says: str
) -> None:
    assert says in root.post(ADD, form(small, **typed)).content.decode()
    assert not Deployment.objects.filter(name="new").exists()


def test_the_same_is_refused_with_a_new_model(root: Client, small: ServedModel) -> None:
    sent = {
        f"deployments-0-{name}": value
        for name, value in form(small, connect_ms="soon", extra_parameters="nope").items()
    }
    counts = {"deployments-TOTAL_FORMS": 1, "deployments-INITIAL_FORMS": 0}
    model = {"id": "new", "kind": "chat", "context_window": 100, "max_output_tokens": 200, "owned_by": "me"}
    shown = root.post(reverse("admin:chatapi_servedmodel_add"), {**sent, **counts, **model}).content.decode()
    for says in (
        "Enter a whole number.",
        "&#x27;nope&#x27; is none",
        "Must be at most the context window, 100.",
    ):
        assert says in shown


def test_a_model_s_page_leads_to_each_of_its_deployments_and_stays_light(
    root: Client, small: ServedModel
) -> None:
    Deployment.objects.bulk_create(
        Deployment(model=small, name=f"gpu-{number}", engine="sandbox") for number in range(50)
    )
    shown = root.get(reverse("admin:chatapi_servedmodel_change", args=["small"])).content.decode()
    assert len(shown) < 150_000
    for row in small.deployments.all():
        assert f'href="{reverse("admin:chatapi_deployment_change", args=[row.pk])}"' in shown
    assert f'href="{ADD}?model=small"' in shown
    assert '<option value="small" selected' in root.get(f"{ADD}?model=small").content.decode()


@pytest.mark.parametrize(
    ("timeouts", "says"),
    [
        (None, "must be a table of names and milliseconds"),
        ([1], "must be a table of names and milliseconds"),
        ({"connect": 1}, "'connect' is none of connect_ms, first_delta_ms, between_deltas_ms, total_ms"),
        ({"connect_ms": "1"}, "connect_ms must be a whole number of milliseconds between 1 and 86400000"),
        ({"connect_ms": True}, "connect_ms must be a whole number"),
        ({"connect_ms": 1.5}, "connect_ms must be a whole number"),
    ],
)
def test_the_row_itself_names_the_timeout_and_what_is_allowed(
    small: ServedModel, timeouts: Any, says: str
) -> None:
    row = small.deployments.get()
    row.timeouts = timeouts
    with pytest.raises(Exception, match=re.escape(says)):
        row.full_clean()


def test_each_setting_is_in_the_file_and_in_the_form() -> None:
    columns = {column.name for column in Deployment._meta.concrete_fields} - {"id", "model"}
    assert set(file.Deployment.__struct_fields__) == columns - {"encrypted_api_key"}
    typed = columns - {"encrypted_api_key", "timeouts"} | {*TIMEOUTS, "api_key", "removes_api_key"}
    assert typed == {name for row in _FIELDS for name in ([row] if isinstance(row, str) else row)}
    assert typed <= set(DeploymentForm.base_fields)


def test_the_row_s_timeouts_are_the_engines() -> None:
    assert tuple(Timeouts.__slots__) == TIMEOUTS


# ---- testing one


def deployed(model: ServedModel, url: str, script: str = "", **changes: Any) -> str:
    """Create a deployment of the fake upstream, and return the URL of its test."""
    values = {"engine": "openai_compatible", "base_url": url, "upstream_model": f"fake:{script}", **changes}
    row = Deployment.objects.create(model=model, name="tested", **values)
    return reverse("admin:deployment_test", args=[row.pk])


def test_a_test_asks_for_one_token_and_shows_what_came(
    root: Client, small: ServedModel, upstream: Upstream
) -> None:
    page = deployed(small, upstream.url)
    assert "Test now" in text(root.get(page))
    assert upstream.calls == []
    shown = text(root.post(page))
    assert re.search(r"it works .* First token after \d+ ms .* Tokens 7 in, 1 out", shown)
    (call,) = upstream.calls
    assert (call.body["model"], call.body["max_tokens"], call.tokens) == ("fake:", 1, 1)


def test_a_model_for_embeddings_is_asked_for_one(
    root: Client, small: ServedModel, upstream: Upstream
) -> None:
    ServedModel.objects.filter(pk=small.pk).update(kind="embeddings")
    shown = text(root.post(deployed(small, upstream.url)))
    assert re.search(r"it works .* Tokens 7 in, 0 out Answer .*a vector of 4 dimensions", shown)
    assert upstream.calls[0].path == "/v1/embeddings"


def test_a_model_for_embeddings_is_not_deleted(root: Client, small: ServedModel) -> None:
    ServedModel.objects.filter(pk=small.pk).update(kind="embeddings")
    page = reverse("admin:chatapi_servedmodel_delete", args=["small"])
    assert root.post(page, {"post": "yes"}).status_code == 403
    delete_all = {"action": "delete_selected", "_selected_action": ["small"], "post": "yes"}
    root.post(reverse("admin:chatapi_servedmodel_changelist"), delete_all)
    assert ServedModel.objects.filter(pk="small").exists()


def test_a_test_leaves_no_trace_in_the_books_and_one_in_the_audit_log(
    root: Client, small: ServedModel, upstream: Upstream
) -> None:
    root.post(deployed(small, upstream.url, "status=503"))
    assert (Generation.objects.count(), LedgerEntry.objects.count()) == (0, 0)
    entry = AuditEntry.objects.get(action="tested")
    assert (entry.actor, entry.action, entry.object_name) == ("root", "tested", "small by tested")
    assert entry.changes == {"outcome": [None, "503 upstream_unavailable"]}


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("status=401", "502 upstream_authentication The upstream refused this server&#x27;s credentials."),
        ("status=404,error_code=model_not_found", "502 upstream_model_not_found"),
        ("html", "502 upstream_invalid_response"),
        ("status=400,error_message=no", "400 invalid_request_error no"),
        ("redirect=http://127.0.0.1:9/v1", "502 upstream_invalid_response"),
        ("no_usage", "Tokens not reported"),
    ],
)
def test_a_failure_is_shown_as_clients_would_get_it(
    root: Client, small: ServedModel, upstream: Upstream, script: str, says: str
) -> None:
    assert says in text(root.post(deployed(small, upstream.url, script)))
    assert len(upstream.calls) == 1


def test_an_upstream_that_is_not_there_is_a_page_too(root: Client, small: ServedModel) -> None:
    shown = text(root.post(deployed(small, "http://127.0.0.1:9/v1")))
    assert "503 upstream_unreachable The upstream could not be reached. Is it running" in shown


def test_a_test_does_not_wait_longer_than_its_limit(
    root: Client, small: ServedModel, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_pages, "TIMEOUT_S", 0.2)
    assert "504 upstream_timeout" in text(root.post(deployed(small, upstream.url, "ttft_ms=60000")))


def test_the_sandbox_is_tested_without_a_network(root: Client, small: ServedModel) -> None:
    page = reverse("admin:deployment_test", args=[small.deployments.get().pk])
    assert "it works" in text(root.post(page))


def test_a_key_is_sent_to_its_upstream_and_shown_to_nobody(
    root: Client, small: ServedModel, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KEY", "topsecretvalue")
    upstream.name_script(
        "tells-the-key",
        Script(status=400, error_message="topsecretvalue is wrong", error_code="topsecretvalue"),
    )
    page = deployed(small, upstream.url, api_key_env="FAKE_KEY", upstream_model="tells-the-key")
    answers = [root.get(page), root.post(page)]
    assert upstream.calls[0].headers["Authorization"] == "Bearer topsecretvalue"
    assert "FAKE_KEY is set" in text(answers[0])
    assert "(the key) is wrong" in text(answers[1])
    assert all("topsecret" not in answer.content.decode() for answer in answers)
    assert "topsecret" not in str(AuditEntry.objects.values_list())


def test_a_key_that_is_not_set_is_an_error_and_nothing_is_sent(
    root: Client, small: ServedModel, upstream: Upstream
) -> None:
    assert "NOT_SET_ANYWHERE" not in os.environ
    shown = text(root.post(deployed(small, upstream.url, api_key_env="NOT_SET_ANYWHERE")))
    assert "NOT_SET_ANYWHERE is not set in this web process" in shown
    assert upstream.calls == []


def test_only_the_saved_address_is_called(root: Client, small: ServedModel, upstream: Upstream) -> None:
    page = deployed(small, "http://127.0.0.1:9/v1")
    sent = {
        "base_url": upstream.url,
        "url": upstream.url,
        "upstream_model": "fake:",
        "engine": "openai_compatible",
        "name": "tested",
    }
    root.post(f"{page}?base_url={upstream.url}", sent)
    assert upstream.calls == []


def test_a_row_that_was_never_checked_is_not_called(
    root: Client, small: ServedModel, upstream: Upstream
) -> None:
    shown = text(
        root.post(deployed(small, upstream.url, timeouts={"connect": 1}, api_key_env="CHATAPI_SECRET_KEY"))
    )
    assert "It can't be called." in shown
    assert "timeouts: &#x27;connect&#x27; is none of" in shown
    assert os.environ["CHATAPI_SECRET_KEY"] not in shown
    assert upstream.calls == []


def test_a_test_needs_the_permission_and_the_form_s_token(
    root: Client, small: ServedModel, upstream: Upstream
) -> None:
    page = deployed(small, upstream.url)
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename="view_deployment"))
    viewer, careless = Client(), Client(enforce_csrf_checks=True)
    viewer.force_login(clerk)
    careless.force_login(User.objects.get(username="root"))
    assert [viewer.get(page).status_code, viewer.post(page).status_code, careless.post(page).status_code] == [
        403,
        403,
        403,
    ]
    assert Client().post(page).status_code == 302
    assert (root.put(page).status_code, root.post("/admin/deployments/999999/test").status_code) == (405, 404)
    assert upstream.calls == []


# ---- a list with nothing in it


def test_an_empty_list_says_what_to_do_next(root: Client) -> None:
    page = root.get("/admin/chatapi/servedmodel/").content.decode()
    assert 'href="/admin/catalog/import"' in page
    assert "loadcatalog docs/catalog.example.toml" in page
    assert "Add a deployment" in text(root.get("/admin/chatapi/deployment/"))
    assert "Set a price" in text(root.get("/admin/usage/price/"))
    assert "Nothing matches" in text(root.get("/admin/chatapi/servedmodel/?q=nothing"))
