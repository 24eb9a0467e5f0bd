"""Settling: the usage of ended generations becomes money, in one transaction for a whole batch.

The generation's row, its ledger entries, its budgets and its hour are written together or not at all.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from functools import cache
from typing import NamedTuple
from uuid import UUID

from django.db import connection

from usage import pricing, rollups
from usage.books import budgets, idempotency, outbox, weeks
from usage.database import sql
from usage.errors import AlreadyResolved
from usage.failpoints import failpoint
from usage.models import Kind, Outcome, UsageNote, UsageSource
from usage.models.budget_keys import BudgetOwners
from usage.pricing import PRICE_COLUMNS, TOKEN_COLUMNS, Price, Tokens
from usage.rollups import ENTRY_COLUMNS, Entry

# The last attempts are kept, because the one that answered is among them. These are all of them unless nine
# models, one and its fallbacks, have more than 54 deployments that fail, beside ten repetitions.
MAX_LOGGED_ATTEMPTS = 64


@dataclass(frozen=True, slots=True)
class Attempt:
    """One deployment that was asked; without an error code it did not fail, however the attempt ended."""

    deployment: str
    error_code: str
    duration_ms: int
    started_ms: int | None = None
    """The time from the worker's start on the generation; None in rows of older releases."""
    model: str = ""
    """Empty in rows of older releases."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a generation ended, written by the holder of its fence."""

    id: UUID
    fence: int
    outcome: Outcome
    tokens: Tokens
    usage_source: UsageSource
    finish_reason: str = ""
    error_code: str = ""
    error_message: str = ""
    deployment: str = ""
    """The deployment that ran it; if empty, the row keeps the deployment of the last heartbeat."""
    attempts: int = 0
    attempt_log: Sequence[Attempt] = ()
    first_token_ms: int | None = None
    last_token_ms: int | None = None
    usage_note: UsageNote | None = None
    is_final: bool = False
    """Whether the same request would fail again, or is not wanted again."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What was written: the tokens and the amount, which the client may see now."""

    id: UUID
    tokens: Tokens
    amount_nanodollars: int
    settled_at: datetime
    model: str
    requested_model: str | None
    """The name that the client sent; None if it is the model's id."""
    api_key: str
    """The public part of the key's current secret."""
    settlement: Settlement
    queued_ms: int | None
    """From admission to the first claim; None if it was never claimed."""


def settle(now: datetime, items: Sequence[Settlement]) -> list[Charge | AlreadyResolved]:
    """Settle each generation once; `AlreadyResolved` for one that is settled or has a newer fence."""
    rows = _lock_open([item.id for item in items])
    results: list[Charge | AlreadyResolved] = []
    postings: list[_Posting] = []
    for item in items:
        row = rows.get(item.id)
        if row is None or row.fence != item.fence:
            results.append(AlreadyResolved(str(item.id)))
            continue
        del rows[item.id]  # the same generation twice in one batch is settled once
        posting = _Posting.of(row, item)
        postings.append(posting)
        amount = posting.amount_nanodollars
        names = (row.model, row.requested_model, row.api_key)
        results.append(Charge(item.id, item.tokens, amount, now, *names, item, row.queued_ms))
    if not postings:
        return results
    entries = [entry for posting in postings for entry in _entries(now, posting)]
    with sql.together():
        _update_generations(now, postings)
        sql.insert("usage_ledgerentry", ENTRY_COLUMNS, [entry.values for entry in entries])
        changes, *posted = _update_budgets(now, postings)
        rollups.add(entries)
        # Last, so that a repeated request does not wait for this row while this batch waits for budgets.
        idempotency.release(posting.row.id for posting in postings if posting.frees_its_key)
    outbox.write_crossed(now, changes, *posted)
    failpoint("settle.in_tx")
    return results


