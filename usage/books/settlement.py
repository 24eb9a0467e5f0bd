"""Settling: what ended generations used becomes money, in one transaction for a whole batch.

The generation's row, its ledger entry, its budgets and its hour are written together or not at all.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection

from usage import pricing, rollups
from usage.books import budgets, idempotency
from usage.database.sql import db_value, execute, fetch_all, insert, rows_of_values, to_date, to_uuid
from usage.errors import AlreadyResolved
from usage.failpoints import failpoint
from usage.models import Kind, Outcome, UsageNote, UsageSource
from usage.pricing import PRICE_COLUMNS, TOKEN_COLUMNS, Price, Tokens
from usage.rollups import Entry

MAX_LOGGED_ATTEMPTS = 8
"""The last ones are kept: among them is the one that answered."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One deployment that was asked, and for how long; the code is empty where it did not fail, whatever else
    ended the attempt.
    """

    deployment: str
    error_code: str
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a generation ended, as the holder of its fence tells it."""

    id: UUID
    fence: int
    outcome: Outcome
    tokens: Tokens
    usage_source: UsageSource
    finish_reason: str = ""
    error_code: str = ""
    error_message: str = ""
    deployment: str = ""
    """Empty where it is not known: the last heartbeat may have told it."""
    attempts: int = 0
    attempt_log: Sequence[Attempt] = ()
    first_token_ms: int | None = None
    last_token_ms: int | None = None
    usage_note: UsageNote | None = None
    is_final: bool = False
    """Of a failure: the same request would fail again, or is not wanted again."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What was written: the tokens and the money that the client may now be told."""

    id: UUID
    tokens: Tokens
    amount_nanodollars: int


def settle(now: datetime, items: Sequence[Settlement]) -> list[Settled | AlreadyResolved]:
    """Settle each generation once; `AlreadyResolved` for one that is settled or held by a newer fence."""
    rows = _lock_open([item.id for item in items])
    results: list[Settled | AlreadyResolved] = []
    charges: list[_Charge] = []
    for item in items:
        row = rows.get(item.id)
        if row is None or row.fence != item.fence:
            results.append(AlreadyResolved(str(item.id)))
            continue
        del rows[item.id]  # the same generation twice in one batch is settled once
        charge = _Charge.of(row, item)
        charges.append(charge)
        results.append(Settled(item.id, item.tokens, charge.amount_nanodollars))
    if charges:
        _write(now, charges)
        failpoint("settle.in_tx")
    return results


class _Open(NamedTuple):
    """What settling needs of a running generation's row."""

    id: UUID
    fence: int
    organization_id: int
    project_id: int
    api_key_id: int
    model: str
    budget_day: date
    reserved_nanodollars: int
    price: Price

    @property
    def budget_ids(self) -> tuple[str, ...]:
        return budgets.ids_for(self.organization_id, self.project_id, self.api_key_id, self.budget_day)


def _lock_open(ids: Sequence[UUID]) -> dict[UUID, _Open]:
    """The running ones among them, locked in id order."""
    placeholders = ", ".join(["%s"] * len(ids))
    lock = "FOR UPDATE" if connection.features.has_select_for_update else ""
    own = _Open._fields[:-1]
    rows = fetch_all(
        f"SELECT {', '.join((*own, *PRICE_COLUMNS))} FROM usage_generation "  # noqa: S608  the text is ours
        f"WHERE id IN ({placeholders}) AND state = 'running' ORDER BY id {lock}",
        [db_value(generation_id) for generation_id in ids],
    )
    found = [_Open._make([*row[: len(own)], Price(*row[len(own) :])]) for row in rows]
    found = [row._replace(id=to_uuid(row.id), budget_day=to_date(row.budget_day)) for row in found]
    return {row.id: row for row in found}


MAY_FARE_BETTER = {Outcome.FAILED, Outcome.NOT_STARTED, Outcome.WORKER_LOST}
"""Not a cancelled one: that is what someone has asked for."""


@dataclass(frozen=True, slots=True)
class _Charge:
    row: _Open
    item: Settlement
    is_waived: bool
    amount_nanodollars: int

    @classmethod
    def of(cls, row: _Open, item: Settlement) -> "_Charge":
        # The zero-completion rule, kept as data: no output and not completed costs nothing.
        is_waived = item.outcome != Outcome.COMPLETED and item.tokens.completion_tokens == 0
        return cls(row, item, is_waived, 0 if is_waived else pricing.amount(item.tokens, row.price))

    @property
    def frees_its_key(self) -> bool:
        """It came to nothing, and the same request may fare better: its idempotency key must not repeat the
        failure.
        """
        return self.is_waived and self.item.outcome in MAY_FARE_BETTER and not self.item.is_final


