"""Budgets beside their limits: the fullest first, each with what spent it, and nobody sees another's."""

from typing import Any

import pytest
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import Organization
from tests.admin_pages import client_of, shown, text
from tests.cast import Person, run
from usage.models import BudgetLimit


def limit(scope: str, scope_id: int, nanodollars: int, period: str = "month") -> BudgetLimit:
    return BudgetLimit.objects.create(
        scope=scope, scope_id=scope_id, period=period, limit_nanodollars=nanodollars
    )


@pytest.fixture
def limits(alice: Person, charlie: Person) -> dict[str, BudgetLimit]:
    """Spend as much with each of two people, whose budgets have limits of different heights."""
    spent = run(alice).amount_nanodollars
    run(charlie)
    return {
        "half": limit("project", alice.project.pk, 2 * spent),
        "full": limit("key", charlie.api_key.pk, spent, "day"),
        "unspent": limit("key", alice.api_key.pk, 10**15, "ever"),
        "blocks": limit("org_user", alice.project.organization_id, 0),
    }


def listed(client: Client, query: str = "") -> list[Any]:
    return [line.use.limit.pk for line in client.get(f"/admin/budgets/{query}").context["lines"]]


@pytest.mark.parametrize("time_zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_the_fullest_come_first(root: Client, alice: Person, charlie: Person, time_zone: str) -> None:
    Organization.objects.filter(pk=charlie.project.organization_id).update(time_zone=time_zone)
    spent = run(alice).amount_nanodollars
    run(charlie)
    rows = [
        limit("key", charlie.api_key.pk, spent, "day"),
        limit("project", alice.project.pk, 2 * spent),
        limit("key", alice.api_key.pk, 4 * spent, "week"),
        limit("key", alice.api_key.pk, 10**15, "ever"),
    ]
    assert listed(root) == [row.pk for row in rows]
    (full, half, quarter, _) = root.get("/admin/budgets/").context["lines"]
    assert (full.full.text, half.full.text, quarter.full.text) == ("100 %, reached", "50 %", "25 %")
    assert full.use.posted_nanodollars == spent


def test_the_list_is_narrowed(root: Client, limits: dict[str, BudgetLimit], alice: Person) -> None:
    own = alice.project.organization_id
    assert set(listed(root, f"?organization={own}")) == {
        limits[name].pk for name in ("half", "unspent", "blocks")
    }
    assert set(listed(root, "?kind=key")) == {limits["full"].pk, limits["unspent"].pk}
    assert listed(root, "?kind=end user") == [limits["blocks"].pk]
    for wrong in ("?kind=planet", "?page=0", "?page=21", "?organization=nobody"):
        assert root.get(f"/admin/budgets/{wrong}").status_code == 400, wrong


def test_members_see_their_organizations_budgets(
    limits: dict[str, BudgetLimit], alice: Person, charlie: Person
) -> None:
    client = client_of(charlie.user)
    assert listed(client) == [limits["full"].pk]
    assert client.get(f"/admin/budgets/{limits['half'].pk}").status_code == 404


def test_a_budgets_page_says_which_keys_spent_it(
    root: Client, limits: dict[str, BudgetLimit], alice: Person
) -> None:
    page = root.get(f"/admin/budgets/{limits['half'].pk}")
    tables = dict(page.context["tables"])
    (key,) = tables["By key"]
    assert (key.label, key.totals.requests, key.share) == (str(alice.api_key), 1, "100.00%")
    assert len(root.get(key.url).context["page"].rows) == 1
    assert "Change the limit" in shown(page)
    assert "Limit each month" in shown(root.get(f"/admin/budgets/{limits['blocks'].pk}"))


@pytest.mark.parametrize("period", ["month", "week"])
@pytest.mark.parametrize("path", ["/admin/budgets/", "/console/{}/budgets"])
def test_a_warning_that_was_raised_beyond_what_is_spent_is_not_reached(
    root: Client, alice: Person, path: str, period: str
) -> None:
    row = BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period=period, soft_limit_nanodollars=1
    )
    spent, path = run(alice).amount_nanodollars, path.format(alice.project.organization_id)
    for amount, is_reached in ((spent, True), (spent + 1, False)):
        BudgetLimit.objects.update(soft_limit_nanodollars=amount)
        for page in (path, f"{path.removesuffix('/')}/{row.pk}"):
            warning = text(root.get(page)).partition("Warning at")[2]
            assert ("reached" in warning) is is_reached, (page, amount)


def test_without_limits_the_list_says_what_that_means(root: Client, alice: Person) -> None:
    assert "never refused for what they cost" in shown(root.get("/admin/budgets/"))