class _Open(NamedTuple):
    """The columns of a running generation that settling needs."""

    id: UUID
    fence: int
    model: str
    requested_model: str | None
    budget_day: date
    reserved_nanodollars: int
    api_key: str
    admitted_at: datetime | str
    claimed_at: datetime | str | None
    has_thresholds: bool
    """Whether there is any limit or credit: otherwise a posting can't cross a threshold."""
    has_weeks: bool
    """Whether there is any limit of a week, whose thresholds take one more statement."""
    owners: BudgetOwners
    price: Price

    @property
    def queued_ms(self) -> int | None:
        if self.claimed_at is None:
            return None
        waited = sql.to_datetime(self.claimed_at) - sql.to_datetime(self.admitted_at)
        return waited // timedelta(milliseconds=1)

    @property
    def budget_ids(self) -> tuple[str, ...]:
        return self.owners.budget_ids(self.budget_day)


# The columns of `_Open` that the table does not have.
_ELSEWHERE = {
    # The public part of the key, for the log.
    "api_key": "(SELECT public FROM accounts_apikey WHERE accounts_apikey.id = api_key_id)",
    # Evaluated once per statement; a look for the limit of each budget would be one per row.
    "has_thresholds": "(SELECT EXISTS (SELECT 1 FROM usage_budgetlimit)"
    " OR EXISTS (SELECT 1 FROM usage_credit))",
    "has_weeks": f"(SELECT {weeks.HAS_LIMITS})",
}
_OPEN_COLUMNS = ", ".join(
    [_ELSEWHERE.get(name, name) for name in (*_Open._fields[:-2], *BudgetOwners._fields, *PRICE_COLUMNS)]
)


def _lock_open(ids: Sequence[UUID]) -> dict[UUID, _Open]:
    """Lock the running generations among them in id order, and return their rows."""
    placeholders = ", ".join(["%s"] * len(ids))
    lock = "FOR UPDATE" if connection.features.has_select_for_update else ""
    rows = sql.fetch_all(
        f"SELECT {_OPEN_COLUMNS} FROM usage_generation "  # noqa: S608  the text is ours
        f"WHERE id IN ({placeholders}) AND state = 'running' ORDER BY id {lock}",
        [sql.db_value(generation_id) for generation_id in ids],
    )
    own, price = len(_Open._fields) - 2, -len(PRICE_COLUMNS)
    found = [_Open._make([*row[:own], BudgetOwners(*row[own:price]), Price(*row[price:])]) for row in rows]
    found = [row._replace(id=sql.to_uuid(row.id), budget_day=sql.to_date(row.budget_day)) for row in found]
    return {row.id: row for row in found}


# After these, a request with the same Idempotency-Key is a new attempt. A cancelled one is not run again.
RETRYABLE_OUTCOMES = {Outcome.FAILED, Outcome.NOT_STARTED, Outcome.WORKER_LOST}


@dataclass(frozen=True, slots=True)
class _Posting:
    """A settlement with its row and its cost."""

    row: _Open
    item: Settlement
    is_waived: bool
    amount_nanodollars: int

    @classmethod
    def of(cls, row: _Open, item: Settlement) -> "_Posting":
        # The zero-completion rule, kept as data: no output and not completed costs nothing.
        is_waived = item.outcome != Outcome.COMPLETED and item.tokens.completion_tokens == 0
        return cls(row, item, is_waived, 0 if is_waived else pricing.amount(item.tokens, row.price))

    @property
    def frees_its_key(self) -> bool:
        """Return whether its idempotency key is released: it cost nothing, and a retry may succeed."""
        return self.is_waived and self.item.outcome in RETRYABLE_OUTCOMES and not self.item.is_final


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
# The type of JSON columns in each database. SQLite gives a type named JSON numeric affinity.
_JSON = {"sqlite": "TEXT", "postgresql": "JSONB"}


