"""What happens now: generations that run, budgets that fill up, and how the books are kept."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from heapq import nsmallest
from typing import NamedTuple
from uuid import UUID

from django.db.models import Count, Min, Q, Sum

from accounts.models import APIKey, Organization, Project
from usage import budgets
from usage.database.clock import database_now, local_day
from usage.database.sql import db_value, fetch_all, to_date
from usage.insights.last_check import LastCheck, last_check
from usage.insights.range import HOUR
from usage.insights.time_limit import time_limit
from usage.models import Generation, HourlyUsage, LedgerEntry, LedgerSeal, Outcome, Period, Scope, State

_OPEN = ~Q(state=State.SETTLED)
"""As the index of open generations says it."""
MAX_UNSEALED = 10_000
_MAX_OPEN = 20_000
"""Open generations among which the oldest are looked for."""
_MAX_CANDIDATES = 1_000
"""Budgets that are looked at: organizations in other time zones can have a period that is over already."""

_SHOWN = (
    "organization__name", "project__name", "api_key__name", "api_key__public", "api_key__is_test", "model", "state", "worker",
    "admitted_at", "claimed_at", "completion_tokens", "reserved_nanodollars",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunningGeneration:
    """A generation that is queued (`worker` is empty) or runs; its tokens are those of its last heartbeat."""

    id: UUID
    organization: str
    project: str
    key: str
    model: str
    is_queued: bool
    age_s: float
    completion_tokens: int
    tokens_per_second: float
    """Since its claim."""
    reserved_nanodollars: int
    worker: str


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A budget in its current period, and its limit."""

    scope: str
    scope_id: int
    label: str
    period: str
    first_day: date
    """Of the period, by the organization's clock."""
    time_zone: str
    """The organization's."""
    posted_nanodollars: int
    pending_nanodollars: int
    limit_nanodollars: int

    @property
    def last_day(self) -> date | None:
        """Of the period; None: it has no end."""
        match Period(self.period):
            case Period.DAY:
                return self.first_day
            case Period.MONTH:
                return (self.first_day + timedelta(days=31)).replace(day=1) - timedelta(days=1)
            case Period.EVER:
                return None

    @property
    def share(self) -> float:
        """How much of the limit is spent or held, from 0; above 1 after a limit was lowered."""
        return (self.posted_nanodollars + self.pending_nanodollars) / self.limit_nanodollars


@dataclass(frozen=True, slots=True)
class Health:
    """What the tables tell of the service's state."""

    queue_depth: int
    """Admitted generations that no worker has claimed."""
    oldest_queued_s: float | None
    running: int
    oldest_lease_s: float | None
    """How long ago the oldest open lease ended; negative: no lease has ended."""
    closed_since: datetime
    """A full hour, a day ago; what follows is counted from it on."""
    lost: int
    """Requests whose worker was lost: the reaper closed them."""
    not_started: int
    """Requests that no worker took in time, which the reaper closed, or that could not be queued."""
    last_sealed_at: datetime | None
    unsealed_entries: int
    """At most `MAX_UNSEALED`: that many and more are behind."""
    last_check: LastCheck | None
    """Of the books; None: nobody has ever checked them."""


@time_limit()
def running(limit: int = 1_000, organizations: Collection[int] | None = None) -> list[RunningGeneration]:
    """The open generations, of these organizations or of all, the oldest first, at most `limit`."""
    now = database_now()
    rows = Generation.objects.filter(_OPEN, id__in=_oldest(limit, organizations)).order_by("id")
    return [_running(row, now) for row in rows.select_related("organization", "project", "api_key").only(*_SHOWN)]


def _oldest(limit: int, organizations: Collection[int] | None) -> list[UUID]:
    """Which are open for the longest: ids sort by their time, and unlike leases stay when a worker's heart beats.

    Their own index has them by lease, and holds no others, so all of them are read there, and sorted and told apart here: asked for the
    lowest ids, or for an organization's, a database may take the index that has all generations of all time in that order.
    """
    rows = Generation.objects.filter(_OPEN).order_by("lease_expires_at").values_list("id", "organization_id")[:_MAX_OPEN]
    return nsmallest(limit, (row_id for row_id, owner in rows if organizations is None or owner in organizations))


@time_limit()
def health() -> Health:
    """The queue, the leases, what the reaper closed, the ledger's seals and its last check."""
    now = database_now()
    queued = Q(state=State.ADMITTED)
    found = Generation.objects.filter(_OPEN).aggregate(
        open=Count("id"), queued=Count("id", filter=queued), oldest=Min("admitted_at", filter=queued), lease=Min("lease_expires_at")
    )
    seal = LedgerSeal.objects.order_by("-id").only("last_id", "sealed_at").first()
    unsealed = LedgerEntry.objects.filter(id__gt=seal.last_id if seal else 0).order_by("id")
    closed_since = now.replace(minute=0, second=0, microsecond=0) - timedelta(days=1) + HOUR
    closed = _closed(closed_since)
    return Health(
        queue_depth=found["queued"],
        oldest_queued_s=_seconds(now, found["oldest"]),
        running=found["open"] - found["queued"],
        oldest_lease_s=_seconds(now, found["lease"]),
        closed_since=closed_since,
        lost=closed.get(Outcome.WORKER_LOST, 0),
        not_started=closed.get(Outcome.NOT_STARTED, 0),
        last_sealed_at=seal.sealed_at if seal else None,
        unsealed_entries=unsealed[:MAX_UNSEALED].count(),
        last_check=last_check(),
    )


