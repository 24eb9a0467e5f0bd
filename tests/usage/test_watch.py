"""What no settlement notices becomes an event, however often a reaper looks."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import keys
from accounts.models import APIKey, Organization
from tests.cast import Person, run
from tests.usage.conftest import DOLLAR, limit, plan
from usage.books import credit
from usage.books.credit import Note
from usage.books.outbox import SOFT_LIMIT
from usage.database.clock import database_now
from usage.models import Budget, BudgetLimit, Credit, Event, LedgerCheck, Outcome
from usage.models.budget_keys import BudgetKey, LimitKey
from usage.notifications import missed, watch
from usage.pricing import FREE, Tokens

NOTE = Note("a test", "alice")


def look(now: datetime | None = None) -> list[str]:
    """Look twice, and return all events."""
    at = now or database_now()
    for _ in range(2):
        watch.write(at, [watch.look(at, find) for find in watch.LOOKS])
    return [" ".join(filter(None, (row.kind, row.threshold))) for row in Event.objects.order_by("created_at")]


def test_an_old_release_settles_and_the_next_look_writes_the_events(alice: Person) -> None:
    run(alice)
    spent = Budget.rows(LimitKey("key", alice.api_key.pk, "ever")).get().posted_nanodollars
    for period in ("ever", "month", "week", "day"):
        limit("key", alice.api_key.pk, period, 2 * spent)
    limit("project", alice.project.pk, "ever", spent)
    limit("organization", alice.project.organization_id, "ever", 2 * spent + 1)
    assert sorted(look()) == ["budget.reached 100"] + 5 * ["budget.reached 50"] + ["budget.reached 80"]
    subjects = Event.objects.filter(threshold="50").values_list("subject", flat=True)
    assert f"organization/{alice.project.organization_id}/ever" not in subjects


def test_a_period_that_is_over_has_no_late_events(alice: Person) -> None:
    run(alice)
    limit("key", alice.api_key.pk, "day", 1)
    limit("key", alice.api_key.pk, "week", 1)
    limit("key", alice.api_key.pk, "month", 1)
    assert look(database_now() + timedelta(days=40)) == []


def test_settlements_after_the_look_repeat_nothing(alice: Person) -> None:
    run(alice)
    spent = Budget.rows(LimitKey("key", alice.api_key.pk, "ever")).get().posted_nanodollars
    BudgetLimit.objects.create(
        scope="key", scope_id=alice.api_key.pk, period="ever", soft_limit_nanodollars=spent * 2
    )
    assert look() == ["budget.reached 50"]
    run(alice)
    run(alice)
    assert sorted(look()) == ["budget.reached 100", "budget.reached 50", "budget.reached 80"]


def test_a_soft_limit_beside_another_is_found_too(alice: Person) -> None:
    BudgetLimit.objects.create(
        scope="key",
        scope_id=alice.api_key.pk,
        period="ever",
        soft_limit_nanodollars=1,
        limit_nanodollars=DOLLAR,
    )
    run(alice)
    assert look() == ["budget.reached warning"]
    Event.objects.all().delete()
    assert look() == ["budget.reached warning"]


def test_a_soft_limit_that_is_changed_is_reached_as_it_is_now(alice: Person) -> None:
    changed = BudgetLimit.objects.create(
        scope="key", scope_id=alice.api_key.pk, period="ever", soft_limit_nanodollars=1
    )
    run(alice)
    BudgetLimit.objects.update(limit_nanodollars=DOLLAR)
    for soft in (None, DOLLAR // 2):
        BudgetLimit.objects.update(soft_limit_nanodollars=soft)
        assert "budget.reached warning" not in look()
    # The other way round: nothing is spent since there is a warning.
    changed.delete()
    Budget.objects.update(soft_limit_reached_at=None)
    spent = Budget.rows(LimitKey("key", alice.api_key.pk, "ever")).get().posted_nanodollars
    limit("key", alice.api_key.pk, "ever", DOLLAR)
    BudgetLimit.objects.update(soft_limit_nanodollars=spent)
    assert "budget.reached warning" in look()


def test_what_a_budget_reached_is_found_together_beside_other_days(alice: Person) -> None:
    Organization.objects.create(name="First", time_zone="Pacific/Kiritimati")
    Organization.objects.create(name="Last", time_zone="Pacific/Pago_Pago")
    run(alice)
    now, key_id = database_now(), alice.api_key.pk
    today = Budget.rows(LimitKey("key", key_id, "day")).get()
    today.soft_limit_reached_at = now
    today.save()
    for days in (-1, 1):
        budget_key = BudgetKey("key", key_id, "day", today.period_start + timedelta(days=days))
        values = {"posted_nanodollars": today.posted_nanodollars, "soft_limit_reached_at": now}
        Budget.objects.create(id=str(budget_key), **budget_key._asdict(), **values)
    spent = today.posted_nanodollars
    BudgetLimit.objects.create(
        scope="key", scope_id=key_id, period="day", soft_limit_nanodollars=1, limit_nanodollars=spent
    )
    found = [(each.threshold, each.data["reached"]) for each in missed.of_budgets(now)]
    reached = [SOFT_LIMIT, "50", "80", "100"]
    assert found == [(threshold, reached) for threshold in reached]


def test_looks_at_very_many_limits_take_turns(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed, "AT_ONCE", 2)
    run(alice)
    owners = {
        "key": alice.api_key.pk,
        "project": alice.project.pk,
        "organization": alice.project.organization_id,
    }
    for number, (scope, pk) in enumerate(owners.items()):
        BudgetLimit.objects.create(
            pk=number + 1, scope=scope, scope_id=pk, period="ever", limit_nanodollars=1
        )
    now = database_now()
    found = [{each.subject for each in missed.of_budgets(now + timedelta(minutes=turn))} for turn in (0, 1)]
    assert sorted(map(len, found)) == [1, 2]
    assert found[0] | found[1] == {f"{scope}/{pk}/ever" for scope, pk in owners.items()}


def test_low_credit_is_found_when_its_threshold_rises(alice: Person) -> None:
    organization = alice.project.organization
    credit.grant(organization, DOLLAR, NOTE)
    run(alice)
    assert look() == []
    Credit.objects.update(low_credit_nanodollars=DOLLAR)
    assert look() == ["credit.low"]


def expire(key: APIKey, now: datetime, *, days: float, lifetime_days: float = 90) -> None:
    expires_at = now + timedelta(days=days)
    APIKey.objects.filter(pk=key.pk).update(
        expires_at=expires_at, created_at=expires_at - timedelta(days=lifetime_days)
    )


def test_a_key_expires_in_a_week_and_in_a_day(alice: Person) -> None:
    now = database_now()
    expire(alice.api_key, now, days=7.5)
    assert look(now) == []
    assert look(now + timedelta(days=1)) == ["key.expiring 7"]
    assert look(now + timedelta(days=7)) == ["key.expiring 7", "key.expiring 1"]
    row = Event.objects.get(threshold="1")
    assert row.organization_id == alice.project.organization_id
    assert row.data["name"].endswith(f"/ {alice.api_key.name}")
    assert alice.key not in str(row.data)


def test_a_key_that_is_prolonged_expires_anew(alice: Person) -> None:
    now = database_now()
    expire(alice.api_key, now, days=7)
    assert look(now) == ["key.expiring 7"]
    expire(alice.api_key, now + timedelta(hours=1), days=7)
    assert look(now + timedelta(hours=1)) == ["key.expiring 7"] * 2


def test_keys_that_expire_are_found_by_index(alice: Person) -> None:
    now = database_now()
    expire(alice.api_key, now, days=7)
    look(now)
    with CaptureQueriesContext(connection) as queries:
        assert [*watch.expiring_keys(now)] == []  # the statement knows the event
    plans = [plan(query["sql"]) for query in queries]
    assert all("api_keys_by_expiry" in each for each in plans)
    assert len(plans) == len(watch.KEY_DAYS)


def test_a_key_that_is_made_for_less_and_one_that_is_unusable_expire_in_silence(
    alice: Person, bob: Person
) -> None:
    now = database_now()
    expire(alice.api_key, now, days=0.01, lifetime_days=0.02)
    expire(bob.api_key, now, days=3)
    APIKey.objects.filter(pk=bob.api_key.pk).update(is_active=False)
    assert look(now) == []


def spend(organization_id: int, now: datetime, dollars: list[float]) -> None:
    """Write the spend of days, the last of which is today."""
    Budget.objects.filter(scope="organization", scope_id=organization_id).delete()
    for days_ago, amount in enumerate(reversed(dollars)):
        day = now.date() - timedelta(days=days_ago)
        Budget.objects.create(
            id=f"organization/{organization_id}/day/{day}",
            scope="organization",
            scope_id=organization_id,
            period="day",
            period_start=day,
            posted_nanodollars=round(amount * DOLLAR),
        )


def test_spend_is_unusual_above_twice_the_second_highest_day(alice: Person) -> None:
    now, pk = database_now(), alice.project.organization_id
    usual = [3.0, 1, 9, 1, 1, 4, 1]
    for days in ([*usual, 8.0], [*usual[1:], 100.0], [0.1] * 7 + [4.9], [0.0] * 8 + [100.0]):
        spend(pk, now, days)
        assert look(now) == [], days
    spend(pk, now, [*usual, 8.1])
    assert look(now) == ["spend.unusual"]
    assert Event.objects.get().data == {"spent_usd": "8.1", "usual_usd": "4"}


def test_spend_of_very_many_organizations_is_looked_at_in_a_few_statements(alice: Person) -> None:
    now = database_now()
    Organization.objects.bulk_create(
        Organization(name=f"organization {number}", time_zone="Pacific/Auckland") for number in range(60)
    )
    far = list(Organization.objects.filter(time_zone="Pacific/Auckland"))
    there = local_time(now, "Pacific/Auckland")
    for each in far:
        spend(each.pk, there, [1.0] * 7 + [10])
    spend(alice.project.organization_id, now, [1.0] * 6 + [10])
    with CaptureQueriesContext(connection) as queries:
        found = list(watch.unusual_spend(now))
    assert {each.organization_id for each in found} == {each.pk for each in far}
    assert {each.period for each in found} == {str(there.date())}
    # The time zones, and one for each day that is today in some of them.
    assert len(queries) <= 4
    watch.write(now, [found])
    assert list(watch.unusual_spend(now)) == []
    assert "Scan on usage_budget" not in (plans := " ".join(plan(each["sql"]) for each in queries))
    assert "SCAN usage_budget" not in plans


def local_time(now: datetime, time_zone: str) -> datetime:
    return now.astimezone(ZoneInfo(time_zone))


def test_failures_rise_above_a_fifth_of_all_requests(alice: Person, charlie: Person) -> None:
    failed: dict[str, Any] = {"outcome": Outcome.FAILED, "tokens": Tokens()}
    for _ in range(9):
        run(alice, **failed)
    assert look() == []
    run(alice, **failed)
    for _ in range(41):
        run(charlie)
    for _ in range(10):
        run(charlie, **failed)
    assert look() == ["failures.rising"]
    row = Event.objects.get()
    assert row.organization_id == alice.project.organization_id
    assert (row.data["failed"], row.data["requests"]) == (10, 10)


def test_requests_of_test_keys_count_neither_as_failed_nor_as_others(alice: Person) -> None:
    row, key = keys.create_key(alice.project, name="ci", is_test=True)
    tester = replace(alice, api_key=row, key=key)
    failed: dict[str, Any] = {"outcome": Outcome.FAILED, "tokens": Tokens(), "price": FREE}
    for _ in range(10):
        run(tester, **failed)
    assert look() == []
    for _ in range(41):
        run(tester, price=FREE)
    for _ in range(10):
        run(alice, **failed)
    assert look() == ["failures.rising"]
    assert Event.objects.get().data["requests"] == 10


def test_a_failed_check_of_the_books_is_the_operators(db: None) -> None:
    now = database_now()
    LedgerCheck.objects.create(checked_at=now, differences=2, first_difference="I2: posted 1")
    assert look(now) == ["ledger_check.failed"]
    assert Event.objects.get().organization_id is None


def test_one_look_asks_the_same_for_many_limits(
    alice: Person, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    run(alice)
    # Not numbers that a key of a test may have: PostgreSQL counts on from test to test.
    for number in range(1_000_000, 1_000_050):
        limit("key", number, "ever", 1)
    now = database_now()
    with django_assert_max_num_queries(14):
        for find in watch.LOOKS:
            watch.look(now, find)
