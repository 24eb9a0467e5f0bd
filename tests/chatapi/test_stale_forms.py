"""A form that was opened before a colleague's change does not undo it: it saves what its person changed."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import APIKey, Member, Organization, Project, RateLimit, Role
from chatapi import upstream_keys
from chatapi.models import Deployment, ServedModel
from chatapi.notifications import webhooks
from chatapi.notifications.models import WebhookEndpoint
from tests.admin_pages import client_of, page
from tests.cast import Person
from tests.chatapi.console_pages import as_role, url
from tests.opened_forms import opened
from usage.models import BudgetLimit, Credit, Period, Scope
from usage.models.budget_keys import LimitKey

pytestmark = pytest.mark.usefixtures("counting")


def saved(client: Client, path: str, form: dict[str, Any], **typed: Any) -> None:
    """Send the form as its page showed it, with what the person typed."""
    response = client.post(path, form | typed)
    assert response.status_code == 302, response.content.decode()


def values(row: Any, *names: str) -> tuple[Any, ...]:
    row.refresh_from_db()
    return tuple(getattr(row, name) for name in names)


@pytest.fixture(params=["admin", "console"])
def key_page(request: pytest.FixtureRequest, alice: Person, small: ServedModel) -> tuple[Client, str]:
    """Return a person and the page with the form of Alice's key."""
    if request.param == "admin":
        return client_of(alice.user), page(alice.api_key)
    return as_role(alice, Role.OWNER), url(alice, f"keys/{alice.api_key.pk}/change")


def test_a_stale_form_of_a_key_gives_no_rights_back(key_page: tuple[Client, str], alice: Person) -> None:
    client, path = key_page
    ends = timezone.now() + timedelta(days=9)
    APIKey.objects.update(scopes=[], allowed_models=[], allowed_ips=["10.0.0.0/8", "::1"], expires_at=ends)
    first, second = opened(client, path, "name"), opened(client, path, "name")
    saved(client, path, first, scopes=["completions"], allowed_models=["small"], default_dialect="llama")
    soon = timezone.now() + timedelta(hours=1)
    APIKey.objects.update(expires_at=soon, is_admin=True, allowed_ips=["10.0.0.1"])
    saved(client, path, second, name="renamed")
    names = ("name", "scopes", "allowed_models", "allowed_ips", "default_dialect", "expires_at", "is_admin")
    wanted = ("renamed", ["completions"], ["small"], ["10.0.0.1"], "llama", soon, True)
    assert values(alice.api_key, *names) == wanted
    third = opened(client, path, "name")
    del third["allowed_models"]
    saved(client, path, third, default_dialect="")
    assert values(alice.api_key, "allowed_models", "default_dialect", "scopes") == ([], "", ["completions"])


def test_a_stale_form_does_not_enable_an_endpoint_of_the_service(root: Client) -> None:
    endpoint = WebhookEndpoint(url="https://ops.example.com/old")
    webhooks.add(endpoint)
    form = opened(root, page(endpoint), "url")
    WebhookEndpoint.objects.update(is_enabled=False, kinds=["ledger_check.failed"])
    saved(root, page(endpoint), form, url="https://ops.example.com/new")
    wanted = ("https://ops.example.com/new", False, ["ledger_check.failed"])
    assert values(endpoint, "url", "is_enabled", "kinds") == wanted


def test_a_stale_form_of_an_organizations_endpoint_keeps_its_kinds(alice: Person) -> None:
    endpoint = WebhookEndpoint(url="https://acme.example.com/old", organization=alice.project.organization)
    webhooks.add(endpoint)
    client, path = as_role(alice, Role.OWNER), url(alice, f"webhooks/{endpoint.pk}")
    form = opened(client, path, "url")
    WebhookEndpoint.objects.update(kinds=["budget.reached"])
    saved(client, path, form, url="https://acme.example.com/new")
    assert values(endpoint, "url", "kinds") == ("https://acme.example.com/new", ["budget.reached"])
    form = opened(client, path, "url")
    WebhookEndpoint.objects.update(url="https://acme.example.com/newest")
    saved(client, path, {name: sent for name, sent in form.items() if name != "kinds"})
    assert values(endpoint, "url", "kinds") == ("https://acme.example.com/newest", [])


def test_a_stale_form_of_a_model_does_not_serve_it_again(root: Client, small: ServedModel) -> None:
    form = opened(root, page(small), "context_window")
    ServedModel.objects.update(is_active=False, aliases=["tiny"], context_window=1_000, max_output_tokens=500)
    saved(root, page(small), form, owned_by="others")
    names = ("owned_by", "is_active", "aliases", "context_window", "max_output_tokens")
    assert values(small, *names) == ("others", False, ["tiny"], 1_000, 500)
    # The merged row is checked: this output fits into the page's window, and not into the new one.
    response = root.post(page(small), form | {"max_output_tokens": "2000"})
    assert "Must be at most the context window, 1000." in response.content.decode()


