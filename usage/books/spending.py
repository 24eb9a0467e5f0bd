"""What is spent and held of the budgets that can refuse a key."""

from dataclasses import dataclass, replace
from datetime import UTC, timedelta

from django.utils import timezone

from usage.database.clock import clock_in_statement, local_day
from usage.database.sql import fetch_all, rows_of_values, to_datetime
from usage.models import Period, Scope
from usage.models.budget_keys import BudgetKey, BudgetOwners, LimitKey

_SCOPES, _PERIODS = Scope.values, Period.values


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
    owners = BudgetOwners(organization_id, project_id, api_key_id, end_user_id=None)
    # The day of the database's clock, as in admissions: the process may run on a machine whose clock is
    # off. That clock is read in the same statement.
    here = timezone.now()
    ids = {
        day: owners.budget_ids(day) + owners.week_ids(day)
        for day in (local_day(here + timedelta(days=days), time_zone) for days in (-1, 0, 1))
    }
    keys = {budget_id: BudgetKey.parse(budget_id) for of_day in ids.values() for budget_id in of_day}
    # A budget has a row from its first request on; without a row it is at zero.
    values, parameters = rows_of_values(
        "wanted",
        ["budget_id", "row_id", *(f"of_{name}" for name in LimitKey._fields)],
        [(each, row_id, *LimitKey.of(key)) for each, key in keys.items() for row_id in key.row_ids],
    )
    is_own = " AND ".join(f"l.{name} = w.of_{name}" for name in LimitKey._fields)
    now_sql, own = clock_in_statement()
    rows = fetch_all(
        f"""{values} SELECT {now_sql}, w.budget_id, l.id, l.limit_nanodollars,
            COALESCE(b.posted_nanodollars, 0), COALESCE(b.pending_nanodollars, 0)
        FROM wanted AS w LEFT JOIN usage_budget AS b ON b.id = w.row_id
        LEFT JOIN usage_budgetlimit AS l ON {is_own}""",  # noqa: S608  the text is ours
        [*parameters, *own],
    )
    by_id: dict[str, Spending] = {}
    for _, budget_id, limit_id, limit, *spent in rows:
        each = Spending(keys[budget_id], limit_id, limit, *spent)
        if (known := by_id.get(budget_id)) is not None:
            # Another day of a week.
            each = replace(
                each,
                posted_nanodollars=each.posted_nanodollars + known.posted_nanodollars,
                pending_nanodollars=each.pending_nanodollars + known.pending_nanodollars,
            )
        by_id[budget_id] = each
    today = local_day(to_datetime(rows[0][0]).replace(tzinfo=UTC), time_zone)
    found = [by_id[budget_id] for budget_id in ids[min(ids, key=lambda day: abs(day - today))]]
    shown = [each for each in found if each.key.scope == Scope.API_KEY or each.limit_nanodollars is not None]
    return sorted(shown, key=lambda each: (_SCOPES.index(each.key.scope), _PERIODS.index(each.key.period)))