def _update_generations(now: datetime, postings: Sequence[_Posting]) -> None:
    values, parameters = sql.rows_of_values(
        "charge", ["id", "is_waived", *_COLUMNS], [_values(posting) for posting in postings]
    )
    sql.execute(
        f"""{values} UPDATE usage_generation AS g
        SET state = 'settled', settled_at = %s, is_waived = charge.is_waived, {_new_values(connection.vendor)}
        FROM charge WHERE g.id = charge.id""",  # noqa: S608  the text is ours, the values are parameters
        [*parameters, sql.db_value(now)],
    )


@cache
def _new_values(vendor: str) -> str:
    types = {"JSON": _JSON[vendor]}
    new = {name: f"CAST(charge.{name} AS {types.get(kind, kind)})" for name, kind in _COLUMNS.items()}
    # The reaper does not know the deployment of a lost worker; the last heartbeat's stays.
    new["deployment"] = f"COALESCE(NULLIF({new['deployment']}, ''), g.deployment)"
    return ", ".join(f"{name} = {value}" for name, value in new.items())


def _values(posting: _Posting) -> list[object]:
    item = posting.item
    # NULL if no attempt failed: the row already says all about one success.
    log = None
    if any(attempt.error_code for attempt in item.attempt_log):
        log = json.dumps([asdict(attempt) for attempt in item.attempt_log[-MAX_LOGGED_ATTEMPTS:]])
    return [
        item.id,
        posting.is_waived,
        item.outcome.value,
        item.usage_source.value,
        item.usage_note and item.usage_note.value,
        item.finish_reason,
        # Cut here, because SQLite would store longer texts whole.
        item.error_code[:64],
        item.error_message[:500],
        item.deployment,
        item.attempts,
        log,
        *item.tokens.columns().values(),
        posting.amount_nanodollars,
        item.first_token_ms,
        item.last_token_ms,
    ]


def _entries(now: datetime, posting: _Posting) -> list[Entry]:
    """Return the charge up to the hold, and an overage for the amount beyond it."""
    # Two entries, so that a charge never exceeds its hold (I4), and what an upstream generated beyond its
    # cap can be found.
    covered = min(posting.amount_nanodollars, posting.row.reserved_nanodollars)
    entries = [_entry(now, posting, Kind.CHARGE, covered, posting.item.tokens)]
    if posting.amount_nanodollars > covered:
        entries.append(_entry(now, posting, Kind.OVERAGE, posting.amount_nanodollars - covered, Tokens()))
    return entries


def _entry(now: datetime, posting: _Posting, kind: Kind, amount_nanodollars: int, tokens: Tokens) -> Entry:
    row = posting.row
    return Entry(
        kind.value,
        row.id,
        row.owners,
        model=row.model,
        outcome=posting.item.outcome.value,
        budget_day=row.budget_day,
        created_at=now,
        **{name: count or 0 for name, count in tokens.columns().items()},
        amount_nanodollars=amount_nanodollars,
    )


def _update_budgets(
    now: datetime, postings: Sequence[_Posting]
) -> tuple[Mapping[str, tuple[int, int]], sql.Rows, sql.Rows]:
    """Release and post; return the changes, and what `budgets.post` and `weeks.read_posted` return."""
    # Rows of free requests are left alone: their budgets would only be locked.
    moving = [each for each in postings if each.row.reserved_nanodollars or each.amount_nanodollars]
    changes: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for each in moving:
        for budget_id in each.row.budget_ids:
            released, amount = changes[budget_id]
            changes[budget_id] = released + each.row.reserved_nanodollars, amount + each.amount_nanodollars
    # A free hold may cost something if the upstream exceeded the cap; its budgets may have no row.
    free = [each for each in moving if not each.row.reserved_nanodollars]
    budgets.ensure({budget_id for each in free for budget_id in each.row.budget_ids})
    has_thresholds = any(each.row.has_thresholds for each in moving)
    posted = budgets.post(now, changes, has_thresholds=has_thresholds)
    return changes, posted, weeks.read_posted(changes) if any(each.row.has_weeks for each in moving) else []
