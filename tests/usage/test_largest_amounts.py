"""Amounts at the end of what a column holds: they are refused like anything that does not fit, and the sums
stay exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise
from typing import Any

import pytest
from django.db.models import DateField, Field

from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, limit, run
from usage.books import ledger
from usage.errors import BudgetExceeded
from usage.models import Budget
from usage.models.budget_keys import BudgetKey
from usage.pricing import MAX_USD, NANODOLLARS, Price
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
DEAREST = Price(*[MAX_USD * NANODOLLARS] * 3)
MOST_TOKENS = 2**31 - 1
"""The most of both that a catalog takes: four such requests can be held for, a fifth can't."""


@pytest.fixture
def dear(ask: Ask) -> Callable[..., ledger.Admission]:
    """Make the admission of the dearest request that there is for one choice."""
    return lambda **changes: ask(
        **{"price": DEAREST, "max_output_tokens": MOST_TOKENS, "prompt_tokens_bound": 0} | changes
    )


def test_the_column_of_a_budgets_id_holds_the_longest() -> None:
    longest = BudgetKey._make(
        date.max if isinstance(column, DateField) else "x" * (column.max_length or len(str(-(2**63))))
        for column in map(Budget._meta.get_field, BudgetKey._fields)
        if isinstance(column, Field)
    )
    room = Budget._meta.pk.max_length
    assert room is not None
    assert len(str(longest)) <= room


@pytest.mark.parametrize("has_limit", [True, False])
def test_what_no_budget_can_hold_is_refused_for_good(key: APIKey, dear: Ask, has_limit: bool) -> None:
    if has_limit:
        limit("key", key.pk, "day", NANODOLLARS)
    (refused, admitted) = ledger.admit(
        NOW, [dear(sampled_count=128), dear(price=replace(DEAREST, output_per_mtok_nanodollars=0))]
    )
    assert isinstance(refused, BudgetExceeded)
    assert not refused.is_in_flight
    assert not isinstance(admitted, BudgetExceeded)


@pytest.mark.parametrize("batches", [[5], [4, 1], [2, 3], [1] * 5])
def test_no_sum_grows_beyond_its_column(key: APIKey, dear: Ask, batches: Sequence[int]) -> None:
    asked = [dear() for _ in range(5)]
    ends = [sum(batches[:number]) for number in range(len(batches) + 1)]
    results: list[Any] = [
        result for first, last in pairwise(ends) for result in ledger.admit(NOW, asked[first:last])
    ]
    assert results[:4] == [each.id for each in asked[:4]]
    assert isinstance(results[4], BudgetExceeded)
    assert results[4].is_in_flight
    assert set(Budget.objects.values_list("pending_nanodollars", flat=True)) == {
        4 * asked[0].reserved_nanodollars
    }
    ledger.settle(NOW, [completed(run(each), prompt=0) for each in asked[:4]])
    assert verify().differences == []


def test_a_budget_that_is_below_zero_takes_what_any_other_takes(key: APIKey, ask: Ask) -> None:
    """No booking makes a budget negative, but no statement may fail over one."""
    limit("key", key.pk, "day", NANODOLLARS)
    ledger.admit(NOW, [ask()])
    Budget.objects.update(posted_nanodollars=-(2**40))
    (admitted,) = ledger.admit(NOW, [ask()])
    assert not isinstance(admitted, BudgetExceeded)
