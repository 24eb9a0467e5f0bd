"""Budgets of weeks, which have no rows: a week is the sum of the rows of its seven days.

So a request costs nothing more where nobody limits weeks, and a week is right from the limit's first moment,
beside processes of an older release, too. All that changes the days of an owner locks its budget "ever", so
that a statement after this lock reads a sum that nobody changes.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from functools import cache
from typing import Any, NamedTuple

from django.db import connection

from usage.books.budget_limits import SIGNED, is_own_of
from usage.database import sql
from usage.models.budget_keys import BudgetKey, LimitKey, Period

DAY = Period.DAY.value  # each look at an enumeration's value is two calls
# The Monday and the Sunday of the week in which a day lies.
_ENDS = {
    "sqlite": ("DATE({day}, '-6 days', 'weekday 1')", "DATE({day}, 'weekday 0')"),
    "postgresql": (
        "({day} - CAST(EXTRACT(ISODOW FROM {day}) AS INTEGER) + 1)",
        "({day} - CAST(EXTRACT(ISODOW FROM {day}) AS INTEGER) + 7)",
    ),
}
# Whether there is a limit of a week, by an index that has no other limits.
HAS_LIMITS = f"EXISTS (SELECT 1 FROM usage_budgetlimit WHERE period = '{Period.WEEK.value}')"  # noqa: S608
_OWNER = [name for name in LimitKey._fields if name != "period"]


def days_of_week() -> str:
    """Return the condition that `d` is a day in the week of the day `b`, of the same owner, in SQL."""
    return _days_of_week(connection.vendor)


@cache
def _days_of_week(vendor: str) -> str:
    first, last = (each.format(day="b.period_start") for each in _ENDS[vendor])
    owner = " AND ".join(f"d.{name} = b.{name}" for name in _OWNER)
    return f"{owner} AND d.period = '{DAY}' AND d.period_start BETWEEN {first} AND {last}"


def of_limits(mondays: Collection[date], condition: str = "1 = 1") -> str:
    """Return a query of these weeks of the limits `w` with this condition, if they have spent something: the
    columns of budgets, and `limit_id`.
    """
    owner = " AND ".join(f"d.{name} = w.{name}" for name in _OWNER)
    parts = ", ".join(f"w.{name}" for name in LimitKey._fields)
    return " UNION ALL ".join(
        f"""SELECT {LimitKey.text_in_sql("w")} || '/{monday}' AS id, {parts},
            DATE('{monday}') AS period_start,
            CAST(SUM(d.posted_nanodollars) AS BIGINT) AS posted_nanodollars,
            CAST(SUM(d.pending_nanodollars) AS BIGINT) AS pending_nanodollars, w.id AS limit_id
        FROM usage_budgetlimit AS w
        JOIN usage_budget AS d ON {owner} AND d.period = '{DAY}'
            AND d.period_start BETWEEN DATE('{monday}') AND DATE('{monday + timedelta(days=6)}')
        WHERE w.period = '{Period.WEEK.value}' AND {condition}
        GROUP BY w.id, {parts}"""  # noqa: S608  the text is ours
        for monday in sorted(mondays)
    )


def read(keys: Collection[BudgetKey]) -> dict[str, tuple[int, int]]:
    """Return what these budgets of weeks have posted and hold, by their ids."""
    weeks = {day_id: str(key) for key in keys for day_id in key.row_ids}
    found = {str(key): (0, 0) for key in keys}
    rows = sql.fetch_all(
        f"""SELECT id, posted_nanodollars, pending_nanodollars FROM usage_budget
        WHERE id IN ({", ".join(["%s"] * len(weeks))})""",  # noqa: S608  the values are parameters
        list(weeks),
    )
    for day_id, posted, pending in rows:
        before = found[weeks[day_id]]
        found[weeks[day_id]] = before[0] + posted, before[1] + pending
    return found


def week_of(day_id: str) -> str:
    """Return the id of the budget of the week in which the day of a budget lies."""
    key = BudgetKey.parse(day_id)
    monday = Period.WEEK.start(key.period_start)
    return str(key._replace(period=Period.WEEK.value, period_start=monday))


class PostedWeek(NamedTuple):
    """A week with a limit after a posting."""

    id: str
    before_nanodollars: int
    posted_nanodollars: int
    signed_limit_nanodollars: int | None
    soft_limit_nanodollars: int | None


def read_posted(ids: Collection[str]) -> sql.Rows:
    """Read the weeks with a limit whose days are among these budgets; `posted` understands the rows, once
    the statement is sent.
    """
    return sql.fetch_later(
        f"""SELECT b.id, {SIGNED}, l.soft_limit_nanodollars,
            (SELECT SUM(d.posted_nanodollars) FROM usage_budget AS d WHERE {days_of_week()})
        FROM usage_budget AS b
        JOIN usage_budgetlimit AS l ON {is_own_of(Period.WEEK)}
        WHERE b.period = '{DAY}' AND b.id IN ({", ".join(["%s"] * len(ids))})""",  # noqa: S608
        list(ids),
    )


def posted(changes: Mapping[str, tuple[int, int]], rows: Sequence[tuple[Any, ...]]) -> list[PostedWeek]:
    """Return the weeks with a limit that these changes of budgets have posted to."""
    amounts: defaultdict[str, int] = defaultdict(int)
    found = {}
    for day_id, *columns in rows:
        week_id = week_of(day_id)
        # A batch may post to several days of a week.
        amounts[week_id] += changes[day_id][1]
        found[week_id] = columns
    return [
        PostedWeek(week_id, int(spent) - amounts[week_id], int(spent), limit, soft)
        for week_id, (limit, soft, spent) in found.items()
    ]
