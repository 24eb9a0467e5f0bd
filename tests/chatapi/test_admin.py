"""The operator's pages: access, content, and records that can not be changed."""

import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import DjangoAssertNumQueries

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.authentication import look_up
from accounts.errors import NotAuthenticated
from accounts.models import APIKey, Project
from accounts.sign_in.models import IdentityProvider
from chatapi import response_store
from chatapi.models import Deployment, ServedModel, StoredResponse
from chatapi.response_store import Content
from tests.admin_pages import client_of, page, text
from tests.cast import Person, admit, run
from usage.database.clock import database_now
from usage.models import (
    Budget,
    BudgetLimit,
    Credit,
    Event,
    Generation,
    HourlyUsage,
    LedgerEntry,
    Outcome,
    Price,
    RefusedRequests,
)
from usage.payment.models import Payment
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal

MODELS = sorted((model for model in admin.site._registry), key=lambda model: model._meta.label)
LISTS = [reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist") for model in MODELS]
RECORDS = [Generation, LedgerEntry, Budget, HourlyUsage, RefusedRequests, StoredResponse, Event]


@pytest.fixture
def house(alice: Person, bob: Person, charlie: Person, small: ServedModel) -> None:
    """Make rows of every kind."""
    for person in (alice, bob, charlie):
        run(person)
    run(
        alice,
        outcome=Outcome.FAILED,
        error_code="upstream_timeout",
        error_message="<b>It</b> took too long.",
        finish_reason="",
    )
    admit(bob)
    refused_requests.add(database_now(), [{Refusal(alice.api_key.pk, 429, "rate_limit_exceeded"): 2}])
    BudgetLimit.objects.create(
        scope="organization", scope_id=alice.project.organization_id, period="month", limit_nanodollars=10**9
    )
    # The next request reaches the soft limit, which is an event.
    amounts = {"limit_nanodollars": 5 * 10**8, "soft_limit_nanodollars": 1}
    BudgetLimit.objects.create(scope="key", scope_id=charlie.api_key.pk, period="day", **amounts)
    ServedModel.objects.create(id="unserved")
    for person in (alice, charlie):
        type(person.project).objects.filter(pk=person.project.pk).update(stores_responses_days=1)
        response_store.write(run(person).pk, Content(b'{"items":[],"context":{}}', []))


# ---- access


@pytest.mark.parametrize("path", ["/admin/", *LISTS])
def test_nobody_gets_in_without_logging_in(db: None, path: str) -> None:
    response = Client().get(path)
    assert (response.status_code, response.headers["location"]) == (302, f"/admin/login/?next={path}")


def test_a_user_without_organization_and_staff_status_does_not_get_in(db: None) -> None:
    client = Client()
    client.force_login(User.objects.create_user("nobody"))
    assert client.get("/admin/").status_code == 302


def test_staff_sees_only_what_it_was_allowed(house: None) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename="view_generation"))
    client = Client()
    client.force_login(clerk)
    assert client.get("/admin/usage/generation/").status_code == 200
    assert client.get("/admin/accounts/apikey/").status_code == 403


# ---- every page


@pytest.mark.parametrize("path", LISTS)
def test_an_empty_list_is_a_page(root: Client, path: str) -> None:
    assert root.get(path).status_code == 200


@pytest.mark.parametrize("path", LISTS)
def test_a_list_with_rows_is_a_page_and_can_be_searched_and_sorted(
    root: Client, house: None, path: str
) -> None:
    for query in ("", "?q=acme", "?q=%00", "?o=1", "?o=-2", "?p=99999"):
        assert root.get(path + query).status_code in {200, 302}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_every_row_has_a_page(root: Client, house: None, model: Any) -> None:
    for row in model.objects.all()[:6]:
        assert root.get(page(row)).status_code == 200


