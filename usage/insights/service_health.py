"""The state of the service: its queue, its leases, the requests that failed to run, and the books."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q, Sum

from accounts.models import Organization
from usage.database.clock import database_now
from usage.database.time_limit import time_limit
from usage.insights.range import HOUR
from usage.models import OPEN, Generation, HourlyUsage, LedgerCheck, LedgerEntry, LedgerSeal, Outcome, State

MAX_UNSEALED = 10_000


@dataclass(frozen=True, slots=True)
class LastCheck:
    """When the books were last checked, and the newest differences that are still open.

    These may have been found by an earlier check.
    """

    checked_at: datetime
    differences: int
    first_difference: str


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the service, as the tables show it."""

    queue_depth: int
    """Admitted generations that no worker has claimed."""
    oldest_queued_s: float | None
    running: int
    oldest_lease_s: float | None
    """Time since the oldest open lease expired; negative if none has expired."""
    closed_since: datetime
    """The full hour, a day ago, from which on `lost` and `not_started` are counted."""
    lost: int
    """Requests whose worker was lost: the reaper closed them."""
    not_started: int
    """Requests that no worker claimed in time, or that could not be queued."""
    last_sealed_at: datetime | None
    unsealed_entries: int
    """At most `MAX_UNSEALED`."""
    last_check: LastCheck | None
    """None if the books were never checked."""


@time_limit()
def health() -> Health:
    """Return the state of the queue, the leases, the failed requests, the seals and the last check."""
    now = database_now()
    queued = Q(state=State.ADMITTED)
    found = Generation.objects.filter(OPEN).aggregate(
        open=Count("id"),
        queued=Count("id", filter=queued),
        oldest=Min("admitted_at", filter=queued),
        lease=Min("lease_expires_at"),
    )
    seal = LedgerSeal.objects.order_by("-id").only("last_id", "sealed_at").first()
    # Counted up to a bound only: without it a long pause of the sealing would make this page slow.
    unsealed = LedgerEntry.objects.filter(id__gt=seal.last_id if seal else 0).order_by("id")
    # Full hours, because the rollup has no shorter ones.
    closed_since = now.replace(minute=0, second=0, microsecond=0) - timedelta(days=1) + HOUR
    closed = _closed_by_outcome(closed_since)
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
        last_check=_last_check(),
    )


def _seconds(now: datetime, then: datetime | None) -> float | None:
    return None if then is None else (now - then).total_seconds()


def _closed_by_outcome(since: datetime) -> dict[str, int]:
    """Count the requests that no worker settled."""
    rows = HourlyUsage.objects.filter(hour__gte=since, outcome__in=[Outcome.WORKER_LOST, Outcome.NOT_STARTED])
    # The index begins with the organization.
    rows = rows.filter(organization_id__in=Organization.objects.order_by().values("id"))
    return dict(rows.order_by().values_list("outcome").annotate(Sum("requests")))


def _last_check() -> LastCheck | None:
    done = LedgerCheck.objects.filter(differences__isnull=False).order_by("-checked_at")
    newest = done.first()
    if newest is None:
        return None
    # An old difference stays on the page, because later checks look at recent days only and can't see it.
    unresolved = done.filter(differences__gt=0, resolved_at__isnull=True).first()
    if unresolved is None:
        return LastCheck(newest.checked_at, 0, "")
    return LastCheck(newest.checked_at, unresolved.differences or 0, unresolved.first_difference)
