"""The operator's pages about credit, discounts and limits."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.contrib.admin import site
from django.core.exceptions import BadRequest
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from tests.admin_pages import text
from tests.cast import Person, admit, run
from usage.books import corrections, credit, prices
from usage.books.credit import Note
from usage.formatting import usd
from usage.models import Budget, BudgetLimit, Credit, Discount, LedgerEntry
from usage.pages.budget_admin import CreditAdmin
from usage.pages.forms import NewLimitForm
from usage.verification import verify


def test_grants_are_in_the_ledger_with_their_reason(root: Client, alice: Person) -> None:
    entry, _ = credit.grant(
        alice.project.organization, 1_500_000_000, Note("<b>invoice</b> 17", "alice", "pay_1")
    )
    assert "-$1.50" in text(root.get("/admin/usage/ledgerentry/"))
    page = root.get(f"/admin/usage/ledgerentry/{entry.pk}/change/")
    assert "&lt;b&gt;invoice&lt;/b&gt; 17" in page.content.decode()
    assert "pay_1" in text(page)


def test_a_long_list_links_the_pages_that_there_are(root: Client, alice: Person) -> None:
    def links(page: int) -> list[str]:
        return re.findall(
            r">(Previous|Next)<", root.get(f"/admin/usage/ledgerentry/?p={page}").content.decode()
        )

    credit.grant(alice.project.organization, 1, Note("invoice", "alice"))
    assert links(1) == []
    for _ in range(60):
        credit.grant(alice.project.organization, 1, Note("invoice", "alice"))
    assert [links(page) for page in (1, 2, 3)] == [["Next"], ["Previous", "Next"], ["Previous"]]


def test_a_generation_shows_its_corrections(root: Client, alice: Person) -> None:
    generation = run(alice)
    corrections.correct(LedgerEntry.objects.get().pk, -40_000, Note("cut off", "alice"))
    assert "-$0.00004" in text(root.get(f"/admin/usage/generation/{generation.pk}/change/"))


def test_credit_is_required_by_a_tick_and_moved_by_nobody(root: Client, alice: Person) -> None:
    organization = alice.project.organization
    credit.grant(organization, 1_000_000_000, Note("invoice", "alice"))
    run(alice)
    shown = text(root.get("/admin/usage/credit/"))
    assert "$1.00" in shown
    assert "$0.99976" in shown
    page = f"/admin/usage/credit/{organization.pk}/change/"
    assert root.post(page, {"is_required": "on", "credited_nanodollars": "5"}).status_code == 302
    row = Credit.objects.get()
    assert (row.is_required, row.credited_nanodollars) == (True, 1_000_000_000)
    assert root.post(f"/admin/usage/credit/{organization.pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("is_required", [True, False])
def test_a_grant_while_someone_ticks_is_not_undone(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch, is_required: bool
) -> None:
    organization = alice.project.organization
    credit.grant(organization, 1_000_000_000, Note("invoice 1", "alice"))
    credit.require(organization, not is_required)
    read = CreditAdmin.get_object

    def read_and_grant(*args: Any) -> Any:
        row = read(*args)
        credit.grant(organization, 2_000_000_000, Note("invoice 2", "alice", "pay_2"))
        return row

    monkeypatch.setattr(CreditAdmin, "get_object", read_and_grant)
    assert (
        root.post(
            f"/admin/usage/credit/{organization.pk}/change/", {"is_required": "on"} if is_required else {}
        ).status_code
        == 302
    )
    row = Credit.objects.get()
    assert (row.is_required, row.credited_nanodollars) == (is_required, 3_000_000_000)
    assert list(verify().differences) == []
    assert AuditEntry.objects.latest("id").changes == {"is_required": [not is_required, is_required]}


def test_what_is_available_is_the_balance_less_what_runs(root: Client, alice: Person) -> None:
    organization = alice.project.organization
    credit.grant(organization, 1_000_000_000, Note("invoice", "alice"))
    admit(alice)
    balance = credit.balance(organization)
    assert balance.held_nanodollars > 0
    for path in ("", f"{organization.pk}/change/"):
        shown = text(root.get(f"/admin/usage/credit/{path}"))
        assert "Available" in shown
        assert usd(balance.available_nanodollars) in shown


def test_credit_comes_to_be_by_a_grant_only(root: Client, alice: Person) -> None:
    credit.grant(alice.project.organization, 1_000_000_000, Note("invoice", "alice"))
    page = root.get("/admin/usage/credit/").content.decode()
    assert "/admin/usage/credit/add/" not in page
    assert "Grant credit" in page
    assert root.get("/admin/usage/credit/add/").status_code == 403


@pytest.mark.parametrize(("typed", "basis_points"), [("15", 1_500), ("12.5 %", 1_250), ("100", 10_000)])
def test_a_discount_is_given_in_percent_and_never_changed(
    root: Client, alice: Person, typed: str, basis_points: int
) -> None:
    form = {"organization": alice.project.organization_id, "basis_points": typed}
    start = {"effective_from_0": "2026-01-01", "effective_from_1": "00:00"}
    assert "Discount in percent" in text(root.get("/admin/usage/discount/add/"))
    assert root.post("/admin/usage/discount/add/", form | start).status_code == 302
    discount = Discount.objects.get()
    assert discount.basis_points == basis_points
    assert f"{basis_points / 100:g} %" in text(root.get("/admin/usage/discount/"))
    for action in ("change", "delete"):
        sent = {"basis_points": "0", "post": "yes"}
        assert root.post(f"/admin/usage/discount/{discount.pk}/{action}/", sent).status_code == 403


def test_a_discount_that_changes_nothing_is_refused(root: Client, alice: Person) -> None:
    def given(percent: str, day: str) -> str:
        form = {"organization": alice.project.organization_id, "basis_points": percent}
        start = {"effective_from_0": day, "effective_from_1": "00:00"}
        return text(root.post("/admin/usage/discount/add/", form | start, follow=True))

    assert "discount is 0 % at that time already." in given("0", "2026-01-01")
    assert "was added successfully" in given("15", "2026-02-01")
    assert "discount is 15 % at that time already." in given("15", "2026-03-01")
    assert "Discount with this Organization and Effective from already exists." in given("5", "2026-02-01")
    assert "was added successfully" in given("15", "2026-01-01")
    assert "was added successfully" in given("0", "2026-03-01")
    points = Discount.objects.order_by("effective_from").values_list("basis_points", flat=True)
    assert list(points) == [1_500, 1_500, 0]


def test_the_same_discount_that_another_person_saved_meanwhile_is_not_saved_again(
    rf: RequestFactory, alice: Person
) -> None:
    owner, now = alice.project.organization, timezone.now()
    assert prices.add_discount(Discount(organization=owner, effective_from=now, basis_points=1_500))
    same = Discount(organization=owner, effective_from=now + timedelta(days=1), basis_points=1_500)
    with pytest.raises(BadRequest, match="conflicts with a change"):
        site.get_model_admin(Discount).save_model(rf.post("/"), same, form=None, change=False)
    assert Discount.objects.count() == 1


@pytest.mark.parametrize("typed", ["100.01", "-1", "12.345", "a tenth", "NaN", "1e9", ""])
def test_a_discount_is_at_most_all_and_has_two_decimals(root: Client, alice: Person, typed: str) -> None:
    form = {
        "organization": alice.project.organization_id,
        "basis_points": typed,
        "effective_from_0": "2026-01-01",
        "effective_from_1": "0:00",
    }
    assert root.post("/admin/usage/discount/add/", form).status_code == 200
    assert not Discount.objects.exists()


def test_a_discount_begins_in_a_year_that_every_time_zone_has(root: Client, alice: Person) -> None:
    form = {"organization": alice.project.organization_id, "basis_points": "15"}
    start = {"effective_from_0": "9999-12-31", "effective_from_1": "23:30"}
    shown = text(root.post("/admin/usage/discount/add/", form | start))
    assert "Choose a year from 1000 to 8999." in shown
    assert not Discount.objects.exists()


@pytest.mark.parametrize("has_row", [False, True])
def test_an_amount_that_can_not_be_read_is_the_only_mistake(
    root: Client, alice: Person, has_row: bool
) -> None:
    form = {"project": alice.project.pk, "period": "day"}
    path = "/admin/usage/budgetlimit/add/"
    if has_row:
        row = BudgetLimit.objects.create(
            scope="project", scope_id=alice.project.pk, period="day", limit_nanodollars=5
        )
        path = f"/admin/usage/budgetlimit/{row.pk}/change/"
    shown = text(root.post(path, form | {"limit_nanodollars": "abc"}))
    assert "&#x27;abc&#x27; is not an amount of US dollars" in shown
    assert "Give a limit" not in shown


@pytest.mark.parametrize(
    ("scope", "name"),
    [("organization", "Acme"), ("project", "Acme / default"), ("key", "Acme / default / alice")],
)
def test_a_limit_is_called_by_its_owners_name(root: Client, alice: Person, scope: str, name: str) -> None:
    owner = {"organization": alice.project.organization, "project": alice.project, "key": alice.api_key}[
        scope
    ]
    chosen = {"api_key" if scope == "key" else scope: owner.pk, "period": "day", "limit_nanodollars": "5"}
    page = root.post("/admin/usage/budgetlimit/add/", chosen, follow=True)
    assert f"{name}, day" in text(page)
    assert AuditEntry.objects.get(object_type="usage.budgetlimit").object_name == f"{name}, day"
    assert str(BudgetLimit(scope=scope, scope_id=0, period="day")) == f"{scope} 0, day"


def test_a_list_of_limits_asks_no_more_for_more_of_them(root: Client, alice: Person) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            root.get("/admin/usage/budgetlimit/")
        return len(found)

    BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period="day", limit_nanodollars=5)
    few = queries()
    for period in ("month", "ever"):
        BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period=period, limit_nanodollars=5)
    assert queries() == few


def test_a_limit_may_be_soft_only(root: Client, alice: Person) -> None:
    add = "/admin/usage/budgetlimit/add/"
    form = {"project": alice.project.pk, "period": "day"}
    assert "Enter at least one of the two amounts." in text(root.post(add, form))
    assert root.post(add, form | {"soft_limit_nanodollars": "0.0001"}).status_code == 302
    row = BudgetLimit.objects.get()
    assert (row.limit_nanodollars, row.soft_limit_nanodollars) == (None, 100_000)
    run(alice)
    assert Budget.objects.filter(soft_limit_reached_at__isnull=False).count() == 1
    assert "Acme / default" in text(root.get("/admin/usage/budget/?soft_limit_reached_at__isempty=0"))


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_limit_that_two_people_save_at_once_is_saved_once(
    transactional_db: None, root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_checked, check = Barrier(2), NewLimitForm.clean

    def check_together(form: NewLimitForm) -> dict[str, Any]:
        data = check(form)
        have_checked.wait(10)
        return data

    def save(_: int) -> int:
        limit = {"organization": alice.project.organization_id, "period": "day", "limit_nanodollars": "5"}
        try:
            return root.post("/admin/usage/budgetlimit/add/", limit).status_code
        finally:
            connection.close()

    monkeypatch.setattr(NewLimitForm, "clean", check_together)
    with ThreadPoolExecutor(2) as people:
        assert sorted(people.map(save, range(2))) == [302, 400]
    assert BudgetLimit.objects.count() == 1
