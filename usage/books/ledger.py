"""The life of a generation in the books: admit, claim, beat, settle. The only door to money.

    admit ──► admitted ──claim──► running ──settle──► settled
                  └──────────── take_over (the reaper) ──┘

Each function serves a batch of items inside one transaction of the caller (`usage/database/group_commit.py`)
and answers one result per item, in order; an item's own failure is an exception object in its place and
leaves the others alone. `now` is the database's clock. Every claim raises the fence; whoever holds an older
one can do nothing any more.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from usage import pricing
from usage.books import budgets, idempotency
from usage.books.idempotency import Idempotency
from usage.books.settlement import Settled, Settlement, settle
from usage.database.clock import local_day
from usage.database.sql import db_value, fetch_all, insert, rows_of_values, to_uuid
from usage.errors import AlreadyAdmitted, AlreadyResolved, BudgetExceeded
from usage.failpoints import failpoint
from usage.models import Generation, Outcome, State, UsageSource
from usage.pricing import PRICE_COLUMNS, Price, Tokens

__all__ = [
    "Admission", "Beat", "Claim", "Claimed", "Orphan", "Orphans", "Pulse", "Settled", "Settlement", "TakeOver", "Withdrawal",
    "admit", "beat", "claim", "settle", "take_over", "withdraw",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that wants to run: who asks, for what, at which price, and the most that it can cost."""

    id: UUID
    organization_id: int
    project_id: int
    api_key_id: int
    time_zone: str
    is_test: bool
    model: str
    endpoint: str
    dialect: str
    is_stream: bool
    choices_count: int
    """How many choices the answer has."""
    sampled_count: int
    """How many are generated and paid for: `best_of` may make more than are shown."""
    max_output_tokens: int
    prompt_tokens_bound: int
    price: Price
    queue_ttl_ms: int
    includes_usage: bool = False
    max_prompt_tokens: int | None = None
    """What fits the context: more than is held for, as what a server adds to a prompt is not known here.
    None: nobody knows.
    """
    idempotency: Idempotency | None = None

    @property
    def most_tokens(self) -> int:
        """The most tokens that the request can use, prompt and answers together."""
        return self.prompt_tokens_bound + self.max_output_tokens * self.sampled_count

    @property
    def reserved_nanodollars(self) -> int:
        """The hold: an upper bound of what the request can cost."""
        return pricing.upper_bound(
            self.prompt_tokens_bound, self.max_output_tokens * self.sampled_count, self.price
        )


def admit(now: datetime, items: Sequence[Admission]) -> list[UUID | BudgetExceeded | AlreadyAdmitted]:
    """Hold each request's upper bound on its budgets and write its row. Returns its id, or why it was
    refused.
    """
    repeated = idempotency.claim(now, items)
    fresh = [item for item in items if item.id not in repeated]
    results: dict[UUID, UUID | BudgetExceeded] = {}
    if fresh:
        results = dict(zip([item.id for item in fresh], _admit(now, fresh), strict=True))
    return [
        _repeated(repeated[item.id], results) if item.id in repeated else results[item.id] for item in items
    ]


def _repeated(
    known: AlreadyAdmitted, results: Mapping[UUID, UUID | BudgetExceeded]
) -> BudgetExceeded | AlreadyAdmitted:
    """Refused like the request that it repeats, when that one is refused in the same batch: there is no row
    to attach to then.
    """
    first = results.get(known.generation_id)
    return first if isinstance(first, BudgetExceeded) and known.is_same_request else known


def _admit(now: datetime, items: Sequence[Admission]) -> list[UUID | BudgetExceeded]:
    # When one of them does not fit, or a budget's first request is among them: each for itself.
    results: list[UUID | BudgetExceeded] = (
        [item.id for item in items] if _hold(now, items) else _hold_what_fits(now, items)
    )
    fitting = [item for item, result in zip(items, results, strict=True) if isinstance(result, UUID)]
    if fitting:
        insert("usage_generation", _COLUMNS, [_row(now, item) for item in fitting])
    idempotency.release(
        item.id for item, result in zip(items, results, strict=True) if item.idempotency and item.id != result
    )
    failpoint("admit.before_commit")
    return results


def _hold(now: datetime, items: Sequence[Admission]) -> bool:
    """Hold what all of them may cost, or nothing; whether it is held."""
    amounts: defaultdict[str, int] = defaultdict(int)
    for item in items:
        if reserved := item.reserved_nanodollars:
            for budget_id in _budget_ids(now, item):
                amounts[budget_id] += reserved
    return not amounts or budgets.hold(amounts)


