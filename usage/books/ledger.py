"""The life of a generation in the books: admit, claim, beat, switch, settle. The only door to money.

    admit ──► admitted ──claim──► running ──settle──► settled
                  └──────────── take_over (the reaper) ──┘

Each function serves a batch inside one transaction of the caller (`usage/database/group_commit.py`). It
returns one result per item, in order; the failure of an item is an exception object in its place and does not
affect the others. `now` is the database's clock. Every claim raises the fence, and an older fence opens
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import F

from usage import pricing
from usage.books import candidates
from usage.books.admission import Admission, admit
from usage.books.candidates import Candidate, Switch, switch
from usage.books.settlement import Charge, Settlement, settle
from usage.database.sql import db_value, fetch_all, rows_of_values, to_uuid
from usage.errors import AlreadyResolved
from usage.failpoints import failpoint
from usage.models import Generation, Outcome, State, UsageSource
from usage.pricing import PRICE_COLUMNS, Price, Tokens

__all__ = [
    "Admission", "Beat", "Candidate", "Charge", "Claim", "Claimed", "Orphan", "Pulse", "Settlement",
    "Switch", "TakeOver", "Withdrawal", "admit", "beat", "claim", "settle", "switch", "take_over",
    "withdraw",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's claim of a generation; it must beat before the lease ends."""

    id: UUID
    worker: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a worker needs to know of a generation that it has claimed."""

    id: UUID
    fence: int
    model: str
    max_output_tokens: int
    choices_count: int
    is_test: bool
    organization_id: int
    is_stream: bool = True
    sampled_count: int | None = None
    max_prompt_tokens: int | None = None
    """This and `sampled_count` are None in rows that older versions wrote."""
    reserved_nanodollars: int = 0
    price: Price = pricing.FREE
    requested_model: str | None = None
    fallbacks: tuple[Candidate, ...] = ()
    """Other models that may answer, in order."""

    @property
    def as_candidate(self) -> Candidate:
        """Return the model of the row as a candidate."""
        name = self.requested_model or self.model
        return Candidate(self.model, name, self.max_output_tokens, self.max_prompt_tokens, self.price)

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Claimed":
        """Return the values of `_CLAIMED`, converted from the database's types."""
        known = dict(zip(_CLAIMED, row, strict=True))
        price = Price(*(known.pop(name) for name in PRICE_COLUMNS))
        known |= {name: bool(known[name]) for name in ("is_test", "is_stream")}
        known["fallbacks"] = candidates.from_json(known["fallbacks"])
        return cls(**known | {"id": to_uuid(known["id"]), "price": price})


_CLAIMED = (
    "id", "fence", "model", "max_output_tokens", "choices_count", "is_test", "organization_id",
    "is_stream", "sampled_count", "max_prompt_tokens", "reserved_nanodollars", "requested_model",
    "fallbacks", *PRICE_COLUMNS,
)  # fmt: skip


def claim(now: datetime, items: Sequence[Claim]) -> list[Claimed | AlreadyResolved]:
    """Claim admitted generations; `AlreadyResolved` for one that is no longer admitted."""
    values, parameters = rows_of_values(
        "claim",
        ["target", "holder", "lease"],
        [(item.id, item.worker, now + timedelta(milliseconds=item.lease_ms)) for item in items],
    )
    rows = fetch_all(
        f"""{values} UPDATE usage_generation AS g SET state = 'running', fence = g.fence + 1,
        worker = claim.holder, claimed_at = %s, lease_expires_at = claim.lease
        FROM claim WHERE g.id = claim.target AND g.state = 'admitted'
        RETURNING {", ".join(_CLAIMED)}""",  # noqa: S608
        [*parameters, db_value(now)],
    )
    taken = {claimed.id: claimed for claimed in map(Claimed.of, rows)}
    # `pop`, because a message that was delivered twice may have both its claims in one batch.
    return [taken.pop(item.id) if item.id in taken else AlreadyResolved(str(item.id)) for item in items]


# The fence that every first claim gets: nothing raises it before a claim.
CLAIM_FENCE = 1


def claimed_by(worker: str, generation_id: UUID) -> Claimed | None:
    """Return what the worker has claimed; None if another worker or the reaper has it now."""
    # The worker's name alone proves nothing: a generation that was taken over keeps it. The fence does.
    found = Generation.objects.filter(id=generation_id, state=State.RUNNING, worker=worker, fence=CLAIM_FENCE)
    row = found.values_list(*_CLAIMED).first()
    return Claimed.of(row) if row else None


@dataclass(frozen=True, slots=True)
class Pulse:
    """One running generation in a heartbeat, with its completion tokens so far."""

    id: UUID
    fence: int
    # From here on, each field is a column of the generation's row, which `beat` writes.
    completion_tokens: int
    deployment: str
    """The deployment that it runs on; empty before the first attempt."""


_PULSE_FIELDS = tuple(field.name for field in fields(Pulse))
_of_pulse = attrgetter(*_PULSE_FIELDS)


@cache
def _set_pulse(vendor: str) -> str:
    """Return the assignments of a beat, for PostgreSQL with casts: it takes a column of nulls for text, which
    a column of another type refuses. SQLite needs none, and would make a number of a time.
    """
    names = _PULSE_FIELDS[2:]
    if vendor == "sqlite":
        return ", ".join(f"{name} = beat.new_{name}" for name in names)
    types = [Generation._meta.get_field(name).db_type(connection) or "" for name in names]
    # Without the length: a cast to it cuts a text that is too long, which the column refuses.
    types = [each.partition("(")[0] for each in types]
    return ", ".join(f"{name} = beat.new_{name}::{type_}" for name, type_ in zip(names, types, strict=True))


