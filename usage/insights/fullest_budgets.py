"""The budgets that are nearest to their limit, each in its current period."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta

from accounts.models import Organization
from usage.books import budget_limits
from usage.database.clock import database_now, local_day
from usage.database.sql import db_value, fetch_all, to_date
from usage.database.time_limit import time_limit
from usage.models import Period, Scope
from usage.models.budget_keys import BudgetKey
from usage.models.budgets import OWNERS

# The share of its limit from which a budget counts as near it.
NEAR_LIMIT = 0.8
# Budgets that are read at most: in some time zones, their period may be over already.
_MAX_CANDIDATES = 1_000


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
def budgets_near_limit(n: int = 5, limits: Collection[int] | None = None) -> list[BudgetUse]:
    """Return the `n` budgets nearest to their limit, the nearest first, of these limits (by id) or of all."""
    rows = _fullest(limits)
    owners = {
        scope: _owners(scope, {key.scope_id for key, *_ in rows if key.scope == scope}) for scope in Scope
    }
    now = database_now()
    found: list[BudgetUse] = []
    for key, *amounts in rows:
        label, time_zone = owners[Scope(key.scope)].get(key.scope_id, ("", ""))
        if label and key.period_start == Period(key.period).start(local_day(now, time_zone)):
            found.append(BudgetUse(key, label, time_zone, *amounts))
    return found[:n]


def _fullest(limits: Collection[int] | None) -> list[tuple[BudgetKey, int, int, int, int]]:
    """Return budgets whose period is the current one in any organization's time zone, the fullest first,
    with their posted and pending amounts, their limits and the ids of these.
    """
    now = database_now()
    zones = Organization.objects.order_by().values_list("time_zone", flat=True).distinct()
    current = sorted(
        {(period.value, period.start(local_day(now, zone))) for zone in zones for period in Period}
    )
    if not current:
        return []
    only = "" if limits is None else f"l.id IN ({', '.join(['%s'] * len(limits)) or 'NULL'}) AND"
    periods = ", ".join(["(%s, %s)"] * len(current))
    rows = fetch_all(
        f"""SELECT b.posted_nanodollars, b.pending_nanodollars, l.limit_nanodollars, l.id,
            {", ".join(f"b.{name}" for name in BudgetKey._fields)}
        FROM usage_budgetlimit AS l
        JOIN usage_budget AS b ON {budget_limits.IS_OWN}
        WHERE {only} l.limit_nanodollars > 0 AND (b.period, b.period_start) IN (VALUES {periods})
        ORDER BY (b.posted_nanodollars + b.pending_nanodollars) * 1.0 / l.limit_nanodollars DESC, b.id
        LIMIT {_MAX_CANDIDATES}""",  # noqa: S608  the text is ours
        [*(limits or ()), *(db_value(value) for pair in current for value in pair)],
    )
    return [
        (BudgetKey(*key)._replace(period_start=to_date(key[-1])), posted, pending, limit, limit_id)
        for posted, pending, limit, limit_id, *key in rows
    ]


def _owners(scope: Scope, ids: set[int]) -> dict[int, tuple[str, str]]:
    """Return each owner's name and time zone."""
    model, path = OWNERS[scope]
    time_zone = path[0].removesuffix("name") + "time_zone"
    rows = model._default_manager.filter(pk__in=ids).values_list("pk", time_zone, *path)
    return {pk: (" / ".join(names), time_zone) for pk, time_zone, *names in rows}
