"""The budgets that are nearest to their limit, each in its current period."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple

from accounts.models import APIKey, EndUser, Organization, Project
from usage.books import budget_limits
from usage.database.clock import database_now, local_day
from usage.database.sql import db_value, fetch_all, to_date
from usage.database.time_limit import time_limit
from usage.models import Period, Scope

# The share of its limit from which a budget counts as near it.
NEAR_LIMIT = 0.8
# Budgets that are read at most: in some time zones, their period may be over already.
_MAX_CANDIDATES = 1_000


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A budget in its current period, and its limit."""

    scope: str
    scope_id: int
    label: str
    period: str
    first_day: date
    """Of the period, in the organization's time zone."""
    time_zone: str
    posted_nanodollars: int
    pending_nanodollars: int
    limit_nanodollars: int
    limit_id: int

    @property
    def last_day(self) -> date | None:
        """Return the last day of the period; None if it has no end."""
        match Period(self.period):
            case Period.DAY:
                return self.first_day
            case Period.MONTH:
                return (self.first_day + timedelta(days=31)).replace(day=1) - timedelta(days=1)
            case Period.EVER:
                return None

    @property
    def share(self) -> float:
        """Return the share of the limit that is spent or held; above 1 after the limit was lowered."""
        return (self.posted_nanodollars + self.pending_nanodollars) / self.limit_nanodollars


@time_limit()
def budgets_near_limit(n: int = 5, limits: Collection[int] | None = None) -> list[BudgetUse]:
    """Return the `n` budgets nearest to their limit, the nearest first, of these limits (by id) or of all."""
    rows = _fullest(limits)
    owners = {scope: _owners(scope, {row.scope_id for row in rows if row.scope == scope}) for scope in Scope}
    now = database_now()
    found: list[BudgetUse] = []
    for row in rows:
        label, time_zone = owners[Scope(row.scope)].get(row.scope_id, ("", ""))
        if label and row.period_start == Period(row.period).start(local_day(now, time_zone)):
            found.append(row.named(label, time_zone))
    return found[:n]


class _Candidate(NamedTuple):
    scope: str
    scope_id: int
    period: str
    period_start: date
    posted_nanodollars: int
    pending_nanodollars: int
    limit_nanodollars: int
    limit_id: int

    def named(self, label: str, time_zone: str) -> BudgetUse:
        amounts = (self.posted_nanodollars, self.pending_nanodollars, self.limit_nanodollars, self.limit_id)
        return BudgetUse(
            self.scope, self.scope_id, label, self.period, self.period_start, time_zone, *amounts
        )


def _fullest(limits: Collection[int] | None) -> list[_Candidate]:
    """Return budgets whose period is the current one in any organization's time zone, the fullest first."""
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
        f"""SELECT b.scope, b.scope_id, b.period, b.period_start,
            b.posted_nanodollars, b.pending_nanodollars, l.limit_nanodollars, l.id
        FROM usage_budgetlimit AS l
        JOIN usage_budget AS b ON {budget_limits.IS_OWN}
        WHERE {only} l.limit_nanodollars > 0 AND (b.period, b.period_start) IN (VALUES {periods})
        ORDER BY (b.posted_nanodollars + b.pending_nanodollars) * 1.0 / l.limit_nanodollars DESC, b.id
        LIMIT {_MAX_CANDIDATES}""",  # noqa: S608  the text is ours
        [*(limits or ()), *(db_value(value) for pair in current for value in pair)],
    )
    return [_Candidate(*row)._replace(period_start=to_date(row[3])) for row in rows]


def _owners(scope: Scope, ids: set[int]) -> dict[int, tuple[str, str]]:
    """Return each owner's name and time zone."""
    match scope:
        case Scope.ORGANIZATION:
            return {row.pk: (row.name, row.time_zone) for row in Organization.objects.filter(pk__in=ids)}
        case Scope.PROJECT:
            projects = Project.objects.filter(pk__in=ids).select_related("organization")
            return {row.pk: (str(row), row.organization.time_zone) for row in projects}
        case Scope.API_KEY:
            keys = APIKey.objects.filter(pk__in=ids).select_related("project__organization")
            return {
                row.pk: (f"{row.project} / {row.name}", row.project.organization.time_zone) for row in keys
            }
        case Scope.END_USER:
            people = EndUser.objects.filter(pk__in=ids).select_related("project__organization")
            return {row.pk: (str(row), row.project.organization.time_zone) for row in people}
    return {}  # the limits of each end user have no budget of their own