@time_limit()
def budgets_near_limit(n: int = 5, limits: Collection[int] | None = None) -> list[BudgetUse]:
    """The `n` budgets of the current periods that are nearest their limit, the nearest first: of these limits, by id, or of all."""
    rows = _fullest(limits)
    owners = {scope: _owners(scope, {row.scope_id for row in rows if row.scope == scope}) for scope in Scope}
    now = database_now()
    found: list[BudgetUse] = []
    for row in rows:
        label, time_zone = owners[Scope(row.scope)].get(row.scope_id, ("", ""))
        if label and row.period_start == _period_start(row.period, local_day(now, time_zone)):
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

    def named(self, label: str, time_zone: str) -> BudgetUse:
        amounts = (self.posted_nanodollars, self.pending_nanodollars, self.limit_nanodollars)
        return BudgetUse(self.scope, self.scope_id, label, self.period, self.period_start, time_zone, *amounts)


def _fullest(limits: Collection[int] | None) -> list[_Candidate]:
    """Budgets with a limit whose period is the current one in some organization's time zone, the fullest first."""
    now = database_now()
    zones = Organization.objects.order_by().values_list("time_zone", flat=True).distinct()
    current = sorted({(period.value, _period_start(period, local_day(now, zone))) for zone in zones for period in Period})
    if not current:
        return []
    theirs = "" if limits is None else f"l.id IN ({', '.join(['%s'] * len(limits)) or 'NULL'}) AND"
    rows = fetch_all(
        f"""SELECT b.scope, b.scope_id, b.period, b.period_start, b.posted_nanodollars, b.pending_nanodollars, l.limit_nanodollars
        FROM usage_budgetlimit AS l JOIN usage_budget AS b ON b.scope = l.scope AND b.scope_id = l.scope_id AND b.period = l.period
        WHERE {theirs} l.limit_nanodollars > 0 AND (b.period, b.period_start) IN (VALUES {", ".join(["(%s, %s)"] * len(current))})
        ORDER BY (b.posted_nanodollars + b.pending_nanodollars) * 1.0 / l.limit_nanodollars DESC, b.id LIMIT {_MAX_CANDIDATES}""",  # noqa: S608
        [*(limits or ()), *(db_value(value) for pair in current for value in pair)],
    )
    return [_Candidate(*row)._replace(period_start=to_date(row[3])) for row in rows]


def _period_start(period: str, day: date) -> date:
    match Period(period):
        case Period.DAY:
            return day
        case Period.MONTH:
            return day.replace(day=1)
        case Period.EVER:
            return budgets.EVER


def _owners(scope: Scope, ids: set[int]) -> dict[int, tuple[str, str]]:
    """Each owner's name and its organization's time zone."""
    match scope:
        case Scope.ORGANIZATION:
            return {row.pk: (row.name, row.time_zone) for row in Organization.objects.filter(pk__in=ids)}
        case Scope.PROJECT:
            projects = Project.objects.filter(pk__in=ids).select_related("organization")
            return {row.pk: (str(row), row.organization.time_zone) for row in projects}
        case Scope.API_KEY:
            keys = APIKey.objects.filter(pk__in=ids).select_related("project__organization")
            return {row.pk: (f"{row.project} / {row.name}", row.project.organization.time_zone) for row in keys}


def _running(row: Generation, now: datetime) -> RunningGeneration:
    running_s = max((now - row.claimed_at).total_seconds(), 0.001) if row.claimed_at else None
    return RunningGeneration(
        id=row.id,
        organization=row.organization.name,
        project=row.project.name,
        key=str(row.api_key),
        model=row.model,
        is_queued=row.state == State.ADMITTED,
        age_s=max((now - row.admitted_at).total_seconds(), 0.0),
        completion_tokens=row.completion_tokens,
        tokens_per_second=row.completion_tokens / running_s if running_s else 0.0,
        reserved_nanodollars=row.reserved_nanodollars,
        worker=row.worker,
    )


def _seconds(now: datetime, then: datetime | None) -> float | None:
    return None if then is None else (now - then).total_seconds()


def _closed(since: datetime) -> dict[str, int]:
    """What no worker settled, by outcome. Each organization's hours are found through the index, which begins with it."""
    rows = HourlyUsage.objects.filter(hour__gte=since, outcome__in=[Outcome.WORKER_LOST, Outcome.NOT_STARTED])
    rows = rows.filter(organization_id__in=Organization.objects.order_by().values("id"))
    return dict(rows.order_by().values_list("outcome").annotate(Sum("requests")))
