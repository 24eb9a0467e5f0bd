"""No page and no report looks through all generations: what each asks the database is asked again, for its
plan.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import APIKey
from tests.cast import Person, admit, run
from tests.usage.range_reads import first_token_ms, overage
from usage.books import ledger, reports
from usage.database.clock import database_now
from usage.insights import Filters, Range, counters, health, series, top, totals
from usage.models import (
    BudgetLimit,
    DailyEndUserUsage,
    DailyItem,
    DailyTotals,
    DailyUsage,
    Generation,
    HourlyUsage,
    LedgerEntry,
    MonthlyEndUserUsage,
    Outcome,
)
from usage.rollups import closing
from usage.verification import checks, issued_statements, sum_checks
from usage.verification.invariants import Difference

TABLES = ("usage_generation", "usage_ledgerentry")
SUMS = (HourlyUsage, DailyUsage, DailyTotals, DailyEndUserUsage, MonthlyEndUserUsage, DailyItem)


@pytest.fixture
def used(alice: Person, charlie: Person, small: Any, monkeypatch: pytest.MonkeyPatch) -> Generation:
    """Make requests of two organizations, one day of which counts as closed."""
    for person in (alice, alice, charlie):
        run(person)
    run(alice, outcome=Outcome.FAILED)
    admit(alice)
    tomorrow = database_now() + timedelta(days=1, hours=2)
    monkeypatch.setattr(closing, "database_now", lambda: tomorrow)
    assert closing.close_next()
    return run(alice)


@contextmanager
def never_all_rows(tables: Sequence[str] = TABLES) -> Iterator[None]:
    """Check that the queries of the block use an index, or only its first rows."""
    with CaptureQueriesContext(connection) as queries:
        yield
    asked = {
        query["sql"]
        for query in queries
        if any(f'"{table}"' in query["sql"] or f"{table} " in query["sql"] for table in tables)
    }
    scans = [
        (sql, step)
        for sql in sorted(asked)
        if sql.startswith(("SELECT", "WITH", "UPDATE"))
        for step in _plan(sql)
        if _is_scan(sql, step, tables)
    ]
    assert scans == []


def _plan(sql: str) -> list[str]:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # tables this small would be read whole
            cursor.execute("EXPLAIN " + sql)
        else:
            cursor.execute("EXPLAIN QUERY PLAN " + sql)
        return [str(row[-1]).strip() for row in cursor.fetchall()]


def _is_scan(sql: str, step: str, tables: Sequence[str]) -> bool:
    """Return whether the step reads a whole table; a scan along an index is allowed if it stops after some
    rows.
    """
    for table in tables:
        if f"Seq Scan on {table}" in step:
            return True
        if step == f"SCAN {table}":  # which is in the order of the primary key, if that is a number
            return f'ORDER BY "{table}"."id" DESC LIMIT' not in sql or table == "usage_generation"
        if step.startswith(f"SCAN {table} ") and " LIMIT " not in sql and "open_generations" not in step:
            return True
    return False


def pages(row: Generation) -> list[str]:
    """Return the URLs of all lists and reports, with each of their filters."""
    own = {
        "organization": row.organization_id,
        "project": row.project_id,
        "key": row.api_key_id,
        "model": "small",
        "outcome": "failed",
    }
    found = [
        reverse("admin:index"),
        reverse("admin:live"),
        reverse("admin:requests"),
        reverse("admin:request", args=[str(row)]),
        reverse("admin:budgets"),
        reverse("admin:organization", args=[row.organization_id]),
    ]
    for name, value in own.items():
        found += [
            f"{reverse(page)}?{urlencode({'days': 30, name: value})}"
            for page in ("admin:index", "admin:requests")
        ]
    found += [f"{reverse('admin:index')}?days=30&group={name}" for name in (*own, "error", "metadata")]
    of_requests = ("error=upstream_error", "metadata=team=red", "group=metadata&metadata_key=team")
    found += [
        f"{reverse('admin:index')}?days=30&organization={row.organization_id}&{each}" for each in of_requests
    ]
    found += [
        f"{reverse('admin:requests')}?{query}"
        for query in (
            "min=0.1",
            "source=none",
            "dialect=openai",
            "deployment=sandbox",
            "metadata=a=b",
            "id=" + row.id.hex,
        )
    ]
    found += [
        f"{reverse('admin:requests')}?end_user=ann&{name}={own[name]}"
        for name in ("organization", "project", "key")
    ]
    found += [
        f"{reverse('admin:requests')}?days=1&time=settled&{query}"
        for query in ("", "outcome=any_error", f"key={row.api_key_id}")
    ]
    registered = [model._meta for model in admin.site._registry]
    return found + [reverse(f"admin:{model.app_label}_{model.model_name}_changelist") for model in registered]


def test_no_page_looks_through_all_requests(root: Client, used: Generation) -> None:
    for page in pages(used):
        with never_all_rows():
            assert root.get(page).status_code in (200, 302), page


def test_no_page_of_the_console_looks_through_all_requests(root: Client, used: Generation) -> None:
    month, week = (
        BudgetLimit.objects.create(
            scope="project", scope_id=used.project_id, period=period, limit_nanodollars=1
        )
        for period in ("month", "week")
    )
    own = {"project": used.project_id, "key": used.api_key_id, "model": "small"}
    narrowed = ["", *(f"?{urlencode({name: value})}" for name, value in own.items())]
    found = [f"{name}{query}" for name in ("overview", "usage", "live", "requests") for query in narrowed]
    found += [
        f"requests?sort={sort}{query.replace('?', '&')}"
        for sort in ("cost", "duration")
        for query in narrowed
    ]
    found += [f"{name}?key_kind=live&model=small" for name in ("overview", "usage", "requests")]
    found += ["models/small", f"models/small?project={used.project_id}"]
    found += ["requests?error=upstream_error", "budgets", f"budgets/{month.pk}", f"budgets/{week.pk}", "keys"]
    found += ["search?q=a", f"search?q=a&project={used.project_id}"]
    for page in found:
        with never_all_rows():
            assert root.get(f"/console/{used.organization_id}/{page}").status_code == 200, page


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
@pytest.mark.parametrize("route", ["usage/completions", "costs"])
def test_no_route_looks_through_all_requests(used: Generation, alice: Person, route: str, width: str) -> None:
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True)
    start = int((database_now() - timedelta(hours=2)).timestamp())
    with never_all_rows():
        answer = alice.get(
            f"/v1/organization/{route}?start_time={start}&bucket_width={'1d' if route == 'costs' else width}"
        )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "report", [counters, health, lambda: overage(Range.last(30, database_now()), Filters(organization_id=1))]
)
def test_no_metric_looks_through_all_requests(used: Generation, report: Callable[[], object]) -> None:
    with never_all_rows():
        report()


def test_lost_messages_are_looked_for_among_the_open_generations(used: Generation) -> None:
    with never_all_rows(), CaptureQueriesContext(connection) as queries:
        reports.waiting_since(1_000, 10)
    (sql,) = [query["sql"] for query in queries if "usage_generation" in query["sql"]]
    if connection.vendor == "sqlite":  # PostgreSQL chooses by what tables have in them
        assert any("open_generations" in step for step in _plan(sql))


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL chooses by what tables have in them")
@pytest.mark.parametrize("column", ["api_key_id", "outcome"])
def test_a_report_about_one_member_reads_its_days_only(used: Generation, column: str) -> None:
    filters = Filters(**{column: getattr(used, column)})
    over = Range.last(30, database_now() + timedelta(days=1))
    with CaptureQueriesContext(connection) as queries:
        top(over, "model", filters)
        totals(over, filters)
        first_token_ms(over, filters)
    steps = " ".join(step for query in queries for step in _plan(query["sql"]))
    days = {"api_key_id": "days_of_a_key", "outcome": "days_of_an_outcome"}[column]
    for index in (days, "totals_of_a_member", "first_tokens_of_a_member"):
        assert f"USING INDEX {index} " in steps


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL chooses by what tables have in them")
def test_overages_and_corrections_are_read_from_their_indexes_alone(used: Generation) -> None:
    with CaptureQueriesContext(connection) as queries:
        counters()
    steps = [_plan(query["sql"])[0] for query in queries if 'FROM "usage_ledgerentry"' in query["sql"]]
    assert steps == [
        f"SEARCH usage_ledgerentry USING COVERING INDEX {name} (kind=?)"
        for name in ("overages", "corrections")
    ]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL chooses by what tables have in them")
@pytest.mark.parametrize(
    "check",
    [
        sum_checks.credit_conserves,
        partial(issued_statements.items_are_the_ledger, None),
        partial(issued_statements.items_are_the_ledger, datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_checks_of_credit_read_what_people_booked(
    used: Generation, check: Callable[[], Iterator[Difference]]
) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert not list(check())
    (sql,) = [query["sql"] for query in queries if 'FROM "usage_ledgerentry"' in query["sql"]]
    assert "bookings_of_an_organization" in _plan(sql)[0]


def test_the_hours_check_reads_no_sums_of_years(used: Generation) -> None:
    for check in checks(database_now() - timedelta(days=2)):
        with never_all_rows([table._meta.db_table for table in SUMS]):
            list(check())


@pytest.mark.parametrize(
    "filters",
    [Filters(), Filters(organization_id=1), Filters(api_key_id=1), Filters(model="small", outcome="failed")],
)
def test_sums_of_closed_days_are_read_from_the_days(used: Generation, filters: Filters) -> None:
    midnight = database_now().replace(hour=0, minute=0, second=0, microsecond=0)
    today = Range(midnight, midnight + timedelta(days=1), "day")
    reports: list[Callable[[], object]] = [
        lambda: series(today, "model", filters),
        lambda: top(today, "key", filters),
    ]
    for report in reports:
        with CaptureQueriesContext(connection) as queries:
            report()
        assert not [query["sql"] for query in queries if "usage_hourlyusage" in query["sql"]]


def test_a_scan_would_be_noticed(used: Generation) -> None:
    for rows in (Generation.objects.filter(deployment="sandbox"), LedgerEntry.objects.filter(reason="none")):
        with pytest.raises(AssertionError), never_all_rows():
            list(rows)


def test_a_request_and_the_look_for_lost_workers_use_indexes(used: Generation, alice: Person) -> None:
    now = database_now()
    with never_all_rows():
        run(alice)
        ledger.take_over(now, [ledger.TakeOver(10, 6_000, now)])


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no BRIN")
def test_generations_settled_since_are_found_by_an_index(used: Generation) -> None:
    with connection.cursor() as cursor:
        # So that of all ways only this index is left: with these few rows the others are as good.
        cursor.execute(
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off; "
            "SET LOCAL enable_indexonlyscan = off"
        )
        cursor.execute("EXPLAIN SELECT id FROM usage_generation WHERE settled_at >= now()")
        assert "generations_by_time" in str(cursor.fetchall())


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL chooses by what tables have in them")
def test_the_longest_waits_are_looked_for_among_the_open_generations(used: Generation) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert reports.longest_waits().keys() == {used.organization_id}
    (sql,) = [query["sql"] for query in queries if "usage_generation" in query["sql"]]
    assert any("open_generations" in step for step in _plan(sql))
