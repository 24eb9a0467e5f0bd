"""Finds the limit of a budget, in SQL.

It is the limit of the budget's owner. An end user has the nearest of three: its own, the one that its project
sets for each end user, or the one that its organization sets.
"""

from collections.abc import Iterable
from typing import Literal

from usage.models import Period, Scope
from usage.models.budget_keys import LIMIT_PARTS, LimitKey


def _equal(limit: str, columns: Iterable[str], budget: str = "b", period: Period | None = None) -> str:
    values = {name: f"{budget}.{name}" for name in columns}
    if period is not None:
        values["period"] = f"'{period.value}'"
    return " AND ".join(f"{limit}.{name} = {value}" for name, value in values.items())


def is_own_of(period: Period) -> str:
    """Return whether `l` limits this period of the owner of the budget `b`, in SQL."""
    return _equal("l", LimitKey._fields, period=period)


def _own(period: Period | None) -> str:
    return f"FROM usage_budgetlimit AS l WHERE {_equal('l', LimitKey._fields, period=period)}"


def _nearest(period: Period | None) -> str:
    return f"""FROM (
        SELECT n.limit_nanodollars, n.soft_limit_nanodollars FROM usage_budgetlimit AS n
        WHERE {_equal("n", LIMIT_PARTS, period=period)} AND (n.scope = b.scope AND n.scope_id = b.scope_id
            OR b.scope = 'end_user' AND n.scope = 'project_user' AND n.scope_id = (
                SELECT u.project_id FROM accounts_enduser AS u WHERE u.id = b.scope_id)
            OR b.scope = 'end_user' AND n.scope = 'org_user' AND n.scope_id = (
                SELECT p.organization_id FROM accounts_enduser AS u
                JOIN accounts_project AS p ON p.id = u.project_id WHERE u.id = b.scope_id))
        ORDER BY CASE n.scope WHEN 'org_user' THEN 2 WHEN 'project_user' THEN 1 ELSE 0 END LIMIT 1) AS l
    WHERE 1 = 1"""  # noqa: S608  the text is ours


# Whether `l` is the own limit of the budget `b`, in SQL.
IS_OWN = _equal("l", LimitKey._fields)
_END_USER = Scope.END_USER.value  # each look at an enumeration's value is two calls
# Two texts, because the second costs a subquery for each budget, which only budgets of end users need.
_LIMITS, _NEAREST_LIMITS = (
    {period: text(period) for period in (None, Period.WEEK)} for text in (_own, _nearest)
)

# The limit `l` as one number: a hard limit as it is, a soft limit without one as a negative number. A hard
# limit of 0 has no percentages, so it counts as none.
SIGNED = "CASE WHEN l.limit_nanodollars > 0 THEN l.limit_nanodollars ELSE -l.soft_limit_nanodollars END"


def signed_limit_of(budget: str) -> str:
    """Return a query of the owner's limit of a row of `usage_budget`, which the statement calls `budget`.

    It is the amount, or minus the amount of a soft limit that is the only one.
    """
    is_own = _equal("l", LimitKey._fields, budget)
    return f"(SELECT {SIGNED} FROM usage_budgetlimit AS l WHERE {is_own})"  # noqa: S608  the text is ours


def limit_of(ids: Iterable[str], period: Literal[Period.WEEK] | None = None) -> str:
    """Return the part of a query that finds the limit `l` of each budget `b` with one of these ids; of a week
    instead: that of the week of each day `b`.
    """
    return (_NEAREST_LIMITS if any(each.startswith(_END_USER) for each in ids) else _LIMITS)[period]
