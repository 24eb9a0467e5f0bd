"""Holds and spends against budgets: conditional updates, so that no budget is ever overdrawn.

Budgets are named by their id, `scope/scope_id/period/period_start`. Rows are always locked in id order: no deadlocks.
"""

from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache

from django.db import connection

from usage.errors import BudgetExceeded
from usage.models import Budget, BudgetLimit, Period, Scope
from usage.sql import execute, fetch_all, rows_of_values

EVER = date(1970, 1, 1)


@lru_cache(maxsize=4_096)
def ids_for(organization_id: int, project_id: int, api_key_id: int, day: date) -> tuple[str, ...]:
    """The nine budgets that a request admitted on that day counts in."""
    scopes = ((Scope.ORGANIZATION, organization_id), (Scope.PROJECT, project_id), (Scope.API_KEY, api_key_id))
    periods = ((Period.DAY, day), (Period.MONTH, day.replace(day=1)), (Period.EVER, EVER))
    return tuple(f"{scope.value}/{scope_id}/{period.value}/{start}" for scope, scope_id in scopes for period, start in periods)


def hold(amounts: Mapping[str, int]) -> None:
    """Add each amount to its budget's pending, all or nothing; must run in a transaction.

    Raises `BudgetExceeded` for the first budget that has no room or does not exist (see `ensure`); the caller then
    rolls back to before the call.
    """
    _lock(amounts)
    values, parameters = rows_of_values("hold", ["target", "amount"], sorted(amounts.items()))
    held = fetch_all(
        f"""{values} UPDATE usage_budget AS b SET pending_nanodollars = b.pending_nanodollars + hold.amount FROM hold
        WHERE b.id = hold.target AND NOT EXISTS (
            SELECT 1 FROM usage_budgetlimit AS l WHERE l.scope = b.scope AND l.scope_id = b.scope_id AND l.period = b.period
            AND b.posted_nanodollars + b.pending_nanodollars + hold.amount > l.limit_nanodollars)
        RETURNING id""",  # noqa: S608  the text is ours, the values are parameters
        parameters,
    )
    refused = sorted(amounts.keys() - {budget_id for (budget_id,) in held})
    if refused:
        raise _exceeded(refused[0], amounts[refused[0]])


def settle(changes: Mapping[str, tuple[int, int]]) -> None:
    """Release and post: each budget's pending falls by the first number, its posted grows by the second."""
    if not changes:
        return
    _lock(changes)
    values, parameters = rows_of_values("change", ["target", "released", "amount"], [(key, *changes[key]) for key in sorted(changes)])
    execute(
        f"""{values} UPDATE usage_budget AS b
        SET pending_nanodollars = b.pending_nanodollars - change.released, posted_nanodollars = b.posted_nanodollars + change.amount
        FROM change WHERE b.id = change.target""",  # noqa: S608
        parameters,
    )


def ensure(ids: Iterable[str]) -> None:
    """Create the budgets that do not exist yet: a period's first request, a new key."""
    Budget.objects.bulk_create([_new(budget_id) for budget_id in sorted(ids)], ignore_conflicts=True)


def _new(budget_id: str) -> Budget:
    scope, scope_id, period, start = budget_id.split("/")
    return Budget(id=budget_id, scope=scope, scope_id=int(scope_id), period=period, period_start=date.fromisoformat(start))


def _lock(ids: Iterable[str]) -> None:
    """Take the rows' locks in id order; SQLite's IMMEDIATE transaction holds the whole database already."""
    if connection.features.has_select_for_update:
        list(Budget.objects.select_for_update().filter(id__in=list(ids)).order_by("id").values_list("id"))


def _exceeded(budget_id: str, amount: int) -> BudgetExceeded:
    budget = _new(budget_id)
    limit = BudgetLimit.objects.filter(scope=budget.scope, scope_id=budget.scope_id, period=budget.period).first()
    posted = Budget.objects.filter(id=budget_id).values_list("posted_nanodollars", flat=True).first() or 0
    return BudgetExceeded(budget_id, is_in_flight=limit is None or posted + amount <= limit.limit_nanodollars)
