"""The generations that are open: running, or waiting for a worker."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from uuid import UUID

from accounts import end_users
from usage.database.clock import database_now
from usage.database.time_limit import time_limit
from usage.models import OPEN, Generation, State
from usage.pricing import TOKENS_PER_PRICE

# Open generations that are read at most to find the oldest.
_MAX_OPEN = 20_000

_SHOWN = (
    "organization__name", "project__name", "api_key__name", "api_key__public", "api_key__is_test", "model",
    "end_user", "endpoint", "dialect", "state", "worker", "admitted_at", "claimed_at", "completion_tokens",
    "reserved_nanodollars", "output_per_mtok_nanodollars",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunningGeneration:
    """An open generation. Its tokens are as of the last heartbeat; while queued, `worker` is empty."""

    id: UUID
    public_id: str
    organization: str
    project_id: int
    project: str
    api_key_id: int
    key: str
    model: str
    end_user: str
    """The name or its digest, as the row has it; empty without one."""
    is_queued: bool
    age_s: float
    completion_tokens: int
    tokens_per_second: float
    """The average since the claim."""
    reserved_nanodollars: int
    cost_nanodollars: int
    """The cost of the output tokens so far."""
    worker: str


@time_limit()
def running(
    limit: int = 1_000,
    organizations: Collection[int] | None = None,
    api_key_id: int | None = None,
    projects: Collection[int] = (),
    end_user: tuple[int, str] | None = None,
) -> list[RunningGeneration]:
    """Return the oldest open generations, the oldest first, of all or of these organizations and projects; of
    this key only, or of this project and name of an end user, if one is given.
    """
    now = database_now()
    found = _oldest(limit, organizations, api_key_id, projects, end_user)
    rows = Generation.objects.filter(OPEN, id__in=found).order_by("id")
    return [
        _running(row, now) for row in rows.select_related("organization", "project", "api_key").only(*_SHOWN)
    ]


def _oldest(
    limit: int,
    organizations: Collection[int] | None,
    api_key_id: int | None,
    projects: Collection[int],
    end_user: tuple[int, str] | None,
) -> list[UUID]:
    """Return the lowest ids, which sort by time and, unlike leases, do not change with each heartbeat.

    All open generations are read from their partial index by lease, and sorted and filtered here: asked for
    the lowest ids or for one owner, a database may use an index of all generations that ever were.
    """
    rows = (
        Generation.objects.filter(OPEN)
        .order_by("lease_expires_at")
        .values_list("id", "organization_id", "project_id", "api_key_id", "end_user")[:_MAX_OPEN]
    )
    people = {(end_user[0], name) for name in end_users.stored_names(end_user[1])} if end_user else None
    wanted = (
        row_id
        for row_id, owner, project, key, name in rows
        if (organizations is None or owner in organizations or project in projects)
        and api_key_id in (None, key)
        and (people is None or (project, name) in people)
    )
    return nsmallest(limit, wanted)


def _running(row: Generation, now: datetime) -> RunningGeneration:
    # A claim can be later than `now`, which was read first; the quotient below needs a positive time.
    running_s = max((now - row.claimed_at).total_seconds(), 0.001) if row.claimed_at else None
    return RunningGeneration(
        id=row.id,
        public_id=str(row),
        organization=row.organization.name,
        project_id=row.project_id,
        project=row.project.name,
        api_key_id=row.api_key_id,
        key=str(row.api_key),
        model=row.model,
        end_user=row.end_user or "",
        is_queued=row.state == State.ADMITTED,
        age_s=max((now - row.admitted_at).total_seconds(), 0.0),
        completion_tokens=row.completion_tokens,
        tokens_per_second=row.completion_tokens / running_s if running_s else 0.0,
        reserved_nanodollars=row.reserved_nanodollars,
        cost_nanodollars=row.completion_tokens * row.output_per_mtok_nanodollars // TOKENS_PER_PRICE,
        worker=row.worker,
    )
