"""Closed days: the sums of their hours, so that nothing that is read changes when a day is closed."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from accounts.models import APIKey
from chatapi.worker.reaper import housekeeping
from tests.usage.conftest import completed, run
from tests.usage.range_reads import first_token_ms
from usage import insights, rollups
from usage.books import ledger
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.insights import Filters, Range
from usage.insights.buckets import BucketQuery, buckets
from usage.models import ClosedDay, DailyTotals, DailyUsage, HourlyUsage, Outcome
from usage.rollups import closed_days, closing, first_token_buckets
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
FIRST = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday's beginning; the third day after it is not over."""
NOW = FIRST + timedelta(days=3, hours=4)
RANGES = [
    Range(FIRST, FIRST + timedelta(days=4), "day"),
    Range(FIRST + timedelta(hours=5), FIRST + timedelta(days=2, hours=7), "day"),
    Range(FIRST, FIRST + timedelta(days=2), "hour"),
    Range.last(3, NOW, "Asia/Kolkata", "day"),
]


@pytest.fixture
def used(key: APIKey, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Settles one request at that moment; days are closed as of `NOW`."""
    monkeypatch.setattr(closing, "database_now", lambda: NOW)

    def use(moment: datetime, **changes: Any) -> None:
        with transaction.atomic():
            ledger.admit(moment, [admission := ask(model=f"model-{moment.hour % 3}")])
            ledger.settle(moment, [completed(run(admission, moment), **changes)])

    return use


@pytest.fixture
def busy(used: Callable[..., None]) -> None:
    """Write four days with requests every other hour; every third of them fails."""
    for hours in range(0, 76, 2):
        outcome = Outcome.FAILED if hours % 6 == 0 else Outcome.COMPLETED
        used(FIRST + timedelta(hours=hours, minutes=20), outcome=outcome, first_token_ms=10 * (hours + 1))


def close() -> list[date]:
    return list(iter(closing.close_next, None))


def read() -> list[object]:
    """Return the numbers of pages and the usage API, over several ranges."""
    found: list[object] = []
    for over in RANGES:
        found.append(insights.totals(over))
        for group_by in ("organization", "project", "key", "model", "outcome"):
            found += [insights.series(over, group_by), insights.top(over, group_by, Filters(model="model-0"))]
    organization = HourlyUsage.objects.values_list("organization_id", flat=True)[0]
    found += [buckets(BucketQuery(organization, "day", FIRST, FIRST + timedelta(days=4), ("model",)))]
    return found


def test_closed_days_have_the_sums_of_their_hours(busy: None) -> None:
    before = read()
    assert close() == [FIRST.date() + timedelta(days=number) for number in range(3)]
    assert DailyUsage.objects.count() < HourlyUsage.objects.count()
    assert read() == before
    assert verify().differences == []


def test_closed_days_that_are_read_once_are_the_same(busy: None) -> None:
    close()
    inside = [
        (FIRST + timedelta(hours=start), FIRST + timedelta(hours=end))
        for start in range(-30, 80, 5)
        for end in range(start + 1, 90, 7)
    ]
    outside = [(FIRST - timedelta(days=9), NOW), (FIRST, NOW + timedelta(days=9))]
    before = [closed_days.spans(*each) for each in inside + outside], read()
    with closed_days.read_once(FIRST - timedelta(days=2), FIRST + timedelta(days=5)):
        with CaptureQueriesContext(connection) as asked:
            found = [closed_days.spans(*each) for each in inside]
        assert len(asked) == 1
        assert (found + [closed_days.spans(*each) for each in outside], read()) == before


def test_a_day_is_left_open_for_a_while_after_its_end(
    used: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    used(FIRST)
    monkeypatch.setattr(closing, "database_now", lambda: FIRST + timedelta(hours=24, minutes=59))
    assert close() == []
    monkeypatch.setattr(closing, "database_now", lambda: FIRST + timedelta(hours=25))
    assert close() == [FIRST.date()]


def test_a_day_without_usage_is_closed_too(used: Callable[..., None]) -> None:
    used(FIRST)
    assert len(close()) == 3
    assert closed_days.spans(FIRST, NOW).closed == [(FIRST.date(), FIRST.date() + timedelta(days=3))]


def rows(table: type[Model], *names: str) -> list[object]:
    return list(table._default_manager.order_by(*names).values_list(*names, *closed_days.SUMS))


def test_days_closed_by_a_fast_clock_are_opened_again(
    used: Callable[..., None], monkeypatch: pytest.MonkeyPatch, key: APIKey
) -> None:
    now = database_now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    used(now)
    monkeypatch.setattr(closing, "database_now", lambda: now + timedelta(days=3))
    assert now.date() in close()
    monkeypatch.setattr(closing, "database_now", lambda: now)
    used(now)
    assert now.date() not in close()
    assert insights.totals(Range(today, today + timedelta(days=1), "day")).requests == 2
    assert list(ClosedDay.objects.filter(day__gte=now.date())) == []
    assert verify().differences == []


def test_rebuilding_makes_the_same_tables(busy: None) -> None:
    close()

    def tables() -> list[object]:
        members = rows(DailyTotals, "day", "dimension", "member", "failed_requests")
        return [
            rows(HourlyUsage, "hour", *closed_days.GROUP),
            rows(DailyUsage, "day", *closed_days.GROUP),
            members,
        ]

    before = tables()
    rollups.rebuild()
    assert tables() == before
    assert verify().differences == []


@pytest.mark.parametrize("table", [DailyUsage, DailyTotals])
def test_verification_finds_a_day_that_is_not_its_hours(
    busy: None, table: type[DailyUsage] | type[DailyTotals]
) -> None:
    close()
    row = table.objects.order_by("id")[0]
    table.objects.filter(pk=row.pk).update(requests=row.requests + 1)
    assert {each.invariant for each in verify().differences} == {"I2 rollup"}
    rollups.rebuild()
    assert verify().differences == []


def test_a_late_hour_is_found_by_verification_and_put_right_by_rollup(
    busy: None, used: Callable[..., None]
) -> None:
    close()
    closed = list(ClosedDay.objects.values())
    used(FIRST + timedelta(hours=23, minutes=50))
    # As if the trigger of migration 0005 were gone, which a later release drops.
    ClosedDay.objects.bulk_create((ClosedDay(**row) for row in closed), ignore_conflicts=True)
    assert {each.invariant for each in verify().differences} == {"I2 rollup"}
    call_command("rollup", stdout=StringIO())
    assert insights.totals(RANGES[0]).requests == 39
    assert verify().differences == []


def test_a_day_that_an_older_version_has_not_finished_is_closed_anew(busy: None) -> None:
    close()
    before = read()
    ClosedDay.objects.filter(day=FIRST.date()).update(has_first_tokens=False)
    DailyUsage.objects.filter(day=FIRST.date()).delete()
    assert read() == before
    assert close() == [FIRST.date()]
    assert read() == before
    assert verify().differences == []


@pytest.mark.django_db(transaction=True)
def test_two_that_close_the_same_days_write_the_same_rows(transactional_db: None, busy: None) -> None:
    before, failures = read(), list[Exception]()

    def close_all() -> None:
        try:
            close()
        except Exception as error:  # the test reports it
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=close_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ClosedDay.objects.count() == 3
    assert read() == before
    assert verify().differences == []


def test_the_housekeeping_closes_days(transactional_db: None, busy: None) -> None:
    async def keep_house_until_done() -> None:
        commits = GroupCommit()
        keeping = asyncio.create_task(housekeeping.keep_house(commits))
        while await commits.read(ClosedDay.objects.count) < 3:
            await asyncio.sleep(0.02)
        keeping.cancel()
        await commits.close()

    asyncio.run(asyncio.wait_for(keep_house_until_done(), 30))
    assert verify().differences == []


def test_an_hour_with_more_charges_than_a_read_has_time_for_is_closed(
    transactional_db: None, used: Callable[..., None], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read has three times the time of a statement; then PostgreSQL's connection is closed."""
    for seconds in range(12):
        used(FIRST + timedelta(seconds=seconds), first_token_ms=10)

    def slow_bucket_of(ms: int) -> int:
        time.sleep(0.1)  # 1.2 s for the hour
        return first_token_buckets.bucket_of(ms)

    async def close_days() -> None:
        commits = GroupCommit()
        await housekeeping._close_days(commits)
        await commits.close()

    monkeypatch.setattr(closing, "bucket_of", slow_bucket_of)
    monkeypatch.setattr(closing, "MAX_ENTRIES", 3)
    settings.DATABASE_TIMEOUT_MS = 200
    asyncio.run(close_days())
    assert ClosedDay.objects.count() == 3
    found = first_token_ms(Range(FIRST, FIRST + timedelta(days=3), "day"))
    assert found is not None
    assert found.sample_size == 12
    assert verify().differences == []


# ---- times to first token


@pytest.fixture
def counted(busy: None) -> None:
    assert len(close()) == 3


def test_percentiles_of_closed_days_are_close_to_the_measured_ones(counted: None) -> None:
    found = first_token_ms(Range(FIRST, FIRST + timedelta(days=3), "day"))
    assert found is not None
    measured = sorted(10 * (hours + 1) for hours in range(0, 72, 2))
    assert found.sample_size == len(measured) == 36
    assert found.p50 == pytest.approx(measured[17], rel=0.045)
    assert found.p95 == pytest.approx(measured[34], rel=0.045)


@pytest.mark.parametrize("filters", [{"model": "model-1"}, {"outcome": "failed"}, {"model": "nothing"}])
def test_percentiles_are_of_those_that_fit(counted: None, filters: dict[str, str]) -> None:
    days = Range(FIRST, FIRST + timedelta(days=3), "day")
    chosen = Filters(**filters)  # type: ignore[arg-type]
    found = first_token_ms(days, chosen)
    requests = insights.totals(days, chosen).requests
    assert (found.sample_size if found else 0) == requests


def test_a_rebuild_counts_times_to_first_token_anew(counted: None, used: Callable[..., None]) -> None:
    used(FIRST + timedelta(hours=1), first_token_ms=5)
    rollups.rebuild()
    found = first_token_ms(Range(FIRST, FIRST + timedelta(days=3), "day"))
    assert found is not None
    assert found.sample_size == 37


@pytest.mark.parametrize("ms", [0, 1, 2, 3, 17, 250, 1_234, 120_000, 2**31 - 1])
def test_a_bucket_stands_for_times_close_to_its_own(ms: int) -> None:
    assert first_token_buckets.ms_of(first_token_buckets.bucket_of(ms)) == pytest.approx(
        max(ms, 1), rel=0.045, abs=0.5
    )