@dataclass(frozen=True, slots=True)
class Beat:
    """The heartbeat of one process; it has at least one pulse."""

    worker: str
    """The process's name. The fence does not identify it: each first claim has the fence 1."""
    pulses: Sequence[Pulse]
    lease_ms: int


def beat(now: datetime, items: Sequence[Beat]) -> list[set[UUID]]:
    """Prolong the leases, with one update per process.

    Return the ids that are still the process's; it must stop working on the others.
    """
    return [_beat(now, item) for item in items]


def _beat(now: datetime, item: Beat) -> set[UUID]:
    values, parameters = rows_of_values(
        "beat",
        [f"new_{name}" for name in _PULSE_FIELDS],
        list(map(_of_pulse, item.pulses)),
    )
    rows = fetch_all(
        f"""{values} UPDATE usage_generation AS g
        SET lease_expires_at = %s, {_set_pulse(connection.vendor)}
        FROM beat WHERE g.id = beat.new_id AND g.fence = beat.new_fence AND g.state = 'running'
        AND g.worker = %s RETURNING id""",  # noqa: S608  the text is ours
        [*parameters, db_value(now + timedelta(milliseconds=item.lease_ms)), item.worker],
    )
    return {to_uuid(row[0]) for row in rows}


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The reaper's request for up to `limit` generations whose lease had run out at `asked_at`.

    `asked_at` is the database's time before the transaction. The transaction may wait for a lock that the
    heartbeats also wait for; by its own `now`, their leases would have run out.
    """

    limit: int
    lease_ms: int
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class Orphan:
    """A generation that the reaper holds now; the fence shuts out its former worker."""

    id: UUID
    fence: int
    was_started: bool
    completion_tokens: int
    """As of the last heartbeat: the basis of the charge if Redis has lost the deltas too."""
    completion_tokens_cap: int
    """The most that the request allows, over all choices."""
    max_prompt_tokens: int | None
    reserved_nanodollars: int
    price: Price

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Orphan":
        """Return the values of `_ORPHANED`, converted from the database's types."""
        known = dict(zip(_ORPHANED, row, strict=True))
        return cls(
            to_uuid(known["id"]),
            known["fence"],
            known["claimed_at"] is not None,
            known["completion_tokens"],
            # Multiplied in Python: PostgreSQL computes the product in the columns' type, and an overflow
            # would fail the whole statement.
            known["max_output_tokens"] * known["choices_count"],
            known["max_prompt_tokens"],
            known["reserved_nanodollars"],
            Price(*(known[name] for name in PRICE_COLUMNS)),
        )


_ORPHANED = (
    "id", "fence", "claimed_at", "completion_tokens", "max_output_tokens", "choices_count",
    "max_prompt_tokens", "reserved_nanodollars", *PRICE_COLUMNS,
)  # fmt: skip


def take_over(now: datetime, items: Sequence[TakeOver]) -> list[list[Orphan]]:
    """Raise the fence of open generations whose lease has run out; two reapers never get the same one.

    A generation that had started keeps its worker's name, so that operators see which worker was lost.
    """
    return [_take_over(now, item) for item in items]


def _take_over(now: datetime, item: TakeOver) -> list[Orphan]:
    skip_locked = "FOR UPDATE SKIP LOCKED" if connection.features.has_select_for_update_skip_locked else ""
    # `NOT state = 'settled'` repeats the condition of the partial index `open_generations`: SQLite uses the
    # index only then.
    rows = fetch_all(
        f"""UPDATE usage_generation SET fence = fence + 1, state = 'running', lease_expires_at = %s,
        worker = CASE WHEN claimed_at IS NULL THEN 'reaper' ELSE worker END
        WHERE id IN (SELECT id FROM usage_generation WHERE NOT state = 'settled' AND lease_expires_at < %s
                     ORDER BY lease_expires_at LIMIT %s {skip_locked})
        RETURNING {", ".join(_ORPHANED)}""",  # noqa: S608
        [db_value(now + timedelta(milliseconds=item.lease_ms)), db_value(item.asked_at), item.limit],
    )
    if rows:
        failpoint("reaper.in_tx")
    return [Orphan.of(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """An admitted request that could not be queued: settled at nothing, unless a worker has it."""

    id: UUID
    error_code: str
    error_message: str


def withdraw(now: datetime, items: Sequence[Withdrawal]) -> list[Charge | AlreadyResolved]:
    """Settle admitted generations that never ran at nothing; `AlreadyResolved` for a claimed one."""
    # Raised fences, as by a claim: `settle` accepts this process, and a worker finds nothing to claim.
    rows = Generation.objects.filter(id__in=[item.id for item in items], state=State.ADMITTED)
    # Locked, so that none of them is claimed meanwhile; one that was claimed before is no longer admitted.
    locked = rows.select_for_update().order_by("id")
    changed = {generation_id: fence + 1 for generation_id, fence in locked.values_list("id", "fence")}
    Generation.objects.filter(id__in=changed).update(state=State.RUNNING, fence=F("fence") + 1)
    # No row has fence 0 and runs, so `settle` answers `AlreadyResolved` for those that a worker has claimed.
    voids = [
        Settlement(
            item.id, changed.get(item.id, 0), Outcome.NOT_STARTED, Tokens(), UsageSource.NONE,
            error_code=item.error_code, error_message=item.error_message,
        )
        for item in items
    ]  # fmt: skip
    return settle(now, voids)