@pytest.mark.parametrize("path", LISTS)
def test_a_longer_list_costs_no_more_queries(
    root: Client, house: None, alice: Person, path: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for _ in range(8):
        run(alice)
    root.get(path)
    with django_assert_max_num_queries(14):
        root.get(path)


@pytest.mark.parametrize(
    "path",
    [
        each + "add/"
        for each in LISTS
        if not any(
            f"/{row._meta.model_name}/" in each
            for row in [*RECORDS, Credit, IdentityProvider, Authenticator, Payment]
        )
    ],
)
def test_what_can_be_made_has_a_form(root: Client, house: None, path: str) -> None:
    assert root.get(path).status_code == 200


# ---- what the service writes, nobody changes


@pytest.mark.parametrize("model", RECORDS, ids=lambda model: model._meta.label)
def test_records_cannot_be_added_changed_or_deleted_by_anyone(root: Client, house: None, model: Any) -> None:
    row = model.objects.all()[0]
    before = list(model.objects.order_by("pk").values())
    add = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
    assert root.post(add, {}).status_code == 403
    assert root.post(page(row), {"amount_nanodollars": "0"}).status_code == 403
    assert root.post(page(row, "delete"), {"post": "yes"}).status_code == 403
    delete_all = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
    root.post(reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"), delete_all)
    assert list(model.objects.order_by("pk").values()) == before


def test_a_price_cannot_be_changed_or_deleted(root: Client, small: ServedModel) -> None:
    price = Price.objects.get()
    assert root.post(page(price), {"output_per_mtok_nanodollars": "0"}).status_code == 403
    assert root.post(page(price, "delete"), {"post": "yes"}).status_code == 403
    assert Price.objects.get().value == price.value


# ---- generations


def test_the_page_of_a_generation_is_its_receipt(root: Client, alice: Person) -> None:
    shown = text(root.get(page(run(alice))))
    assert (
        "input 600 $0.15 $0.00009 cached input 400 $0.075 $0.00003 output 200 $0.60 $0.00012 Total $0.00024"
        in shown
    )


def test_each_bar_of_a_receipts_time_has_its_name_beside_it(root: Client, alice: Person) -> None:
    html = root.get(reverse("admin:request", args=[run(alice)])).content.decode()
    names = dict(re.findall(r'<li><i class="([\w-]+)"></i>([\w ]+)', html))
    assert [names[bar].strip() for bar in re.findall(r'<rect class="(part-[\w-]+)"', html)] == [
        "waiting for a worker", "waiting for the first token", "generating", "settling",
    ]  # fmt: skip


def test_an_error_text_is_shown_as_text(root: Client, house: None) -> None:
    failed = Generation.objects.get(outcome="failed")
    assert "&lt;b&gt;It&lt;/b&gt; took too long." in root.get(page(failed)).content.decode()


@pytest.mark.parametrize(
    "form",
    ["chatcmpl-{hex}", "cmpl-{hex}", "stream:chat:{uuid}", "{uuid}", '"id": "chatcmpl-{hex}"', " {hex} "],
)
def test_a_generation_is_found_by_its_id_in_any_form(root: Client, alice: Person, form: str) -> None:
    wanted, other = run(alice), run(alice)
    found = root.get(
        "/admin/usage/generation/", {"q": form.format(hex=wanted.id.hex, uuid=wanted.id)}
    ).content.decode()
    assert page(wanted) in found
    assert page(other) not in found


@pytest.mark.parametrize(
    "wish",
    [
        "outcome__exact=completed",
        "state__exact=settled",
        "model=small",
        "usage_source__exact=upstream",
        "is_test__exact=0",
    ],
)
def test_generations_can_be_filtered(root: Client, house: None, wish: str) -> None:
    shown = root.get(f"/admin/usage/generation/?{wish}").content.decode()
    running = Generation.objects.get(state="admitted")
    assert (page(running) in shown) == wish.startswith(("model", "is_test"))


# ---- keys


@pytest.fixture
def made(root: Client, alice: Person) -> Any:
    """Return the answer to the creation of a key."""
    form = {
        "project": alice.project.pk,
        "name": "backend",
        "test_key": "on",
        "default_dialect": "openai",
        "expires_at_0": "",
        "expires_at_1": "",
    }
    return root.post("/admin/accounts/apikey/add/", form)


def secret_in(response: Any) -> str:
    """Return the key that a page shows."""
    found = re.search(r"ck_(?:live|test)_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}", response.content.decode())
    assert found is not None
    return found[0]


def test_a_new_key_is_shown_once_and_works(root: Client, alice: Person, made: Any) -> None:
    secret, row = secret_in(made), APIKey.objects.get(name="backend")
    caller = look_up(secret)
    assert (caller.api_key_id, caller.project_id, caller.is_test, caller.default_dialect) == (
        row.pk,
        alice.project.pk,
        True,
        "openai",
    )
    assert "no-store" in made.headers["cache-control"]
    assert secret not in str(made.cookies)


def test_no_other_page_shows_a_secret_or_a_digest(root: Client, made: Any) -> None:
    secret, row = secret_in(made), APIKey.objects.get(name="backend")
    for path in ("/admin/", "/admin/accounts/apikey/", page(row), page(row, "history")):
        shown = root.get(path).content.decode()
        assert secret not in shown
        assert secret[21:] not in shown
        assert row.digest not in shown
    assert row.redacted in root.get(page(row)).content.decode()


def test_a_key_without_a_good_name_is_not_made(root: Client, alice: Person) -> None:
    response = root.post("/admin/accounts/apikey/add/", {"project": alice.project.pk, "name": "<script>"})
    assert "Use 1 to 100 ASCII letters" in text(response)
    assert APIKey.objects.get() == alice.api_key


def test_a_keys_nature_cannot_be_changed(root: Client, alice: Person, bob: Person) -> None:
    form = {
        "name": "renamed",
        "project": bob.project.pk,
        "is_test": "on",
        "public": "x",
        "digest": "x",
        "expires_at_0": "",
        "expires_at_1": "",
    }
    assert root.post(page(alice.api_key), form).status_code == 302
    row = APIKey.objects.get(pk=alice.api_key.pk)
    assert row.name == "renamed"
    unchanged = ("project_id", "is_test", "public", "digest")
    assert [getattr(row, name) for name in unchanged] == [getattr(alice.api_key, name) for name in unchanged]


def test_selected_keys_are_revoked(root: Client, alice: Person, bob: Person) -> None:
    root.post(
        "/admin/accounts/apikey/", {"action": "revoke_selected", "_selected_action": [alice.api_key.pk]}
    )
    with pytest.raises(NotAuthenticated):
        look_up(alice.key)
    assert look_up(bob.key)


def test_one_key_is_revoked_after_its_dialog(root: Client, alice: Person) -> None:
    path = f"/admin/accounts/apikey/{alice.api_key.pk}/revoke/"
    assert "Revoke this key?" in text(root.get(path))
    assert look_up(alice.key)
    assert root.post(path).headers["location"] == page(alice.api_key)
    with pytest.raises(NotAuthenticated):
        look_up(alice.key)


def test_keys_are_not_deleted(root: Client, alice: Person) -> None:
    for row in (alice.api_key, alice.project, alice.project.organization):
        assert root.post(page(row, "delete"), {"post": "yes"}).status_code == 403


# ---- money as people type it


def test_a_price_is_typed_in_dollars(root: Client, small: ServedModel) -> None:
    form = {"model": "small", "effective_from_0": "2027-01-01", "effective_from_1": "00:00:00"}
    amounts = {
        "input_per_mtok_nanodollars": "0.2",
        "cached_input_per_mtok_nanodollars": "$0.05",
        "output_per_mtok_nanodollars": "1",
    }
    assert root.post("/admin/usage/price/add/", form | amounts).status_code == 302
    price = Price.objects.latest("effective_from")
    assert (price.model, price.input_per_mtok_nanodollars, price.output_per_mtok_nanodollars) == (
        "small",
        200_000_000,
        1_000_000_000,
    )
    assert "upcoming" in text(root.get("/admin/usage/price/"))


def test_a_price_without_one_for_cached_input_is_as_input(root: Client, small: ServedModel) -> None:
    ServedModel.objects.create(id="unpriced", context_window=1, max_output_tokens=1)
    form = {
        "model": "unpriced",
        "effective_from_0": "2027-01-01",
        "effective_from_1": "00:00:00",
        "output_per_mtok_nanodollars": "1",
    }
    assert "This field is required" in text(root.post("/admin/usage/price/add/", form))
    assert (
        root.post("/admin/usage/price/add/", form | {"input_per_mtok_nanodollars": "0.2"}).status_code == 302
    )
    price = Price.objects.latest("effective_from")
    assert price.cached_input_per_mtok_nanodollars == price.input_per_mtok_nanodollars == 200_000_000


@pytest.mark.parametrize("typed", ["", "-1", "nan", "1e400", "0.0000000001", "a", "٣", "\x00"])
def test_what_is_no_amount_is_refused(root: Client, alice: Person, typed: str) -> None:
    form = {"organization": alice.project.organization_id, "period": "day", "limit_nanodollars": typed}
    root.post("/admin/usage/budgetlimit/add/", form)
    assert BudgetLimit.objects.filter(limit_nanodollars__lt=3_000_000_000).count() == 0


def test_a_limit_is_set_and_changed_in_dollars(root: Client, alice: Person) -> None:
    add = "/admin/usage/budgetlimit/add/"
    assert (
        root.post(
            add, {"project": alice.project.pk, "period": "month", "limit_nanodollars": "12.5"}
        ).status_code
        == 302
    )
    limit = BudgetLimit.objects.get()
    assert (limit.scope, limit.scope_id, limit.period, limit.limit_nanodollars) == (
        "project",
        alice.project.pk,
        "month",
        12_500_000_000,
    )
    assert "Acme / default" in text(root.get("/admin/usage/budgetlimit/"))
    assert root.post(page(limit), {"limit_nanodollars": "20", "scope": "key"}).status_code == 302
    changed = BudgetLimit.objects.get()
    assert (changed.scope, changed.limit_nanodollars) == ("project", 20_000_000_000)


def test_a_limit_is_for_exactly_one_and_once(root: Client, alice: Person) -> None:
    form = {"project": alice.project.pk, "period": "month", "limit_nanodollars": "1"}
    add = "/admin/usage/budgetlimit/add/"
    assert "Choose one" in text(root.post(add, form | {"api_key": alice.api_key.pk}))
    assert "Choose one" in text(root.post(add, {"period": "month", "limit_nanodollars": "1"}))
    root.post(add, form)
    assert "There is a limit for this period already" in text(root.post(add, form))
    assert BudgetLimit.objects.count() == 1


# ---- the browser's protection


def test_a_name_that_is_taken_is_an_error_in_the_form(
    root: Client, alice: Person, small: ServedModel
) -> None:
    organization = alice.project.organization
    Project.objects.create(organization=organization, name="taken")
    Deployment.objects.create(model=small, name="taken", engine="sandbox")
    first = Deployment.objects.create(model=small, name="first", engine="sandbox")
    rules = {"on_disconnect": "cancel", "streaming": "always", "retries": 3}
    form = {"name": "taken", "engine": "sandbox", "priority": 0, "weight": 1, **rules}
    answers = [
        client_of(alice.user).post(page(alice.project), {"name": "taken"}),
        root.post(page(first), form),
    ]
    assert ["already exists" in text(answer) for answer in answers] == [True, True]
    assert root.post(page(first), form | {"name": "free"}).status_code == 302
    assert client_of(alice.user).post(page(alice.project), {"name": "free"}).status_code == 302


def test_projects_do_not_change_names_with_each_other(root: Client, alice: Person) -> None:
    """Two projects would have the same name for a moment."""
    owner = alice.project.organization
    rows = [alice.project, Project.objects.create(organization=owner, name="second")]
    form = {
        "name": owner.name,
        "time_zone": "UTC",
        "is_active": "on",
        "projects-TOTAL_FORMS": 2,
        "projects-INITIAL_FORMS": 2,
    }
    form |= {"members-TOTAL_FORMS": 0, "members-INITIAL_FORMS": 0}
    for number, (row, other) in enumerate([rows, rows[::-1]]):
        form |= {
            f"projects-{number}-{name}": value
            for name, value in (("id", row.pk), ("organization", owner.pk), ("name", other.name))
        }
    assert "already exists" in text(root.post(page(owner), form))
    form |= {"projects-0-name": "first", "projects-1-name": "another"}
    assert root.post(page(owner), form).status_code == 302


def test_every_page_forbids_scripts_that_stand_in_a_page(root: Client) -> None:
    for path in ("/", "/docs", "/admin/", "/nothing"):
        policy = root.get(path).headers["content-security-policy"]
        scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "unsafe-inline" not in scripts
        assert "frame-ancestors 'none'" in policy


def test_changes_need_the_forms_token(alice: Person) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    assert (
        client.post(
            "/admin/accounts/apikey/", {"action": "revoke_selected", "_selected_action": [alice.api_key.pk]}
        ).status_code
        == 403
    )
    assert look_up(alice.key)
