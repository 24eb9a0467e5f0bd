"""Reads of generations: their usage, cost, state and outcome."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import QuerySet

from accounts import access
from usage.database.clock import database_now
from usage.models import OPEN, Generation, State
from usage.pricing import Tokens


@dataclass(frozen=True, slots=True)
class End:
    """How a settled generation ended."""

    outcome: str
    error_code: str
    error_message: str
    finish_reasons: list[str]
    """The finish reason of each choice."""
    has_finished: bool
    """Whether a finish was sent to the stream; not if the client had left."""
    tokens: Tokens
    settled_at: datetime
    settled_ms_ago: int
    model: str
    """The model that answered, or else the last one that was tried."""


def waiting_since(min_age_ms: int, limit: int) -> list[tuple[UUID, int, int | None]]:
    """Return the generations that no worker has claimed `min_age_ms` after admission, the oldest first, each
    with its organization and its class in the queue.

    Leaves out those whose time in the queue is over: the reaper settles them.
    """
    oldest = _waiting_since(min_age_ms).order_by("lease_expires_at")
    return list(oldest.values_list("id", "organization_id", "queue_class")[:limit])


def is_waiting_since(min_age_ms: int, generation_id: UUID) -> bool:
    """Return whether no worker has claimed the generation `min_age_ms` after admission."""
    return _waiting_since(min_age_ms).filter(id=generation_id).exists()


def _waiting_since(min_age_ms: int) -> QuerySet[Generation]:
    now = database_now()
    # The partial index of open generations serves the first two conditions, however many are settled.
    waiting = Generation.objects.filter(OPEN, lease_expires_at__gt=now, state=State.ADMITTED)
    return waiting.filter(admitted_at__lt=now - timedelta(milliseconds=min_age_ms))


def open_by_organization() -> dict[int, int]:
    """Return the number of generations that wait or run, of each organization that has any."""
    # Counted here: for a GROUP BY, SQLite would read the index of all generations by organization.
    return Counter(Generation.objects.filter(OPEN).order_by().values_list("organization_id", flat=True))


def longest_waits() -> dict[int, dict[int | None, int]]:
    """Return for how many ms the oldest unclaimed generation waits, by organization and `queue_class`."""
    now = database_now()
    waiting = Generation.objects.filter(OPEN, state=State.ADMITTED).order_by()
    found: defaultdict[int, dict[int | None, int]] = defaultdict(dict)
    # Compared here, for the reason above.
    for organization_id, queue_class, admitted_at in waiting.values_list(
        "organization_id", "queue_class", "admitted_at"
    ):
        longest = found[organization_id]
        longest[queue_class] = max(longest.get(queue_class, 0), _ms_between(admitted_at, now))
    return dict(found)


@dataclass(frozen=True, slots=True)
class GenerationStatus:
    """Where a generation stands, for a web process that receives no deltas of it."""

    state: str
    fence: int
    worker: str
    was_claimed: bool
    overdue_ms: int
    """The time since the end of its lease or of its time in the queue; negative before that end."""


def statuses(ids: Sequence[UUID]) -> dict[UUID, GenerationStatus]:
    rows = Generation.objects.filter(id__in=ids)
    found = list(rows.values_list("id", "state", "fence", "worker", "claimed_at", "lease_expires_at"))
    now = database_now()
    return {
        generation_id: GenerationStatus(
            state, fence, worker, claimed_at is not None, _ms_between(lease_expires_at, now)
        )
        for generation_id, state, fence, worker, claimed_at, lease_expires_at in found
    }


def with_revoked_keys(ids: Sequence[UUID]) -> set[UUID]:
    """Return the generations whose key is no longer usable: revoked, expired, or of an inactive owner."""
    return set(
        Generation.objects.filter(id__in=ids)
        .exclude(api_key__in=access.usable_keys())
        .values_list("id", flat=True)
    )


def settled_ms_ago(ids: Collection[UUID]) -> dict[UUID, int]:
    """Return the settled ones among them, with the time since their settlement."""
    settled = Generation.objects.filter(id__in=ids, state=State.SETTLED).values_list("id", "settled_at")
    now = database_now()
    return {
        generation_id: _ms_between(settled_at, now) for generation_id, settled_at in settled if settled_at
    }


def end_of(generation_id: UUID) -> End | None:
    """Return how the generation ended; None while it is open."""
    row = Generation.objects.filter(id=generation_id, state=State.SETTLED).first()
    if row is None or row.settled_at is None:
        return None
    tokens = Tokens.of(row)
    age_ms = _ms_between(row.settled_at, database_now())
    return End(
        row.outcome,
        row.error_code,
        row.error_message,
        row.finish_reasons,
        bool(row.finish_reason),
        tokens,
        row.settled_at,
        age_ms,
        row.model,
    )


def _ms_between(begin: datetime, end: datetime) -> int:
    return (end - begin) // timedelta(milliseconds=1)
