"""Events of budgets and credit: one per threshold and period, written by the settlement that crosses it."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from accounts.models import APIKey, Organization, Project
from chatapi import identity
from tests.usage.conftest import DOLLAR, NOW, PRICE, completed, limit, run
from usage.books import corrections, credit, ledger
from usage.books.credit import Note
from usage.books.outbox import PERCENTS
from usage.database.clock import database_now
from usage.models import BudgetLimit, Credit, Event, LedgerEntry, SpendAlert
from usage.notifications import watch

Ask = Callable[..., ledger.Admission]
NOTE = Note("a test", "alice")


def charge_10_000(admission: ledger.Admission, *, days: float = 0) -> None:
    now = NOW + timedelta(days=days)
    assert ledger.admit(now, [admission]) == [admission.id]
    ledger.settle(now, [completed(run(admission, now), prompt=10, completion=0)])


def look(days: float) -> None:
    now = NOW + timedelta(days=days)
    watch.write(now, [watch.look(now, find) for find in watch.LOOKS])


def events() -> list[str]:
    return sorted(f"{each.subject} {each.period} {each.threshold}" for each in Event.objects.all())


def test_each_threshold_of_a_limit_is_one_event_in_each_period(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "day", 100_000)
    for _ in range(4):
        charge_10_000(ask(max_output_tokens=1))
    assert events() == []
    charge_10_000(ask(max_output_tokens=1))
    assert events() == [f"key/{key.pk}/day 2026-11-21 50"]
    for _ in range(3):
        charge_10_000(ask(max_output_tokens=1))
    assert events() == [f"key/{key.pk}/day 2026-11-21 50", f"key/{key.pk}/day 2026-11-21 80"]
    for _ in range(5):
        charge_10_000(ask(max_output_tokens=1), days=1)
    assert f"key/{key.pk}/day 2026-11-22 50" in events()


def test_one_large_request_crosses_all_thresholds_of_all_its_budgets(key: APIKey, ask: Ask) -> None:
    owners = {"key": key.pk, "project": key.project_id, "organization": key.project.organization_id}
    for scope, pk in owners.items():
        limit(scope, pk, "ever", 10_000)
    ledger.admit(NOW, [admission := ask(max_output_tokens=1, prompt_tokens_bound=8)])
    ledger.settle(NOW, [completed(run(admission), prompt=8, completion=1)])
    assert events() == sorted(
        f"{scope}/{pk}/ever ever {percent}" for scope, pk in owners.items() for percent in ("100", "50", "80")
    )
    row = Event.objects.get(subject=f"key/{key.pk}/ever", threshold="80")
    assert row.organization_id == key.project.organization_id
    assert row.created_at == NOW
    assert row.data == {
        "scope": "key",
        "scope_id": str(key.pk),
        "name": "Ledger stories / default / default",
        "period": "ever",
        "period_start": None,
        "limit_usd": "0.00001",
        "is_soft": False,
        "spent_usd": "0.00001",
        "reached": ["50", "80", "100"],
        "threshold": "80",
    }


def test_a_soft_limit_has_thresholds_and_beside_another_limit_an_event(key: APIKey, ask: Ask) -> None:
    BudgetLimit.objects.create(scope="key", scope_id=key.pk, period="day", soft_limit_nanodollars=20_000)
    BudgetLimit.objects.create(
        scope="project",
        scope_id=key.project_id,
        period="day",
        limit_nanodollars=1_000_000,
        soft_limit_nanodollars=20_000,
    )
    for _ in range(3):
        charge_10_000(ask())
    assert events() == [
        *(f"key/{key.pk}/day 2026-11-21 {percent}" for percent in ("100", "50", "80")),
        f"project/{key.project_id}/day 2026-11-21 warning",
    ]
    assert Event.objects.get(threshold="100").data["is_soft"]


def test_an_end_user_has_events_for_a_limit_of_its_own_only(key: APIKey, ask: Ask) -> None:
    limit("project_user", key.project_id, "day", 10_000)
    ledger.admit(
        NOW,
        [
            admission := ask(
                max_output_tokens=1, prompt_tokens_bound=8, end_user="mallory", counts_end_user=True
            )
        ],
    )
    ledger.settle(NOW, [completed(run(admission), prompt=8, completion=1)])
    assert events() == []


@pytest.mark.django_db(transaction=True)
def test_events_are_in_the_transaction_that_crosses_their_thresholds(key: APIKey, ask: Ask) -> None:
    organization = key.project.organization
    limit("key", key.pk, "ever", 20_000)
    credit.grant(organization, 20_000, NOTE)
    Credit.objects.update(low_credit_nanodollars=15_000)
    ledger.admit(NOW, [admission := ask(max_output_tokens=1)])
    settlement = completed(run(admission), prompt=10, completion=0)
    crossed = [f"key/{key.pk}/ever ever 50", f"organization/{organization.pk} 0.00002 "]

    with transaction.atomic():
        ledger.settle(NOW, [settlement])
        assert events() == crossed
        transaction.set_rollback(True)
    assert events() == []
    assert not LedgerEntry.objects.filter(kind="charge").exists()

    with transaction.atomic():
        ledger.settle(NOW, [settlement])
        assert events() == crossed
    assert events() == crossed


def test_an_event_costs_a_statement_and_no_crossing_costs_none(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "day", 100_000)
    credit.grant(key.project.organization, DOLLAR, NOTE)
    counts = []
    for _ in range(6):
        ledger.admit(NOW, [admission := ask(max_output_tokens=1)])
        settlement = completed(run(admission), prompt=10, completion=0)
        with CaptureQueriesContext(connection) as asked, transaction.atomic():
            ledger.settle(NOW, [settlement])
        counts.append(len([each for each in asked if "SAVEPOINT" not in each["sql"]]))
    # Rows locked and updated, entries, hours, budgets updated, and on PostgreSQL locked before; the owner and
    # the event beside them.
    usual = 6 if connection.vendor == "postgresql" else 5
    assert counts == [usual] * 4 + [usual + 2, usual]


def test_thresholds_are_looked_for_from_the_first_limit_on(key: APIKey, ask: Ask) -> None:
    with CaptureQueriesContext(connection) as asked:
        for _ in range(4):
            charge_10_000(ask(max_output_tokens=1))
    postings = [each["sql"] for each in asked if "WITH change" in each["sql"]]
    assert ["RETURNING" in each for each in postings] == [False] * 4
    limit("key", key.pk, "ever", 100_000)
    charge_10_000(ask(max_output_tokens=1))
    assert events() == [f"key/{key.pk}/ever ever 50"]


def test_a_correction_crosses_thresholds_too(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "ever", 100_000)
    charge_10_000(ask())
    entry = LedgerEntry.objects.get(kind="charge")
    corrections.correct(entry.pk, 40_000, NOTE)
    assert events() == [f"key/{key.pk}/ever ever 50"]
    corrections.correct(entry.pk, -40_000, NOTE)
    corrections.correct(entry.pk, 40_000, NOTE)
    assert events() == [f"key/{key.pk}/ever ever 50"]


def test_a_correction_is_no_news_of_a_day_or_month_that_is_over(key: APIKey, ask: Ask) -> None:
    for period in ("day", "month", "ever"):
        limit("key", key.pk, period, 100_000)
    charge_10_000(ask())
    correction = corrections.Correction(LedgerEntry.objects.get(), 40_000, NOTE.reason, NOTE.recorded_by)
    corrections.write(NOW + timedelta(days=40), [correction])
    assert events() == [f"key/{key.pk}/ever ever 50"]


def alert_at(nanodollars: int, project: Project | None, organization: Organization) -> SpendAlert:
    alert = SpendAlert.objects.create(
        organization=organization, project=project, threshold_nanodollars=nanodollars, recipients=[]
    )
    SpendAlert.objects.filter(pk=alert.pk).update(created_at=NOW)
    return alert


def test_a_spend_alert_is_one_event_of_each_month(key: APIKey, ask: Ask) -> None:
    organization = key.project.organization
    other = Project.objects.create(organization=organization, name="other")
    alert_at(1, other, organization)
    own, whole = (
        alert_at(n, project, organization) for n, project in ((10_000, key.project), (15_000, None))
    )
    for days, found in (
        (0, [f"{own.pk} 2026-11-01"]),
        (1, [f"{own.pk} 2026-11-01", f"{whole.pk} 2026-11-01"]),
        (2, [f"{own.pk} 2026-11-01", f"{whole.pk} 2026-11-01"]),
        (20, [f"{own.pk} 2026-11-01", f"{own.pk} 2026-12-01", f"{whole.pk} 2026-11-01"]),
    ):
        charge_10_000(ask(max_output_tokens=1), days=days)
        look(days)
        assert events() == sorted(f"spend_alert/{each} " for each in found)
    first = Event.objects.get(subject=f"spend_alert/{own.pk}", period="2026-11-01")
    assert (first.organization_id, first.kind) == (organization.pk, "spend.alert")
    assert first.data == {
        "alert_id": str(own.pk),
        "project_id": str(key.project_id),
        "project": "default",
        "period_start": "2026-11-01",
        "threshold_usd": "0.00001",
        "spent_usd": "0.00001",
        "subject_prefix": "",
    }


def test_a_spend_alert_of_an_archived_project_is_sent_only_once_it_is_active(key: APIKey, ask: Ask) -> None:
    alert = alert_at(10_000, key.project, key.project.organization)
    whole = alert_at(10_000, None, key.project.organization)
    charge_10_000(ask(max_output_tokens=1))
    Project.objects.update(is_active=False)
    look(1)
    assert events() == [f"spend_alert/{whole.pk} 2026-11-01 "]
    Project.objects.update(is_active=True)
    look(1)
    assert events() == sorted(f"spend_alert/{each.pk} 2026-11-01 " for each in (alert, whole))


def test_the_month_of_a_spend_alert_is_that_of_the_organizations_time_zone(key: APIKey, ask: Ask) -> None:
    organization = key.project.organization
    Organization.objects.filter(pk=organization.pk).update(time_zone="Europe/Berlin")
    alert = alert_at(10_000, None, organization)
    days = 9.47  # 23:17 in UTC on the last day of November
    charge_10_000(ask(max_output_tokens=1, time_zone="Europe/Berlin"), days=days)
    look(days)
    assert events() == [f"spend_alert/{alert.pk} 2026-12-01 "]


def test_a_spend_alert_reached_at_midnight_is_of_the_month_before(key: APIKey, ask: Ask) -> None:
    organization, admission = key.project.organization, ask(max_output_tokens=1)
    last_minute, midnight = (NOW + timedelta(days=days) for days in (9.4999, 9.5))
    alert, *new = (alert_at(10_000, None, organization) for _ in range(2))
    SpendAlert.objects.filter(pk=new[0].pk).update(created_at=midnight)
    assert ledger.admit(last_minute, [admission]) == [admission.id]
    settled = completed(run(admission, last_minute), prompt=10, completion=0)
    ledger.settle(midnight + timedelta(minutes=1), [settled])
    look(10.6)
    assert events() == []
    look(10.4)
    assert events() == [f"spend_alert/{alert.pk} 2026-11-01 "]


def test_credit_is_low_once_after_each_grant(key: APIKey, ask: Ask) -> None:
    organization = key.project.organization
    credit.grant(organization, 100_000, NOTE)
    for _ in range(9):
        charge_10_000(ask())
    assert events() == []  # exactly a tenth is left
    charge_10_000(ask())
    assert events() == [f"organization/{organization.pk} 0.0001 "]
    assert Event.objects.get().data == {
        "balance_usd": "0",
        "threshold_usd": "0.00001",
        "credited_usd": "0.0001",
    }
    credit.grant(organization, 20_000, NOTE)
    charge_10_000(ask())
    charge_10_000(ask())
    assert len(events()) == 2


@pytest.mark.parametrize(
    "bookings",
    [
        pytest.param((credit.reclaim, credit.grant), id="a payment that is disputed, and another one"),
        pytest.param((credit.grant, credit.reclaim), id="a second payment, which is disputed"),
    ],
)
def test_credit_is_low_again_after_bookings_that_lead_back_to_an_amount(
    key: APIKey, ask: Ask, bookings: tuple[Callable[..., object], ...]
) -> None:
    organization = key.project.organization
    credit.grant(organization, 100_000, NOTE)
    for _ in range(10):
        charge_10_000(ask())
    assert len(events()) == 1
    for book in bookings:
        book(organization, 50_000, NOTE)
    for _ in range(2):
        watch.write(NOW, [watch.look(database_now(), find) for find in watch.LOOKS])
    assert [row.data["balance_usd"] for row in Event.objects.all()] == ["0", "0"]


def test_an_organization_chooses_what_low_credit_is(key: APIKey, ask: Ask) -> None:
    credit.grant(key.project.organization, 100_000, NOTE)
    Credit.objects.update(low_credit_nanodollars=95_000)
    charge_10_000(ask())
    assert len(events()) == 1
    Credit.objects.update(low_credit_nanodollars=0)
    credit.grant(key.project.organization, 1, NOTE)
    for _ in range(10):  # the last one beyond the credit, which is not required
        charge_10_000(ask())
    watch.write(NOW, [watch.look(database_now(), find) for find in watch.LOOKS])
    assert len(events()) == 1


# Batches of prompt tokens, each of 1,000 n$.
BATCHES = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=8)


class TestAnyHistory(TestCase):
    """x."""

    @settings(max_examples=80)
    @given(BATCHES, st.integers(1, 200_000), st.booleans(), st.integers(-30_000, 60_000))
    def test_each_reached_threshold_is_one_event(
        self, batches: list[list[int]], limited: int, is_soft: bool, correction: int
    ) -> None:
        organization = Organization.objects.create(name="Ledger stories")
        project = Project.objects.create(organization=organization)
        key = APIKey.objects.create(project=project, public="storystory12", digest="0" * 64)
        limits = {"soft_limit_nanodollars" if is_soft else "limit_nanodollars": limited}
        spent = most = 0
        for batch in batches:
            BudgetLimit.objects.all().delete()
            admissions = [admission_of(key) for _ in batch]
            assert ledger.admit(NOW, admissions) == [each.id for each in admissions]
            # Set after the admissions: no limit refuses one, as when upstreams count more than was held.
            BudgetLimit.objects.create(scope="key", scope_id=key.pk, period="ever", **limits)
            ledger.settle(
                NOW,
                [
                    completed(run(each), prompt=tokens, completion=0)
                    for each, tokens in zip(admissions, batch, strict=True)
                ],
            )
            spent += 1_000 * sum(batch)
            most = max(most, spent)
        entry = LedgerEntry.objects.filter(amount_nanodollars__gt=max(0, -correction)).first()
        if entry is not None and correction:
            corrections.correct(entry.pk, correction, NOTE)
            most = max(most, spent + correction)
        reached = sorted(str(each) for each in PERCENTS if most * 100 >= each * limited)
        assert sorted(Event.objects.values_list("threshold", flat=True)) == reached


def admission_of(key: APIKey) -> ledger.Admission:
    """Return the admission of a request that is free to admit, and whose upstream counts as it likes."""
    return ledger.Admission(
        id=identity.new_id(), organization_id=key.project.organization_id, project_id=key.project_id,
        api_key_id=key.pk, time_zone="UTC", is_test=False, model="story", endpoint="chat.completions",
        dialect="openai", is_stream=True, choices_count=1, sampled_count=1, max_output_tokens=0,
        prompt_tokens_bound=0, price=PRICE, queue_ttl_ms=60_000,
    )  # fmt: skip
