"""Soft limits: they refuse nobody, and the budget says when it reached one."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, run
from usage.books import ledger
from usage.models import Budget, BudgetLimit

Ask = Callable[..., ledger.Admission]


@pytest.fixture
def soft_limit(key: APIKey) -> BudgetLimit:
    return BudgetLimit.objects.create(
        scope="key", scope_id=key.pk, period="day", soft_limit_nanodollars=40_000
    )


def charge_20_000(admission: ledger.Admission, days: int = 0) -> None:
    now = NOW + timedelta(days=days)
    assert ledger.admit(now, [admission]) == [admission.id]
    ledger.settle(now, [completed(run(admission, now), prompt=10, completion=5)])


def test_reaching_it_refuses_nobody_and_is_recorded_once_a_period(ask: Ask, soft_limit: BudgetLimit) -> None:
    reached = Budget.objects.filter(soft_limit_reached_at__isnull=False)
    charge_20_000(ask())
    assert not reached.exists()
    charge_20_000(ask())
    charge_20_000(ask(), days=1)
    charge_20_000(ask(), days=1)
    charge_20_000(ask(), days=1)
    assert [(row.period, row.soft_limit_reached_at) for row in reached.order_by("id")] == [
        ("day", NOW),
        ("day", NOW + timedelta(days=1)),
    ]


def test_it_costs_no_statement_but_those_of_its_event(
    key: APIKey, ask: Ask, soft_limit: BudgetLimit, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    charge_20_000(ask())
    ledger.admit(NOW, [admission := ask()])
    settlement = completed(run(admission))
    # Rows locked and updated, entries, budgets locked and updated, hours; the owner's name, and the event.
    with django_assert_max_num_queries(8):
        ledger.settle(NOW, [settlement])
    assert Budget.objects.filter(soft_limit_reached_at=NOW).count() == 1
