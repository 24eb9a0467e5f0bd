"""What is spent and held of the budgets that can refuse a key."""

from dataclasses import dataclass

from usage.database.clock import database_now, local_day
from usage.database.sql import fetch_all, rows_of_values
from usage.models import Scope
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
    values, parameters = rows_of_values(
        "wanted",
        ["budget_id", *(f"of_{name}" for name in LimitKey._fields)],
        [(budget_id, *LimitKey.of(key)) for budget_id, key in keys.items()],
    )
    is_own = " AND ".join(f"l.{name} = w.of_{name}" for name in LimitKey._fields)
    rows = fetch_all(
        f"""{values} SELECT w.budget_id, l.id, l.limit_nanodollars,
            COALESCE(b.posted_nanodollars, 0), COALESCE(b.pending_nanodollars, 0)
        FROM wanted AS w LEFT JOIN usage_budget AS b ON b.id = w.budget_id
        LEFT JOIN usage_budgetlimit AS l ON {is_own}""",  # noqa: S608  the text is ours
        parameters,
    )
    by_id = {budget_id: Spending(keys[budget_id], *columns) for budget_id, *columns in rows}
    found = [by_id[budget_id] for budget_id in ids]
    return [each for each in found if each.key.scope == Scope.API_KEY or each.limit_nanodollars is not None]