def _write(now: datetime, charges: Sequence[_Charge]) -> None:
    _update_generations(now, charges)
    entries = [entry for charge in charges for entry in _entries(now, charge)]
    insert("usage_ledgerentry", Entry._fields, entries)
    _update_budgets(now, charges)
    rollups.add(entries)
    # Last: a repeated request that waits for this row waits for no budget's meanwhile.
    idempotency.release(charge.row.id for charge in charges if charge.frees_its_key)


_COLUMNS = {
    # column: how its value is typed in the batch (a batch of NULLs has no type of its own on PostgreSQL)
    "outcome": "VARCHAR(20)",
    "usage_source": "VARCHAR(10)",
    "usage_note": "VARCHAR(24)",
    "finish_reason": "VARCHAR(2048)",
    "error_code": "VARCHAR(64)",
    "error_message": "VARCHAR(500)",
    "deployment": "VARCHAR(128)",
    "attempts": "INTEGER",
    "attempt_log": "JSON",
    **dict.fromkeys(TOKEN_COLUMNS, "INTEGER"),
    "amount_nanodollars": "BIGINT",
    "first_token_ms": "INTEGER",
    "last_token_ms": "INTEGER",
}
_JSON = {"sqlite": "TEXT", "postgresql": "JSONB"}
"""JSON's type in each database: to SQLite a type of that name is numeric."""


def _update_generations(now: datetime, charges: Sequence[_Charge]) -> None:
    values, parameters = rows_of_values(
        "charge", ["id", "is_waived", *_COLUMNS], [_values(charge) for charge in charges]
    )
    types = {"JSON": _JSON[connection.vendor]}
    told = {name: f"CAST(charge.{name} AS {types.get(kind, kind)})" for name, kind in _COLUMNS.items()}
    # Who settles for a lost worker does not know where it ran.
    told["deployment"] = f"COALESCE(NULLIF({told['deployment']}, ''), g.deployment)"
    columns = ", ".join(f"{name} = {value}" for name, value in told.items())
    execute(
        f"""{values} UPDATE usage_generation AS g SET state = 'settled', settled_at = %s, is_waived = charge.is_waived, {columns}
        FROM charge WHERE g.id = charge.id""",  # noqa: S608  the text is ours, the values are parameters
        [*parameters, db_value(now)],
    )


def _values(charge: _Charge) -> list[object]:
    item = charge.item
    return [
        item.id,
        charge.is_waived,
        item.outcome.value,
        item.usage_source.value,
        item.usage_note and item.usage_note.value,
        item.finish_reason,
        item.error_code[:64],
        item.error_message[:500],
        item.deployment,
        item.attempts,
        _logged(item.attempt_log),
        *item.tokens.columns().values(),
        charge.amount_nanodollars,
        item.first_token_ms,
        item.last_token_ms,
    ]


def _logged(attempts: Sequence[Attempt]) -> str | None:
    """As JSON; None unless one failed: of the others the row has all that there is to tell."""
    if not any(attempt.error_code for attempt in attempts):
        return None
    return json.dumps([asdict(attempt) for attempt in attempts[-MAX_LOGGED_ATTEMPTS:]])


def _entries(now: datetime, charge: _Charge) -> list[Entry]:
    """The charge, up to what was held; what goes beyond is an entry of its own."""
    covered = min(charge.amount_nanodollars, charge.row.reserved_nanodollars)
    entries = [_entry(now, charge, Kind.CHARGE, covered, charge.item.tokens)]
    if charge.amount_nanodollars > covered:
        entries.append(_entry(now, charge, Kind.OVERAGE, charge.amount_nanodollars - covered, Tokens()))
    return entries


def _entry(now: datetime, charge: _Charge, kind: Kind, amount_nanodollars: int, tokens: Tokens) -> Entry:
    row = charge.row
    return Entry(
        kind=kind.value,
        generation_id=row.id,
        organization_id=row.organization_id,
        project_id=row.project_id,
        api_key_id=row.api_key_id,
        model=row.model,
        outcome=charge.item.outcome.value,
        budget_day=row.budget_day,
        created_at=now,
        **{name: count or 0 for name, count in tokens.columns().items()},
        amount_nanodollars=amount_nanodollars,
    )


def _update_budgets(now: datetime, charges: Sequence[_Charge]) -> None:
    moving = [charge for charge in charges if charge.row.reserved_nanodollars or charge.amount_nanodollars]
    changes: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for charge in moving:
        for budget_id in charge.row.budget_ids:
            released, amount = changes[budget_id]
            changes[budget_id] = (
                released + charge.row.reserved_nanodollars,
                amount + charge.amount_nanodollars,
            )
    # What held nothing may cost something, when its upstream makes more than it was asked for; its budgets
    # may not be there.
    budgets.ensure(
        {
            budget_id
            for charge in moving
            if not charge.row.reserved_nanodollars
            for budget_id in charge.row.budget_ids
        }
    )
    budgets.settle(now, changes)
