"""What organizations, projects and keys spent, in their lists: the ledger's sums of 30 days."""

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Sum
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import APIKey, Member, Organization, Project, Role
from chatapi import identity
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.usage.billing_months import FIRST_PRICE, keys_of, use
from usage import formatting
from usage.books import corrections, prices
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.models import Kind, LedgerEntry
from usage.rollups import closing

LISTS = {"organization": Organization, "project": Project, "apikey": APIKey}
SCOPES = {"organization": "organization", "project": "project", "apikey": "api_key"}
MOST_QUERIES = 12


@pytest.fixture(params=[False, True], ids=["open days", "closed days"])
def spenders(request: Any, monkeypatch: pytest.MonkeyPatch, root: Client) -> list[APIKey]:
    """Let keys of two organizations spend on several days, of which one is too long ago, and correct one."""
    chance, now = random.Random(1), database_now()
    Organization.objects.update(created_at=now - timedelta(days=90))
    for model in ("small", "large"):
        prices.change(model, FIRST_PRICE, now - timedelta(days=90))
    found = [*keys_of("Spender Co"), *keys_of("Other Co")]
    for number, key in enumerate(found[:3]):
        for days_ago in (40, 29, 2, 0):
            moment = now - timedelta(days=days_ago, seconds=1)
            # Ids are UUIDv7, which begin with their time.
            begun = int(moment.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62
            monkeypatch.setattr(
                identity, "new_id", lambda begun=begun: UUID(int=begun | chance.getrandbits(62))
            )
            use(chance, key, moment, completion=1_000 * number + days_ago + 1)
    monkeypatch.undo()
    charge = LedgerEntry.objects.filter(api_key=found[0], kind=Kind.CHARGE).latest("created_at")
    corrections.correct(charge.pk, -1_000, Note("too much", "test"))
    if request.param:
        while closing.close_next():
            pass
    return found


def in_ledger(**owner: Any) -> int:
    """Return what the ledger has of the last 30 UTC days."""
    first_day = database_now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=29)
    entries = LedgerEntry.objects.filter(created_at__gte=first_day, **owner)
    return entries.aggregate(sum=Sum("amount_nanodollars", default=0))["sum"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_says_what_the_ledger_says(root: Client, spenders: list[APIKey], name: str) -> None:
    page = root.get(f"/admin/accounts/{name}/").content.decode()
    shown = [part.partition("</tr>")[0] for part in page.split('class="data-row')[1:]]
    rows = LISTS[name]._default_manager.all()
    assert len(shown) == len(rows) >= 2
    sums = [formatting.usd(in_ledger(**{SCOPES[name]: row})) for row in rows]
    assert len(set(sums)) >= 2
    found = [line.partition("field-spent")[2].partition('title="')[2].partition('"')[0] for line in shown]
    assert sorted(found) == sorted(sums)


def test_the_console_says_what_projects_spent(spenders: list[APIKey]) -> None:
    organization = spenders[0].project.organization
    user = User.objects.create_user("vic")
    Member.objects.create(organization=organization, user=user, role=Role.VIEWER)
    page = client_of(user).get(f"/console/{organization.pk}/settings").content.decode()
    _, _, page = page.partition('id="projects"')
    for project in organization.projects.all():
        _, _, row = page.partition(f'?project={project.pk}">')
        assert f'title="{formatting.usd(in_ledger(project=project))}"' in row.partition("</tr>")[0]


@pytest.mark.parametrize("name", LISTS)
def test_a_full_page_costs_no_more_queries(
    root: Client, alice: Person, name: str, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(30):
        keys_of(f"Org {number}")
    root.get(f"/admin/accounts/{name}/")
    with django_assert_max_num_queries(MOST_QUERIES):
        assert "Spent, 30 days" in text(root.get(f"/admin/accounts/{name}/"))


@pytest.mark.parametrize("name", ["organization", "project"])
def test_staff_without_the_right_to_see_usage_sees_no_amounts(alice: Person, name: str) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename=f"view_{name}"))
    assert "Spent" not in text(client_of(clerk).get(f"/admin/accounts/{name}/"))


def test_the_console_shows_such_staff_no_amounts(spenders: list[APIKey]) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename="view_organization"))
    organization = spenders[0].project.organization
    page = text(client_of(clerk).get(f"/console/{organization.pk}/settings"))
    assert spenders[0].project.name in page
    assert "30 days" not in page
