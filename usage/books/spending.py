"""What is spent and held of the budgets that can refuse a key."""

from dataclasses import dataclass

from usage.books.budget_limits import own_limits
from usage.database.clock import database_now, local_day
from usage.models import Budget, BudgetLimit, Scope
from usage.models.budget_keys import BudgetKey, BudgetOwners, LimitKey


@dataclass(frozen=True, slots=True)
class Spending:
    """One budget in its current period; both values of the limit are None without one."""

    key: BudgetKey
    limit_id: int | None
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
    ids = owners.budget_ids(local_day(database_now(), time_zone))
    keys = {budget_id: BudgetKey.parse(budget_id) for budget_id in ids}
    # A budget has a row from its first request on; without a row it is at zero.
    rows = Budget.objects.in_bulk(ids)
    limits = own_limits(LimitKey.of(key) for key in keys.values())
    found = [
        _spending(key, rows.get(budget_id) or Budget(), limits.get(LimitKey.of(key)))
        for budget_id, key in keys.items()
    ]
    return [each for each in found if each.key.scope == Scope.API_KEY or each.limit_nanodollars is not None]


def _spending(key: BudgetKey, row: Budget, limit: BudgetLimit | None) -> Spending:
    return Spending(
        key=key,
        limit_id=limit.pk if limit else None,
        limit_nanodollars=limit.limit_nanodollars if limit else None,
        posted_nanodollars=row.posted_nanodollars,
        pending_nanodollars=row.pending_nanodollars,
    )