def _hold_what_fits(now: datetime, items: Sequence[Admission]) -> list[UUID | BudgetExceeded]:
    """In as many statements for a crowd that is refused as for one request."""
    rooms = budgets.rooms({budget_id for item in items for budget_id in _budget_ids(now, item)})
    results: list[UUID | BudgetExceeded] = []
    for item in items:
        refused = budgets.take(rooms, _budget_ids(now, item), item.reserved_nanodollars)
        results.append(refused or item.id)
    is_held = _hold(now, [item for item, result in zip(items, results, strict=True) if result == item.id])
    # A limit that was lowered since we looked: look again.
    return results if is_held else _hold_what_fits(now, items)


def _budget_ids(now: datetime, item: Admission) -> tuple[str, ...]:
    return budgets.ids_for(
        item.organization_id, item.project_id, item.api_key_id, local_day(now, item.time_zone)
    )


_COLUMNS = (
    "id", "organization_id", "project_id", "api_key_id", "is_test", "model", "endpoint", "dialect", "is_stream", "includes_usage",
    "choices_count", "sampled_count", "max_output_tokens", "max_prompt_tokens", *PRICE_COLUMNS, "reserved_nanodollars",
    "budget_day", "lease_expires_at", "admitted_at",
)  # fmt: skip


def _row(now: datetime, item: Admission) -> tuple[Any, ...]:
    """The values of `_COLUMNS`."""
    return (
        item.id,
        item.organization_id,
        item.project_id,
        item.api_key_id,
        item.is_test,
        item.model,
        item.endpoint,
        item.dialect,
        item.is_stream,
        item.includes_usage,
        item.choices_count,
        item.sampled_count,
        item.max_output_tokens,
        item.max_prompt_tokens,
        *item.price.columns().values(),
        item.reserved_nanodollars,
        local_day(now, item.time_zone),
        now + timedelta(milliseconds=item.queue_ttl_ms),
        now,
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker wants to run this generation and promises to beat before the lease ends."""

    id: UUID
    worker: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the holder of the fence needs to know of its generation."""

    id: UUID
    fence: int
    model: str
    max_output_tokens: int
    choices_count: int
    is_test: bool
    organization_id: int
    sampled_count: int | None = None
    max_prompt_tokens: int | None = None
    """None of both: admitted by code that kept none."""
    reserved_nanodollars: int = 0
    price: Price = pricing.FREE

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Claimed":
        """The values of `_CLAIMED` as the database has them."""
        known = dict(zip(_CLAIMED, row, strict=True))
        price = Price(*(known.pop(name) for name in PRICE_COLUMNS))
        return cls(**known | {"id": to_uuid(known["id"]), "is_test": bool(known["is_test"]), "price": price})


_CLAIMED = (
    "id", "fence", "model", "max_output_tokens", "choices_count", "is_test", "organization_id", "sampled_count", "max_prompt_tokens",
    "reserved_nanodollars", *PRICE_COLUMNS,
)  # fmt: skip


def claim(now: datetime, items: Sequence[Claim]) -> list[Claimed | AlreadyResolved]:
    """Take admitted generations; one that is not admitted any more was someone else's."""
    values, parameters = rows_of_values(
        "claim",
        ["target", "holder", "lease"],
        [(item.id, item.worker, now + timedelta(milliseconds=item.lease_ms)) for item in items],
    )
    rows = fetch_all(
        f"""{values} UPDATE usage_generation AS g SET state = 'running', fence = g.fence + 1, worker = claim.holder,
        claimed_at = %s, lease_expires_at = claim.lease FROM claim WHERE g.id = claim.target AND g.state = 'admitted'
        RETURNING {", ".join(_CLAIMED)}""",  # noqa: S608
        [*parameters, db_value(now)],
    )
    taken = {claimed.id: claimed for claimed in map(Claimed.of, rows)}
    # Popped: a message that was delivered twice may have both its claims in one batch.
    return [taken.pop(item.id) if item.id in taken else AlreadyResolved(str(item.id)) for item in items]


CLAIM_FENCE = 1
"""Whoever claims gets this one, for nothing before a claim raises it."""


def claimed_by(worker: str, generation_id: UUID) -> Claimed | None:
    """What that worker has claimed and still holds; None when somebody else has claimed it, or taken it over
    since.
    """
    # Its name does not tell: one that was taken over keeps it, and the new holder's fence must not get to the
    # old one.
    found = Generation.objects.filter(id=generation_id, state=State.RUNNING, worker=worker, fence=CLAIM_FENCE)
    row = found.values_list(*_CLAIMED).first()
    return Claimed.of(row) if row else None


@dataclass(frozen=True, slots=True)
class Pulse:
    """A running generation is alive and has produced this many completion tokens so far."""

    id: UUID
    fence: int
    completion_tokens: int
    deployment: str = ""
    """The one that it is on; empty: none has been asked yet."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One process's heartbeat for all that it runs; at least one pulse."""

    pulses: Sequence[Pulse]
    lease_ms: int


def beat(now: datetime, items: Sequence[Beat]) -> list[set[UUID]]:
    """Prolong leases, one update a process; answers what is still this process's. Stop working on the rest."""
    return [_beat(now, item) for item in items]


def _beat(now: datetime, item: Beat) -> set[UUID]:
    values, parameters = rows_of_values(
        "beat",
        ["target", "held", "tokens", "asked"],
        [(pulse.id, pulse.fence, pulse.completion_tokens, pulse.deployment) for pulse in item.pulses],
    )
    rows = fetch_all(
        f"""{values} UPDATE usage_generation AS g SET lease_expires_at = %s, completion_tokens = beat.tokens, deployment = beat.asked
        FROM beat WHERE g.id = beat.target AND g.fence = beat.held AND g.state = 'running' RETURNING id""",  # noqa: S608
        [*parameters, db_value(now + timedelta(milliseconds=item.lease_ms))],
    )
    return {to_uuid(row[0]) for row in rows}


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The reaper asks for up to `limit` generations whose lease had run out at `asked_at`, by the database's
    clock.

    Not by the transaction's `now`: it may have waited for a lock, and the heartbeats still wait for the same
    one.
    """

    limit: int
    lease_ms: int
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class Orphan:
    """A generation that the reaper now holds: whoever had it before is fenced off."""

    id: UUID
    fence: int
    was_started: bool
    completion_tokens: int
    """As of the last heartbeat: what is left to charge when Redis has lost the deltas too."""
    completion_tokens_cap: int
    """The most that it was asked for, over all choices."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """What one take-over found."""

    rows: list[Orphan] = field(default_factory=list)


def take_over(now: datetime, items: Sequence[TakeOver]) -> list[Orphans]:
    """Raise the fence of open generations whose lease has run out; two reapers never get the same one.

    A run that was started keeps its worker's name, which tells an operator who was lost: what protects it is
    the fence.
    """
    return [_take_over(now, item) for item in items]


def _take_over(now: datetime, item: TakeOver) -> Orphans:
    skip_locked = "FOR UPDATE SKIP LOCKED" if connection.features.has_select_for_update_skip_locked else ""
    rows = fetch_all(
        f"""UPDATE usage_generation SET fence = fence + 1, state = 'running', lease_expires_at = %s,
        worker = CASE WHEN claimed_at IS NULL THEN 'reaper' ELSE worker END
        WHERE id IN (SELECT id FROM usage_generation WHERE state <> 'settled' AND lease_expires_at < %s
                     ORDER BY lease_expires_at LIMIT %s {skip_locked})
        RETURNING id, fence, claimed_at, completion_tokens, max_output_tokens, choices_count""",  # noqa: S608
        [db_value(now + timedelta(milliseconds=item.lease_ms)), db_value(item.asked_at), item.limit],
    )
    if rows:
        failpoint("reaper.in_tx")
    # Multiplied here: to PostgreSQL the product of two such columns is no larger number than they are, and
    # one too large an error for all.
    return Orphans(
        [Orphan(to_uuid(row[0]), row[1], row[2] is not None, row[3], row[4] * row[5]) for row in rows]
    )


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """An admitted request that could not be queued: void it, unless a worker has it already."""

    id: UUID
    error_code: str
    error_message: str


def withdraw(now: datetime, items: Sequence[Withdrawal]) -> list[Settled | AlreadyResolved]:
    """Settle admitted generations that never ran at nothing; a claimed one is `AlreadyResolved`."""
    rows = Generation.objects.filter(id__in=[item.id for item in items], state=State.ADMITTED)
    fences = dict(rows.order_by("id").values_list("id", "fence"))
    changed = {
        generation_id: fence + 1
        for generation_id, fence in fences.items()
        if Generation.objects.filter(id=generation_id, state=State.ADMITTED, fence=fence).update(
            state=State.RUNNING, fence=fence + 1
        )
    }
    return settle(now, [_void(item, changed.get(item.id, 0)) for item in items])


def _void(item: Withdrawal, fence: int) -> Settlement:
    return Settlement(
        item.id,
        fence,
        Outcome.NOT_STARTED,
        Tokens(),
        UsageSource.NONE,
        error_code=item.error_code,
        error_message=item.error_message,
    )
