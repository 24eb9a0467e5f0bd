"""What is spent and held of the budgets that can refuse a key."""

from dataclasses import dataclass
from datetime import date

from django.db.models import Q

from usage.books import budgets
from usage.database.clock import database_now, local_day
from usage.models import Budget, BudgetLimit, Scope
from usage.models.budgets import BudgetKey, BudgetOwners, LimitKey


@dataclass(frozen=True, slots=True)
class Spending:
    """One budget in its current period; `limit_nanodollars` is None without a limit."""

    scope: str
    period: str
    period_start: date
    limit_nanodollars: int | None
    posted_nanodollars: int
    pending_nanodollars: int


def now(*, organization_id: int, project_id: int, api_key_id: int, time_zone: str) -> list[Spending]:
    """Return the key's own budgets, and the limited ones of its project and organization.

    Spending of others in the organization appears only where it limits this key.
    """
    owners = BudgetOwners(organization_id, project_id, api_key_id)
    # The day of the database's clock, as in admissions: the process may run on a machine whose clock is
    # off.
    ids = budgets.ids_for(owners, local_day(database_now(), time_zone))
    # A budget has a row from its first request on; without a row it is at zero.
    known = Budget.objects.in_bulk(ids)
    limits = _limits(owners)
    found = [_spending(budget_id, known.get(budget_id), limits) for budget_id in ids]
    return [each for each in found if each.scope == Scope.API_KEY or each.limit_nanodollars is not None]


def _limits(owners: BudgetOwners) -> dict[LimitKey, int]:
    rows = BudgetLimit.objects.filter(
        Q(scope=Scope.ORGANIZATION, scope_id=owners.organization_id)
        | Q(scope=Scope.PROJECT, scope_id=owners.project_id)
        | Q(scope=Scope.API_KEY, scope_id=owners.api_key_id)
    )
    return {row.key: row.limit_nanodollars for row in rows if row.limit_nanodollars is not None}


def _spending(budget_id: str, row: Budget | None, limits: dict[LimitKey, int]) -> Spending:
    key = BudgetKey.parse(budget_id)
    return Spending(
        scope=key.scope,
        period=key.period,
        period_start=key.period_start,
        # A limit belongs to an owner and a kind of period; the start of the period is not a part of it.
        limit_nanodollars=limits.get(key.limit_key),
        posted_nanodollars=row.posted_nanodollars if row else 0,
        pending_nanodollars=row.pending_nanodollars if row else 0,
    )
