"""The admin's page of one organization: new and full, and the people that may see it."""

import random
import re
from html import unescape

import pytest
from django.test import Client

from accounts.models import APIKey, EndUser, Organization, RateLimit
from chatapi.pages import organization_page
from tests.admin_pages import client_of, shown
from tests.cast import Person, run
from tests.usage.billing_months import START, close_all, set_clock, set_prices, use
from usage.books import credit
from usage.books.credit import Note
from usage.database.clock import database_now, local_day
from usage.formatting import amount
from usage.models import BudgetLimit, Statement


def url(person: Person) -> str:
    return f"/admin/organizations/{person.project.organization_id}"


def test_it_shows_spend_limits_keys_and_credit(root: Client, alice: Person) -> None:
    organization = alice.project.organization
    spent = run(alice).amount_nanodollars
    credit.grant(organization, 10**9, Note("invoice 7", "the tests"))
    limit = BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period="month", limit_nanodollars=2 * spent
    )
    RateLimit.objects.create(project=alice.project, requests_per_minute=60)
    page = root.get(url(alice))
    context, text = page.context, shown(page)
    (line,) = context["projects"]
    assert (line.spent_nanodollars, line.limit) == (spent, limit)
    assert line.limit_url == f"/admin/budgets/{limit.pk}"
    assert [(key.pk, key.spent_nanodollars) for key, _ in context["keys"]] == [(alice.api_key.pk, spent)]
    assert context["balance"].available_nanodollars == 10**9 - spent
    assert [each.name for each in context["lines"]] == [alice.project.name]
    assert "60 requests per minute" in text
    assert "limits nothing" in text
    assert context["next_step"] is None
    assert sum(layer.values[-1] or 0 for layer in context["trend"].layers) == spent


def test_many_limits_of_end_users_hide_no_other(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organization_page, "_MAX_LIMITS", 3)
    owners = {"key": alice.api_key, "organization": alice.project.organization, "project": alice.project}
    for name in ("ann", "ben"):
        person = EndUser.objects.create(project=alice.project, name=name)
        BudgetLimit.objects.create(scope="end_user", scope_id=person.pk, period="month", limit_nanodollars=1)
    for scope, row in owners.items():
        BudgetLimit.objects.create(scope=scope, scope_id=row.pk, period="month", limit_nanodollars=1)
    page = root.get(url(alice))
    assert {line.use.limit.scope for line in page.context["lines"]} == owners.keys()
    (project,) = page.context["projects"]
    assert project.limit is not None


def test_the_month_of_a_project_is_not_hidden_by_its_other_limits(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organization_page, "_MAX_LIMITS", 1)
    for period in ("day", "month"):
        BudgetLimit.objects.create(
            scope="project", scope_id=alice.project.pk, period=period, limit_nanodollars=1
        )
    (project,) = root.get(url(alice)).context["projects"]
    assert project.limit == BudgetLimit.objects.get(period="month")


def test_what_was_spent_this_month_leads_to_the_months_sums(root: Client, alice: Person) -> None:
    Organization.objects.update(time_zone="Pacific/Kiritimati")
    limit = BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period="month", limit_nanodollars=1
    )
    month = local_day(database_now(), "Pacific/Kiritimati").replace(day=1)
    urls = [
        *re.findall(r'href="(/admin/\?[^"]*start=[^"]*)"', root.get(url(alice)).text),
        root.get(f"/admin/budgets/{limit.pk}").context["overview_url"],
    ]
    assert len(urls) == 3
    for each in urls:
        over = root.get(unescape(each)).context["form"].over
        assert over.start.isoformat() == f"{month}T00:00:00+14:00", each


def test_it_lists_the_newest_statements(
    root: Client, alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    chance = random.Random(1)
    set_prices(chance, [alice.api_key])
    for key, completion in ((alice.api_key, 100), (charlie.api_key, 300)):
        use(chance, key, START, completion=completion)
    close_all()
    statement = Statement.objects.filter(organization=alice.project.organization_id).order_by("month")[0]
    page = root.get(url(alice))
    assert statement in [row for row, _ in page.context["statements"]]
    text = shown(page).partition("All statements")[2]
    charged = amount(statement.charged_nanodollars).rstrip("0")  # the page keeps the zeros apart
    assert f"January 2026 {charged}" in text
    assert statement.charged_nanodollars > 0


def test_a_new_organization_leads_to_its_first_key(root: Client) -> None:
    sent = {"name": "Newcomer", "time_zone": "UTC", "is_active": "on", "project": "website"}
    page = root.post("/admin/accounts/organization/add/", sent, follow=True)
    row = Organization.objects.get(name="Newcomer")
    assert page.redirect_chain[-1][0] == f"/admin/organizations/{row.pk}"
    assert [each.name for each in row.projects.all()] == ["website"]
    step = page.context["next_step"]
    assert (step.label, step.url.partition("?")[2]) == ("New API key", f"project={row.projects.get().pk}")
    wrong = root.post("/admin/accounts/organization/add/", sent | {"name": "Other", "project": "a/b"})
    assert wrong.status_code == 200
    assert not Organization.objects.filter(name="Other").exists()


def test_without_a_project_that_is_the_first_step(root: Client) -> None:
    row = Organization.objects.create(name="Empty")
    page = root.get(f"/admin/organizations/{row.pk}")
    assert page.context["next_step"].label == "New project"
    assert "No projects yet." in shown(page)


def test_members_see_their_own_without_the_operators_actions(alice: Person, charlie: Person) -> None:
    client = client_of(alice.user)
    text = shown(client.get(url(alice)))
    assert "Grant credit" not in text
    assert "charlie" not in text
    assert client.get(url(charlie)).status_code == 404
    assert client.get("/admin/organizations/999999999").status_code == 404


def test_names_of_others_keys_are_nowhere(root: Client, alice: Person, charlie: Person) -> None:
    run(charlie)
    names = [key.name for key, _ in root.get(url(alice)).context["keys"]]
    assert names == [APIKey.objects.get(pk=alice.api_key.pk).name]


def test_the_heading_has_the_name_as_it_is(root: Client, alice: Person) -> None:
    Organization.objects.filter(pk=alice.project.organization_id).update(name="openings ltd")
    heading = re.search(r"<h1.*?</h1>", root.get(url(alice)).content.decode(), re.DOTALL)
    assert heading
    assert re.sub(r"<[^>]*>|\s+", " ", heading[0]).strip() == "openings ltd"


def test_its_form_labels_the_day_of_a_member_with_one_word(root: Client, alice: Person) -> None:
    page = root.get(f"/admin/accounts/organization/{alice.project.organization_id}/change/").content.decode()
    (cell,) = re.findall(r"<td[^>]* field-created .*?</td>", page, re.DOTALL)
    assert 'data-label="Created"' in cell
    assert re.search(r">\s*\d{4}-\d\d-\d\d \d\d:\d\d\s*<", cell)
