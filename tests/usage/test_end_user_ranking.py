"""The end users that spent most: the ledger's sums, from a bounded number of rows."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count, Q, Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import EndUser, Project
from tests.admin_pages import client_of
from tests.cast import Person, run
from tests.usage.conftest import plan
from usage import insights
from usage.books import corrections
from usage.books.credit import Note
from usage.database.clock import database_now, hour_of
from usage.insights import Filters, Range, end_user_ranking, generation_list
from usage.models import DailyEndUserUsage, Kind, LedgerEntry, MonthlyEndUserUsage
from usage.pricing import Tokens
from usage.rollups import rebuild
from usage.verification.sum_checks import end_users_months_are_their_days

pytestmark = pytest.mark.django_db

NUMBER = 12
"""More than have their own colour."""


@pytest.fixture
def used(alice: Person) -> Client:
    """Return a person of a project whose end users each spent more than the one before."""
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    for number in range(NUMBER):
        run(alice, end_user=f"user {number}", tokens=Tokens(1_000 * (number + 1), 100))
    run(alice, end_user="user 3", model="large")
    run(alice)
    return client_of(alice.user)


def month() -> Range:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return Range.between(today.replace(day=1), today + timedelta(days=1), "day")


def of_ledger(project: Project) -> dict[str, tuple[int, int]]:
    """Return the requests and the amount of each end user."""
    names = dict(EndUser.objects.values_list("pk", "name"))
    rows = LedgerEntry.objects.filter(project_id=project.pk, end_user_id__isnull=False).order_by()
    sums = rows.values_list("end_user_id").annotate(
        requests=Count("id", filter=Q(kind=Kind.CHARGE)), amount=Sum("amount_nanodollars")
    )
    return {names[end_user_id]: (requests, amount) for end_user_id, requests, amount in sums}


@pytest.mark.parametrize("is_month", [True, False])
def test_the_largest_are_those_of_the_ledger(used: Client, alice: Person, is_month: bool) -> None:
    correct_the_largest()
    over = month() if is_month else Range.last(2, database_now(), bucket="day")
    rows = insights.top(over, "end_user", Filters(project_id=alice.project.pk), NUMBER)
    found = [(row.label, (row.totals.requests, row.totals.amount_nanodollars)) for row in rows]
    assert dict(found) == of_ledger(alice.project)
    assert [sums[1] for _, sums in found] == sorted((sums[1] for _, sums in found), reverse=True)


@pytest.mark.parametrize("group", ["model", "key", "outcome"])
def test_beside_another_group_the_largest_are_those_of_the_days(
    used: Client, alice: Person, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setattr(generation_list, "SEARCHED", 2)
    page = used.get(f"{reverse('admin:index')}?days=1&project={alice.project.pk}&group={group}")
    (largest, *_) = dict(page.context["spenders"])["Top end users"]
    assert largest.label == f"user {NUMBER - 1}"


def correct_the_largest() -> None:
    """Take back most of what the largest spent."""
    charges = LedgerEntry.objects.filter(kind=Kind.CHARGE, end_user_id__isnull=False)
    largest = charges.order_by("-amount_nanodollars")[0]
    corrections.correct(largest.pk, 1 - largest.amount_nanodollars, Note("garbled", "alice"))


def test_the_chart_has_all_other_requests_as_one_group(used: Client, alice: Person) -> None:
    points = insights.series(month(), "end_user", Filters(project_id=alice.project.pk))
    by_group: dict[Any, int] = defaultdict(int)
    for point in points:
        by_group[point.group_label] += point.totals.amount_nanodollars
    assert len(by_group) == 9
    whole = LedgerEntry.objects.filter(project_id=alice.project.pk).aggregate(all=Sum("amount_nanodollars"))
    assert sum(by_group.values()) == whole["all"]
    own = {name: amount for name, (_, amount) in of_ledger(alice.project).items() if name in by_group}
    assert own == {name: amount for name, amount in by_group.items() if name != "other"}


def test_months_follow_their_days(used: Client, alice: Person) -> None:
    def months() -> dict[Any, Any]:
        rows = MonthlyEndUserUsage.objects.values_list(
            "month", "end_user_id", "requests", "amount_nanodollars"
        )
        return {row[:2]: row[2:] for row in rows}

    def days() -> dict[Any, Any]:
        sums: dict[Any, Any] = {}
        for row in DailyEndUserUsage.objects.all():
            key = (row.day.replace(day=1), row.end_user_id)
            requests, amount = sums.get(key, (0, 0))
            sums[key] = (requests + row.requests, amount + row.amount_nanodollars)
        return sums

    assert months() == days() != {}
    rebuild()
    assert months() == days() != {}
    for since in (None, database_now()):
        assert list(end_users_months_are_their_days(since)) == []
    MonthlyEndUserUsage.objects.filter(requests=2).update(requests=1)
    for since in (None, database_now()):
        (wrong,) = end_users_months_are_their_days(since)
        assert "end users of project" in str(wrong)
    rebuild()
    DailyEndUserUsage.objects.all().delete()
    assert set(months().values()) == {(0, 0)}


@pytest.mark.parametrize(
    ("query", "param"),
    [({"days": "2"}, "Days"), ({"start": "the day before"}, "From"), ({"model": "small"}, "From")],
)
def test_too_many_end_users_have_an_order_by_month_only(
    used: Client, monkeypatch: pytest.MonkeyPatch, query: dict[str, str], param: str
) -> None:
    monkeypatch.setattr(end_user_ranking, "MAX_ROWS", NUMBER)
    over = month()
    this_month = {"start": f"{over.start:%Y-%m-%d}", "end": f"{over.end - timedelta(days=1):%Y-%m-%d}"}
    if "start" in query:
        query = {"start": f"{over.start - timedelta(days=1):%Y-%m-%d}"}
    elif "model" in query:
        query = this_month | query
    url = reverse("admin:index")
    refused = used.get(url, {"group": "end_user", **query})
    assert (refused.status_code, f"{param}: Too many end users" in refused.text) == (400, True)
    assert used.get(url + "overview.csv", {"group": "end_user", **query}).status_code == 400
    assert used.get(url, {"group": "end_user", **this_month}).status_code == 200
    assert used.get(url, {"end_user": "user 1", **query}).status_code == 200
    project = used.get(url, {"project": str(Project.objects.get(counts_end_users=True).pk), **query})
    assert "Top end users" not in [title for title, _ in project.context["spenders"]]


@pytest.mark.parametrize("time_zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_the_page_has_links_to_ranges_of_utc(
    used: Client, monkeypatch: pytest.MonkeyPatch, time_zone: str
) -> None:
    # In Tokyo, the next month has begun.
    now = month().start - timedelta(hours=6)
    monkeypatch.setattr(timezone, "now", lambda: now)
    page = used.get(reverse("admin:index"), {"group": "end_user", "time_zone": time_zone})
    for choice in page.context["form"].range_links():
        chosen = used.get(choice.url)
        assert chosen.status_code == 200, choice.text
        assert [each.text for each in chosen.context["form"].range_links() if each.is_chosen] == [choice.text]


@pytest.mark.parametrize("time_zone", ["Asia/Tokyo", "America/Los_Angeles"])
def test_the_last_hour_of_another_group_is_the_same_time(used: Client, alice: Person, time_zone: str) -> None:
    page = used.get(reverse("admin:index"), {"project": str(alice.project.pk), "time_zone": time_zone})
    url = next(each.url for each in page.context["form"].range_links() if each.text == "Last hour")
    (by_end_user,) = (
        used.get(choice.url)
        for choice in used.get(url).context["form"].group_links()
        if choice.text == "End user"
    )
    over = by_end_user.context["form"].over
    assert over.start <= hour_of(database_now()) - timedelta(hours=1) < over.end


def test_the_largest_of_a_month_are_the_first_rows_of_an_index(used: Client, alice: Person) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert len(end_user_ranking.largest(month(), alice.project.pk, None)) == NUMBER
    (sql,) = [query["sql"] for query in queries]
    assert "largest_end_users_of_a_month" in (steps := plan(sql))
    assert "TEMP B-TREE" not in steps
