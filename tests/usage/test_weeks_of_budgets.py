"""Budgets of weeks: the sum of an owner's days from Monday on, which no two requests overspend."""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, limit, run
from tests.usage.simultaneous import admit_at_once
from usage.books import corrections, ledger, spending
from usage.books.credit import Note
from usage.books.weeks import days_of_week
from usage.database.sql import fetch_all
from usage.errors import BudgetExceeded
from usage.insights import budgets_near_limit
from usage.models import Budget, BudgetLimit, Event, Generation, LedgerEntry, Period
from usage.models.budget_keys import BudgetKey
from usage.notifications import watch
from usage.verification import verify
from usage.verification.sum_checks import over_limit

Ask = Callable[..., ledger.Admission]
HELD = 50_000
MONDAY = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)


def admitted(now: datetime, *admissions: ledger.Admission) -> list[bool]:
    results = ledger.admit(now, admissions)
    return [isinstance(result, UUID) for result in results]


def spend(now: datetime, admission: ledger.Admission) -> None:
    """Spend 50,000 n$."""
    assert admitted(now, admission) == [True]
    ledger.settle(now, [completed(run(admission, now))])


@given(st.dates(date(1970, 1, 5), date(2200, 1, 1)))
def test_a_week_begins_on_monday_and_has_seven_days(day: date) -> None:
    start = Period.WEEK.start(day)
    assert start.isoweekday() == 1
    assert timedelta(0) <= day - start < timedelta(days=7)
    assert Period.WEEK.end(start) == start + timedelta(days=7)
    key = BudgetKey("key", 7, "week", start)
    days = [BudgetKey.parse(each).period_start for each in key.row_ids]
    assert days == [start + timedelta(days=number) for number in range(7)]


class TestDaysOfWeeks(TestCase):
    """The database's weeks are the calendar's."""

    @given(st.dates(date(1970, 1, 5), date(2200, 1, 1)), st.integers(-10, 10))
    def test_a_day_is_in_the_same_weeks_for_the_database(self, day: date, distance: int) -> None:
        other = day + timedelta(days=distance)
        columns = "'key' AS scope, 7 AS scope_id, 'day' AS period"
        found = fetch_all(
            f"""SELECT 1 FROM (SELECT {columns}, DATE('{day}') AS period_start) AS b
            JOIN (SELECT {columns}, DATE('{other}') AS period_start) AS d ON {days_of_week()}"""
        )
        assert bool(found) == (Period.WEEK.start(day) == Period.WEEK.start(other))


def test_the_days_of_a_week_share_its_limit_and_the_next_week_has_a_new_one(key: APIKey, ask: Ask) -> None:
    limit("project", key.project_id, "week", 2 * HELD)
    spend(MONDAY, ask())
    assert admitted(MONDAY + timedelta(days=3), ask()) == [True]
    (refused,) = ledger.admit(MONDAY + timedelta(days=6, hours=23), [ask()])
    assert isinstance(refused, BudgetExceeded)
    assert refused.budget == BudgetKey("project", key.project_id, "week", MONDAY.date())
    assert refused.budget.resets_on == date(2026, 11, 23)
    assert (refused.left_nanodollars, refused.is_in_flight) == (HELD, True)
    assert admitted(MONDAY + timedelta(days=7), ask()) == [True]


def test_a_limit_counts_what_was_spent_before_it_was_set(key: APIKey, ask: Ask) -> None:
    spend(MONDAY - timedelta(days=1), ask())
    spend(MONDAY, ask())
    limit("key", key.pk, "week", 2 * HELD - 1)
    (refused,) = ledger.admit(MONDAY + timedelta(days=1), [ask()])
    assert isinstance(refused, BudgetExceeded)
    assert (refused.left_nanodollars, refused.is_in_flight) == (HELD - 1, False)