def test_a_stale_form_of_a_deployment_keeps_all_but_its_change(root: Client, small: ServedModel) -> None:
    row = Deployment.objects.create(
        model=small, name="one", engine="openai_compatible", base_url="https://one.example/v1",
        timeouts={"connect_ms": 1_000, "total_ms": 60_000},
    )  # fmt: skip
    form = opened(root, page(row), "base_url")
    Deployment.objects.filter(pk=row.pk).update(
        is_active=False, timeouts={"connect_ms": 2_000, "total_ms": 60_000}, extra_parameters=["top_k"]
    )
    upstream_keys.enter(Deployment.objects.get(pk=row.pk), "sk-colleague")
    saved(root, page(row), form, priority="3", total_ms="70000")
    names = ("priority", "is_active", "timeouts", "extra_parameters")
    assert values(row, *names) == (3, False, {"connect_ms": 2_000, "total_ms": 70_000}, ["top_k"])
    assert upstream_keys.entered(row) == "sk-colleague"
    saved(root, page(row), form, connect_ms="")
    assert values(row, "timeouts") == ({"total_ms": 70_000},)
    saved(root, page(row), form, removes_api_key="on")
    row.refresh_from_db()
    assert upstream_keys.entered(row) == ""


@pytest.mark.parametrize("form", ["admin", "console"])
def test_a_stale_form_of_a_budget_keeps_the_other_amount(alice: Person, form: str) -> None:
    row = BudgetLimit.new(
        LimitKey(Scope.PROJECT, alice.project.pk, Period.MONTH),
        limit_nanodollars=10**9, soft_limit_nanodollars=10**8,
    )  # fmt: skip
    row.save()
    client = as_role(alice, Role.OWNER)
    path = page(row) if form == "admin" else url(alice, f"budgets/{row.pk}")
    sent = opened(client, path, "limit_nanodollars")
    BudgetLimit.objects.update(limit_nanodollars=5 * 10**8)
    saved(client, path, sent, soft_limit_nanodollars="0.20")
    assert values(row, "limit_nanodollars", "soft_limit_nanodollars") == (5 * 10**8, 2 * 10**8)
    # Two people who each remove one amount do not leave a limit without any.
    sent = opened(client, path, "limit_nanodollars")
    BudgetLimit.objects.update(limit_nanodollars=None)
    response = client.post(path, sent | {"soft_limit_nanodollars": ""})
    assert "Enter at least one of the two amounts." in response.content.decode()


@pytest.mark.parametrize("form", ["admin", "console"])
def test_a_stale_form_of_a_rate_limit_keeps_other_numbers(alice: Person, form: str) -> None:
    row = RateLimit.objects.create(project=alice.project, requests_per_minute=10, tokens_per_minute=100)
    client = as_role(alice, Role.OWNER)
    path = page(row) if form == "admin" else url(alice, f"budgets/rate-limits/{row.pk}")
    sent = opened(client, path, "requests_per_minute")
    RateLimit.objects.update(requests_per_minute=0)
    saved(client, path, sent, tokens_per_minute="200")
    assert values(row, "requests_per_minute", "tokens_per_minute") == (0, 200)


def test_a_limit_of_a_project_becomes_one_of_its_end_user(root: Client, alice: Person) -> None:
    Project.objects.update(counts_end_users=True)
    row = RateLimit.objects.create(project=alice.project, requests_per_minute=10)
    saved(root, page(row), opened(root, page(row), "end_user_name"), end_user_name="ann")
    row.refresh_from_db()
    assert (row.project_id, row.end_user and row.end_user.name) == (None, "ann")


def test_stale_settings_of_a_project_keep_what_a_colleague_set(alice: Person, small: ServedModel) -> None:
    client, path = as_role(alice, Role.OWNER), url(alice, f"settings/projects/{alice.project.pk}")
    form = opened(client, path, "model_aliases")
    Project.objects.update(hashes_end_users=True, model_aliases={"mine": "small"}, stores_metadata=True)
    saved(client, path, form, stores_responses_days="3")
    names = ("hashes_end_users", "model_aliases", "stores_metadata", "stores_responses_days")
    assert values(alice.project, *names) == (True, {"mine": "small"}, True, 3)


def test_stale_settings_of_an_organization_keep_its_time_zone(alice: Person) -> None:
    client, path = as_role(alice, Role.OWNER), url(alice, "settings")
    form = opened(client, path, "time_zone")
    Organization.objects.filter(pk=alice.project.organization_id).update(time_zone="Asia/Tokyo")
    saved(client, path, form, name="Acme Inc")
    assert values(alice.project.organization, "name", "time_zone") == ("Acme Inc", "Asia/Tokyo")


def test_a_stale_form_of_a_member_does_not_give_a_role_back(alice: Person, bob: Person) -> None:
    client, row = client_of(alice.user), Member.objects.get(user=bob.user)
    Member.objects.filter(pk=row.pk).update(role=Role.ADMIN)
    form = opened(client, page(row), "role")
    Member.objects.filter(pk=row.pk).update(role=Role.VIEWER)
    saved(client, page(row), form)
    assert values(row, "role") == (Role.VIEWER,)


def test_a_stale_form_does_not_let_an_organization_spend_again(root: Client, alice: Person) -> None:
    row = Credit.objects.create(organization=alice.project.organization)
    form = opened(root, page(row), "initial-is_required")
    Credit.objects.update(is_required=True)
    saved(root, page(row), form)
    assert values(row, "is_required") == (True,)


def test_a_project_that_is_archived_on_its_page_has_the_time_of_it(root: Client, alice: Person) -> None:
    form = opened(root, page(alice.project), "models_mode")
    del form["is_active"]
    saved(root, page(alice.project), form)
    (archived_at,) = values(alice.project, "archived_at")
    assert archived_at is not None
