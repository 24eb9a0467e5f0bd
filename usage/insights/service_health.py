"""How the service is: its queue, its leases, what the reaper closed, and how the books are kept."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q, Sum

from accounts.models import Organization
from usage.database.clock import database_now
from usage.database.time_limit import time_limit
from usage.insights.last_check import LastCheck, last_check
from usage.insights.range import HOUR
from usage.models import OPEN, Generation, HourlyUsage, LedgerEntry, LedgerSeal, Outcome, State

MAX_UNSEALED = 10_000


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
def health() -> Health:
    """The queue, the leases, what the reaper closed, the ledger's seals and its last check."""
    now = database_now()
    queued = Q(state=State.ADMITTED)
    found = Generation.objects.filter(OPEN).aggregate(
        open=Count("id"),
        queued=Count("id", filter=queued),
        oldest=Min("admitted_at", filter=queued),
        lease=Min("lease_expires_at"),
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


def _seconds(now: datetime, then: datetime | None) -> float | None:
    return None if then is None else (now - then).total_seconds()


def _closed(since: datetime) -> dict[str, int]:
    """What no worker settled, by outcome. Each organization's hours are found through the index, which begins
    with it.
    """
    rows = HourlyUsage.objects.filter(hour__gte=since, outcome__in=[Outcome.WORKER_LOST, Outcome.NOT_STARTED])
    rows = rows.filter(organization_id__in=Organization.objects.order_by().values("id"))
    return dict(rows.order_by().values_list("outcome").annotate(Sum("requests")))
