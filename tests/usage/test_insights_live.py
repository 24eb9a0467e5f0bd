"""What happens now: open generations, full budgets, the queue and the seals."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import Organization, Role
from tests.cast import Person, admit, join, run
from usage.books import ledger, spending
from usage.books.reports import open_by_organization
from usage.database.clock import database_now, local_day
from usage.insights import budgets_near_limit, health, running
from usage.models import Budget, BudgetLimit, Generation, Outcome
from usage.verification import seals


def claim(row: Generation) -> None:
    ledger.claim(database_now(), [ledger.Claim(row.pk, "worker-1", 6_000)])


def test_an_open_generation_is_shown_with_its_hold_and_speed(alice: Person) -> None:
    row = admit(alice)
    claim(row)
    ten_seconds_ago = database_now() - timedelta(seconds=10)
    Generation.objects.filter(pk=row.pk).update(
        admitted_at=ten_seconds_ago, claimed_at=ten_seconds_ago, completion_tokens=500
    )
    (shown,) = running()
    assert (shown.id, shown.organization, shown.project, shown.model, shown.worker) == (
        row.pk,
        "Acme",
        "default",
        "small",
        "worker-1",
    )
    assert shown.key.startswith("alice (ck_live_")
    assert (shown.is_queued, shown.completion_tokens, shown.reserved_nanodollars) == (
        False,
        500,
        row.reserved_nanodollars,
    )
    assert 10 <= shown.age_s < 60
    assert 0 < shown.tokens_per_second <= 50


def test_queued_and_settled_generations_do_not_run(alice: Person) -> None:
    run(alice)
    waiting = admit(alice)
    (shown,) = running()
    assert (shown.id, shown.is_queued, shown.worker, shown.tokens_per_second) == (waiting.pk, True, "", 0.0)


def test_as_many_are_shown_as_one_asks_for(alice: Person) -> None:
    for _ in range(3):
        admit(alice)
    assert len(running(limit=2)) == 2


def test_the_oldest_are_shown_and_stay_when_a_workers_heart_beats(alice: Person, charlie: Person) -> None:
    # By id: those of one millisecond come in any order.
    rows = sorted((admit(person) for person in (charlie, alice, alice, alice)), key=lambda row: row.pk)
    own = [row.pk for row in rows if row.organization_id == alice.project.organization_id]
    claim(rows[1])
    before = [row.id for row in running(limit=2)]
    ledger.beat(database_now(), [ledger.Beat("worker-1", [ledger.Pulse(rows[1].pk, 1, 5, "")], 3_600_000)])
    assert [row.id for row in running(limit=2)] == before == [row.pk for row in rows[:2]]
    assert [row.id for row in running(2, {alice.project.organization_id})] == own[:2]


def test_open_generations_are_found_through_their_own_index(alice: Person) -> None:
    admit(alice)
    with CaptureQueriesContext(connection) as queries:
        running(organizations={alice.project.organization_id})
        health()
        assert open_by_organization() == {alice.project.organization_id: 1}
    asked = [query["sql"] for query in queries if "FROM usage_generation " in query["sql"].replace('"', "")]
    # One of them asks for rows by the ids that another has found.
    asked = [sql for sql in asked if '"id" IN (' not in sql]
    assert len(asked) == 3
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in asked:
            cursor.execute(("EXPLAIN " if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN ") + sql)
            assert "open_generations" in str(cursor.fetchall())


def test_health_counts_the_queue_and_the_lost_requests(alice: Person) -> None:
    for outcome in (Outcome.WORKER_LOST, Outcome.NOT_STARTED, Outcome.NOT_STARTED, Outcome.COMPLETED):
        run(alice, outcome=outcome)
    running, waiting = admit(alice), admit(alice)
    claim(running)
    Generation.objects.filter(pk=waiting.pk).update(admitted_at=database_now() - timedelta(minutes=1))
    Generation.objects.filter(pk=running.pk).update(claimed_at=database_now() - timedelta(minutes=2))
    found = health()
    assert (found.queue_depth, found.running, found.lost, found.not_started) == (1, 1, 1, 2)
    assert found.oldest_queued_s is not None
    assert 60 <= found.oldest_queued_s < 120
    assert found.longest_running_s is not None
    assert 120 <= found.longest_running_s < 180
    assert found.oldest_lease_s is not None
    assert found.oldest_lease_s < 0


def test_health_of_an_installation_that_nobody_uses(db: None) -> None:
    found = health()
    assert (
        found.queue_depth,
        found.oldest_queued_s,
        found.longest_running_s,
        found.oldest_lease_s,
        found.last_sealed_at,
        found.unsealed_entries,
    ) == (0, None, None, None, None, 0)


@pytest.mark.django_db(transaction=True)
def test_health_tells_when_the_ledger_was_sealed(alice: Person) -> None:
    run(alice)
    assert health().unsealed_entries == 1
    seal = seals.seal()
    assert seal is not None
    found = health()
    assert (found.unsealed_entries, found.last_sealed_at) == (0, seal.sealed_at)


# ---- budgets


def spend(
    scope: str,
    scope_id: int,
    period: str,
    *,
    limit: int,
    posted: int,
    pending: int = 0,
    time_zone: str = "UTC",
    days_ago: int = 0,
) -> None:
    """Create a limit, and its budget of the current period or of an earlier one."""
    day = local_day(database_now() - timedelta(days=days_ago), time_zone)
    start = {"day": str(day), "month": str(day.replace(day=1)), "ever": "1970-01-01"}[period]
    BudgetLimit.objects.get_or_create(scope=scope, scope_id=scope_id, period=period, limit_nanodollars=limit)
    Budget.objects.create(
        id=f"{scope}/{scope_id}/{period}/{start}",
        scope=scope, scope_id=scope_id, period=period, period_start=start,
        posted_nanodollars=posted, pending_nanodollars=pending,
    )  # fmt: skip


def test_the_fullest_budgets_come_first(alice: Person, bob: Person) -> None:
    spend("key", alice.api_key.pk, "month", limit=100, posted=40, pending=50)
    spend("project", bob.project.pk, "day", limit=100, posted=95)
    spend("organization", alice.project.organization_id, "ever", limit=1_000, posted=10)
    found = [(use.label, use.key.period, use.share) for use in budgets_near_limit()]
    assert found == [
        ("Acme / research", "day", 0.95),
        ("Acme / default / alice", "month", 0.9),
        ("Acme", "ever", 0.01),
    ]
    assert [use.key.period for use in budgets_near_limit(n=1)] == ["day"]


def test_a_period_that_is_over_does_not_count(alice: Person) -> None:
    spend("key", alice.api_key.pk, "day", limit=100, posted=99, days_ago=1)
    assert budgets_near_limit() == []
    spend("key", alice.api_key.pk, "day", limit=100, posted=1)
    assert [use.posted_nanodollars for use in budgets_near_limit()] == [1]


@pytest.mark.parametrize("time_zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_days_are_those_of_the_owners_time_zone(alice: Person, time_zone: str) -> None:
    """At any time, one of these zones has another day than UTC."""
    far = join("moana", Role.OWNER, Organization.objects.create(name="Far", time_zone=time_zone), "default")
    spend("key", far.api_key.pk, "day", limit=100, posted=50, time_zone=time_zone)
    spend("project", far.project.pk, "day", limit=100, posted=60, time_zone=time_zone, days_ago=2)
    assert [use.label for use in budgets_near_limit()] == ["Far / default / moana"]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has the clock of the process")
@pytest.mark.parametrize("hours", [-20, 20])
@pytest.mark.parametrize("time_zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_days_are_those_of_the_databases_clock(
    alice: Person, monkeypatch: pytest.MonkeyPatch, time_zone: str, hours: int
) -> None:
    far = join("moana", Role.OWNER, Organization.objects.create(name="Far", time_zone=time_zone), "default")
    for days_ago in (-1, 0, 1):
        posted = days_ago + 2
        spend("key", far.api_key.pk, "day", limit=100, posted=posted, time_zone=time_zone, days_ago=days_ago)
    wrong = timezone.now() + timedelta(hours=hours)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert [use.posted_nanodollars for use in budgets_near_limit()] == [2]
    found = spending.now(
        organization_id=far.project.organization_id,
        project_id=far.project.pk,
        api_key_id=far.api_key.pk,
        time_zone=time_zone,
    )
    assert [use.posted_nanodollars for use in found if use.key.period == "day"] == [2]


def test_no_limit_or_none_at_all_is_nothing_to_be_near_to(alice: Person) -> None:
    assert budgets_near_limit() == []
    run(alice)
    BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period="ever", limit_nanodollars=0)
    BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period="day", soft_limit_nanodollars=1)
    assert budgets_near_limit() == []
