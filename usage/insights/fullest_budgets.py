"""The budgets that are nearest to their limit, each in its current period."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import islice

from django.utils import timezone

from usage.books import budget_limits, weeks
from usage.database.clock import clock_in_statement, local_day
from usage.database.sql import db_value, fetch_all, to_date, to_datetime
from usage.database.time_limit import time_limit
from usage.models import Period
from usage.models.budget_keys import ROW_PERIODS, BudgetKey

# The share of its limit from which a budget counts as near it.
NEAR_LIMIT = 0.8
# Budgets that are read at most: in some time zones, their period may be over already.
_MAX_CANDIDATES = 3_000


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A budget in its current period, and its limit."""

    key: BudgetKey
    label: str
    time_zone: str
    posted_nanodollars: int
    pending_nanodollars: int
    limit_nanodollars: int
    limit_id: int

    @property
    def last_day(self) -> date | None:
        """Return the last day of the period; None if it has no end."""
        return self.key.resets_on and self.key.resets_on - timedelta(days=1)

    @property
    def share(self) -> float:
        """Return the share of the limit that is spent or held; above 1 after the limit was lowered."""
        return (self.posted_nanodollars + self.pending_nanodollars) / self.limit_nanodollars


@time_limit()
def budgets_near_limit(n: int = 5, organizations: Collection[int] | None = None) -> list[BudgetUse]:
    """Return the `n` budgets nearest to their limit, the nearest first, of these organizations or of all."""
    current = (
        use
        for use, now in _fullest(organizations)
        if use.key.period_start == Period(use.key.period).start(local_day(now, use.time_zone))
    )
    return list(islice(current, n))


# As in `books/spending.py`.
_MAX_SKEW = timedelta(days=1)
# In between, the calendar of each time zone has one of their days.
_FIRST_TO_LAST = ("Pacific/Kiritimati", "UTC", "Etc/GMT+12")
# The organization, the project and the end of the name of the owner of the budget `b`.
_OWNERS = """
    LEFT JOIN accounts_apikey AS k ON b.scope = 'key' AND k.id = b.scope_id
    LEFT JOIN accounts_enduser AS u ON b.scope = 'end_user' AND u.id = b.scope_id
    LEFT JOIN accounts_project AS p ON p.id = CASE b.scope
        WHEN 'project' THEN b.scope_id WHEN 'key' THEN k.project_id WHEN 'end_user' THEN u.project_id END
    JOIN accounts_organization AS o ON o.id = CASE b.scope
        WHEN 'organization' THEN b.scope_id ELSE p.organization_id END"""


def _fullest(organizations: Collection[int] | None) -> list[tuple[BudgetUse, datetime]]:
    """Return budgets whose period is the current one in some time zone, the fullest first, each with the
    database's time.
    """
    now_sql, now = clock_in_statement()
    # Its clock may differ from this process's, and is read in the same statement.
    times = [timezone.now() + skew for skew in (-_MAX_SKEW, _MAX_SKEW)]
    days = [local_day(time, zone) for time in times for zone in _FIRST_TO_LAST]
    current = sorted({(period.value, period.start(day)) for day in days for period in ROW_PERIODS})
    mondays = {Period.WEEK.start(day) for day in days}
    ids = [] if organizations is None else list(organizations)
    only = "" if organizations is None else f"o.id IN ({', '.join(['%s'] * len(ids)) or 'NULL'}) AND"
    periods = ", ".join(["(%s, %s)"] * len(current))
    columns = f"""SELECT b.posted_nanodollars, b.pending_nanodollars, l.limit_nanodollars, l.id, o.time_zone,
            o.name, p.name, COALESCE(k.name, u.name), {now_sql},
            {", ".join(f"b.{name}" for name in BudgetKey._fields)},
            (b.posted_nanodollars + b.pending_nanodollars) * 1.0 / l.limit_nanodollars AS share,
            b.id AS budget_id
        FROM usage_budgetlimit AS l"""  # noqa: S608  the text is ours
    rows = fetch_all(
        f"""{columns} JOIN usage_budget AS b ON {budget_limits.IS_OWN} {_OWNERS}
        WHERE {only} l.limit_nanodollars > 0 AND (b.period, b.period_start) IN (VALUES {periods})
        UNION ALL {columns} JOIN ({weeks.of_limits(mondays)}) AS b ON b.limit_id = l.id {_OWNERS}
        WHERE {only} l.limit_nanodollars > 0
        ORDER BY share DESC, budget_id LIMIT {_MAX_CANDIDATES}""",
        [*now, *ids, *(db_value(value) for pair in current for value in pair), *now, *ids],
    )
    found = []
    for *row, _, _ in rows:
        amounts, time_zone, names, key = row[:4], row[4], row[5:8], BudgetKey(*row[9:])
        key = key._replace(period_start=to_date(key.period_start))
        use = BudgetUse(key, " / ".join(filter(None, names)), time_zone, *amounts)
        found.append((use, to_datetime(row[8]).replace(tzinfo=UTC)))
    return found