@pytest.mark.parametrize(
    "time_zone", ["Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "Asia/Kolkata"]
)
def test_a_week_begins_at_midnight_in_the_organizations_time_zone(
    key: APIKey, ask: Ask, time_zone: str
) -> None:
    limit("organization", key.project.organization_id, "week", HELD)
    midnight = datetime(2026, 11, 16, tzinfo=ZoneInfo(time_zone)).astimezone(UTC)
    assert admitted(midnight - timedelta(seconds=1), ask(time_zone=time_zone)) == [True]
    assert admitted(midnight - timedelta(seconds=1), ask(time_zone=time_zone)) == [False]
    assert admitted(midnight, ask(time_zone=time_zone)) == [True]
    assert admitted(midnight + timedelta(days=7, seconds=-1), ask(time_zone=time_zone)) == [False]


@pytest.mark.parametrize(
    ("monday", "hours"), [(date(2026, 10, 19), 169), (date(2026, 3, 23), 167), (date(2026, 11, 2), 168)]
)
def test_the_week_in_which_the_clocks_change_is_an_hour_longer_or_shorter(
    key: APIKey, ask: Ask, monday: date, hours: int
) -> None:
    zone = "Europe/Berlin"
    limit("key", key.pk, "week", HELD)
    begin = datetime(monday.year, monday.month, monday.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    end = begin + timedelta(hours=hours)
    assert admitted(begin, ask(time_zone=zone)) == [True]
    assert admitted(end - timedelta(seconds=1), ask(time_zone=zone)) == [False]
    assert admitted(end, ask(time_zone=zone)) == [True]


def test_one_batch_with_two_days_of_a_week_shares_its_limit(key: APIKey, ask: Ask) -> None:
    # The organization has moved to another time zone, and a process has cached the old one.
    limit("key", key.pk, "week", 2 * HELD)
    early, late = {"time_zone": "Etc/GMT+12"}, {"time_zone": "Pacific/Kiritimati"}
    spend(MONDAY, ask(time_zone="UTC"))
    now = MONDAY + timedelta(days=2, hours=11)
    assert admitted(now, ask(**early), ask(**late)) == [True, False]
    assert len(set(Generation.objects.values_list("budget_day", flat=True))) == 2


def test_of_a_crowd_as_many_pass_as_fit(key: APIKey, ask: Ask) -> None:
    limit("organization", key.project.organization_id, "week", 3 * HELD)
    assert admitted(NOW, *(ask() for _ in range(20))) == [True] * 3 + [False] * 17
    assert verify().differences == []


def test_a_request_costs_the_same_statements_until_a_week_is_limited(key: APIKey, ask: Ask) -> None:
    def statements() -> list[int]:
        found = []
        admission = ask()
        with CaptureQueriesContext(connection) as queries:
            ledger.admit(NOW, [admission])
        found.append(len(queries))
        settlement = completed(run(admission))
        with CaptureQueriesContext(connection) as queries:
            ledger.settle(NOW, [settlement])
        return [*found, len(queries)]

    limit("organization", key.project.organization_id, "month", 10**12)
    statements()
    usual = statements()
    locked = list(Budget.objects.values_list("id", flat=True))
    assert len(locked) == 9
    limit("organization", key.project.organization_id, "week", 10**12)
    admit, settle = statements()
    # The weeks that a settlement has posted to are read.
    assert [admit, settle] == [usual[0], usual[1] + 1]
    assert list(Budget.objects.values_list("id", flat=True)) == locked


def events() -> list[str]:
    return sorted(f"{each.subject} {each.period} {each.threshold}" for each in Event.objects.all())


def test_each_threshold_is_one_event_of_a_week(key: APIKey, ask: Ask) -> None:
    BudgetLimit.objects.create(
        scope="key",
        scope_id=key.pk,
        period="week",
        limit_nanodollars=4 * HELD,
        soft_limit_nanodollars=3 * HELD,
    )
    subject = f"key/{key.pk}/week"
    spend(MONDAY, ask())
    assert events() == []
    spend(MONDAY + timedelta(days=1), ask())
    assert events() == [f"{subject} 2026-11-16 50"]
    spend(MONDAY + timedelta(days=2), ask())
    assert events() == [f"{subject} 2026-11-16 50", f"{subject} 2026-11-16 warning"]
    spend(MONDAY + timedelta(days=6), ask())
    assert len(events()) == 4
    assert Event.objects.get(threshold="100").data["spent_usd"] == "0.0002"
    spend(MONDAY + timedelta(days=7), ask())
    assert len(events()) == 4


def test_a_batch_that_posts_to_two_days_crosses_a_threshold_once(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "week", 4 * HELD)
    first, second = ask(), ask()
    midnight = MONDAY + timedelta(days=1)
    ledger.admit(midnight - timedelta(seconds=1), [first])
    ledger.admit(midnight, [second])
    ledger.settle(midnight, [completed(run(each, midnight)) for each in (first, second)])
    assert events() == [f"key/{key.pk}/week 2026-11-16 50"]


def test_a_correction_counts_in_the_week_of_its_charge(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "week", 2 * HELD)
    spend(MONDAY, ask(max_output_tokens=20))
    entry = LedgerEntry.objects.get()
    corrections.write(MONDAY + timedelta(days=2), [corrections.Correction(entry, 40_000, "why", "alice")])
    assert [each.split()[-1] for each in events()] == ["50", "80"]
    corrections.write(MONDAY + timedelta(days=40), [corrections.Correction(entry, 40_000, "why", "alice")])
    assert [each.split()[-1] for each in events()] == ["50", "80"]
    assert admitted(MONDAY + timedelta(days=3), ask()) == [False]
    corrections.correct(entry.pk, -130_000, Note("why", "alice"))
    assert admitted(MONDAY + timedelta(days=3), ask()) == [True]


def test_a_limit_that_is_set_late_has_its_events_from_the_next_look(key: APIKey, ask: Ask) -> None:
    for days in (-1, 0, 2):
        spend(MONDAY + timedelta(days=days), ask())
    limit("key", key.pk, "week", 2 * HELD + 1)
    for _ in range(2):
        now = MONDAY + timedelta(days=2)
        watch.write(now, [watch.look(now, find) for find in watch.LOOKS])
    subject = f"key/{key.pk}/week 2026-11-16"
    assert [each for each in events() if "week" in each] == [f"{subject} 50", f"{subject} 80"]


def test_pages_and_the_api_show_what_a_week_has_spent(key: APIKey, ask: Ask) -> None:
    now = datetime.now(UTC)
    limit("key", key.pk, "week", 4 * HELD)
    spend(now, ask())
    assert admitted(now, ask()) == [True]
    (use,) = budgets_near_limit()
    assert (use.posted_nanodollars, use.pending_nanodollars, use.share) == (HELD, HELD, 0.5)
    owners = {"organization_id": key.project.organization_id, "project_id": key.project_id}
    found = spending.now(**owners, api_key_id=key.pk, time_zone="UTC")
    assert [each.key.period for each in found] == list(Period)
    week = found[1]
    assert (week.posted_nanodollars, week.pending_nanodollars) == (HELD, HELD)
    assert week.limit_nanodollars == 4 * HELD


def test_a_week_beyond_its_lowered_limit_is_a_remark(key: APIKey, ask: Ask) -> None:
    for days in (0, 6, 7):
        spend(MONDAY + timedelta(days=days), ask())
    limit("key", key.pk, "week", HELD)
    spent = f"key/{key.pk}/week/2026-11-16 has spent {2 * HELD} n$"
    assert list(over_limit()) == [f"{spent}, its limit is {HELD} n$"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_of_two_at_midnight_that_find_the_same_room_one_gets_it(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "week", 2 * HELD)
    # Two days of one week, so that the two lock different days.
    now = MONDAY + timedelta(days=2, hours=11)
    zones = [{"time_zone": "Etc/GMT+12"}, {"time_zone": "Pacific/Kiritimati"}]
    assert admitted(now, ask(**zones[0])) == [True]
    results = asyncio.run(admit_at_once([ask(**zone) for zone in zones], now))
    assert {type(result) for result in results} == {UUID, BudgetExceeded}
