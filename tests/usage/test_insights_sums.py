"""Sums of the rollup: equal to the ledger's, complete in every bucket, and of nobody else's requests."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Sum

from accounts.models import APIKey
from tests.cast import Person, run
from usage.database.clock import database_now
from usage.insights import Filters, GroupBy, Range, Totals, series, top, totals
from usage.models import HourlyUsage, LedgerEntry, Outcome, UsageSource
from usage.pricing import Tokens

MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
TWO_DAYS = Range(MIDNIGHT, MIDNIGHT + timedelta(days=2), "day")


def today() -> Range:
    return Range.last(2, database_now())


def hour(
    key: APIKey, at: datetime, nanodollars: int, *, model: str = "small", outcome: Outcome = Outcome.COMPLETED
) -> None:
    """Add an hour of the rollup, with one request."""
    HourlyUsage.objects.create(
        organization=key.project.organization,
        project=key.project,
        api_key=key,
        hour=at,
        model=model,
        outcome=outcome,
        requests=1,
        prompt_tokens=100,
        amount_nanodollars=nanodollars,
    )


def test_the_sums_are_the_ledgers(alice: Person, bob: Person, charlie: Person) -> None:
    for person in (alice, bob, charlie, alice):
        run(person, tokens=Tokens(1_000, 200, 400, 50, cache_write_tokens=300, cache_write_1h_tokens=100))
    names = [field.name for field in fields(Totals)][2:]
    ledger = LedgerEntry.objects.aggregate(**{f"all_{name}": Sum(name) for name in names})
    found = totals(today())
    assert found == Totals(4, 0, *(ledger[f"all_{name}"] for name in names))
    assert (found.total_tokens, found.error_rate) == (4_800, 0.0)


def test_a_client_that_left_is_no_error(alice: Person) -> None:
    run(alice)
    run(alice, outcome=Outcome.CLIENT_CANCELLED)
    run(alice, outcome=Outcome.FAILED, tokens=Tokens(), usage_source=UsageSource.NONE)
    run(alice, outcome=Outcome.WORKER_LOST)
    found = totals(today())
    assert (found.requests, found.failed_requests, found.error_rate) == (4, 2, 0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("organization_id", 3), ("project_id", 2), ("api_key_id", 2), ("model", 4), ("outcome", 4)],
)
def test_filters_leave_matching_rows(
    alice: Person, bob: Person, charlie: Person, name: str, expected: int
) -> None:
    for person in (alice, alice, bob, charlie):
        run(person)
    mine = {
        "organization_id": alice.project.organization_id,
        "project_id": alice.project.pk,
        "api_key_id": alice.api_key.pk,
        "model": "small",
        "outcome": "completed",
    }
    assert totals(today(), Filters(**{name: mine[name]})).requests == expected  # type: ignore[arg-type]
    nothing: Any = {name: -1 if name.endswith("_id") else "nothing"}
    assert totals(today(), Filters(**nothing)) == Totals()


def test_a_range_begins_with_its_first_hour_and_ends_before_its_last(key: APIKey) -> None:
    for hours in (-1, 0, 47, 48):
        hour(key, MIDNIGHT + timedelta(hours=hours), 1)
    assert totals(TWO_DAYS).requests == 2
    assert totals(TWO_DAYS.before).requests == 1


@pytest.mark.parametrize(("group_by", "label"), [
    ("organization", "Acme"), ("project", "Acme / default"), ("key", "alice (ck_live_"), ("model", "small"),
    ("outcome", "completed"),
])  # fmt: skip
def test_groups_are_called_by_their_names(alice: Person, group_by: GroupBy, label: str) -> None:
    run(alice)
    (row,) = top(today(), group_by)
    assert row.label.startswith(label)
    assert row.totals == totals(today())


def test_the_top_are_those_that_spent_most(key: APIKey) -> None:
    hour(key, MIDNIGHT, 5, model="dear once")
    for hours in range(3):
        hour(key, MIDNIGHT + timedelta(hours=hours), 4, model="dear thrice")
    for name in ("cheap", "cheapest"):
        hour(key, MIDNIGHT, 1, model=name)
    found = [(row.group_id, row.totals.amount_nanodollars) for row in top(TWO_DAYS, "model", n=3)]
    assert found == [("dear thrice", 12), ("dear once", 5), ("cheap", 1)]


def test_every_bucket_is_there_also_an_empty_one(key: APIKey) -> None:
    hour(key, MIDNIGHT + timedelta(hours=30), 5)
    points = series(TWO_DAYS)
    assert [(each.start, each.totals.amount_nanodollars) for each in points] == [
        (MIDNIGHT, 0),
        (MIDNIGHT + timedelta(days=1), 5),
    ]
    assert {(each.group_id, each.group_label) for each in points} == {(None, "all")}
    assert [each.totals for each in series(TWO_DAYS, None, Filters(model="none"))] == [Totals(), Totals()]
    assert series(TWO_DAYS, "model", Filters(model="none")) == []


def test_the_hour_that_comes_twice_has_two_sums(key: APIKey) -> None:
    """In Berlin the clock goes back from 3:00 to 2:00 at 01:00 UTC."""
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2026, 10, 25, hours, tzinfo=UTC) for hours in (0, 1))
    hour(key, first, 1)
    hour(key, second, 10)
    night = Range(datetime(2026, 10, 25, tzinfo=berlin), datetime(2026, 10, 25, 4, tzinfo=berlin), "hour")
    for group_by in (None, "model"):
        assert [each.totals.amount_nanodollars for each in series(night, group_by)] == [0, 0, 1, 10, 0]
    assert totals(night).amount_nanodollars == 11
    assert totals(Range(first.astimezone(berlin), second.astimezone(berlin), "hour")).amount_nanodollars == 1


def test_every_group_is_in_every_bucket_the_dearest_first(key: APIKey) -> None:
    hour(key, MIDNIGHT, 1, model="cheap")
    hour(key, MIDNIGHT + timedelta(hours=24), 9, model="dear")
    found = [
        (each.start.day, each.group_id, each.totals.amount_nanodollars) for each in series(TWO_DAYS, "model")
    ]
    assert found == [(20, "dear", 0), (20, "cheap", 1), (21, "dear", 9), (21, "cheap", 0)]


def test_the_many_small_groups_are_one(key: APIKey) -> None:
    for number in range(12):
        hour(key, MIDNIGHT, 100 - number, model=f"model-{number:02}")
    first_day = [each for each in series(TWO_DAYS, "model") if each.start == MIDNIGHT]
    assert [each.group_label for each in first_day] == [
        *(f"model-{number:02}" for number in range(8)),
        "other",
    ]
    assert (
        first_day[-1].group_id,
        first_day[-1].totals.requests,
        first_day[-1].totals.amount_nanodollars,
    ) == (None, 4, 92 + 91 + 90 + 89)


@pytest.mark.parametrize("group_by", [None, "organization", "project", "key", "model", "outcome"])
def test_a_series_adds_up_to_the_totals(
    alice: Person, bob: Person, charlie: Person, group_by: GroupBy | None
) -> None:
    for person in (alice, bob, charlie):
        run(person)
        run(person, outcome=Outcome.FAILED)
    for over in (today(), Range.last(30, database_now(), "Asia/Kolkata")):
        assert sum((each.totals for each in series(over, group_by)), Totals()) == totals(over)
