"""Seals: a chain of digests over the ledger and its statements, which reveals later changes of them.

1. The hash of an entry is the SHA-256 of a JSON array of its columns (`canonical`), all but the end user in
   whose budgets it counts. Columns that a later version has added are at its end, and left out while they are
   zero, so older seals stay right.
2. A seal covers the entries after those of the seal before, in id order, and then the statements after
   those of the seal before. Its digest is the SHA-256 of the digest before, the hashes of its entries and
   the digests of its statements, all as bytes. It may have statements and no entry.
3. So the newest digest stands for all that is owed and why. With a copy of it elsewhere (each export has
   one), not even someone who rewrites all seals can change it unnoticed.

Sealing is periodic and costs settlements nothing.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from itertools import zip_longest
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Max

from usage.database.clock import database_now
from usage.models import LedgerEntry, LedgerSeal, Statement
from usage.verification.invariants import Difference

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
# Entries in a seal at most, and statements; after a full seal, the next follows at once.
BLOCK = 10_000
FINGERPRINT_BYTES = 8
# The previous digest of the first seal.
BEGINNING = "0" * 64
COLUMNS = (
    "id", "kind", "generation_id", "organization_id", "project_id", "api_key_id", "model", "outcome",
    "budget_day", "created_at", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens",
    "amount_nanodollars", "corrects_id", "is_rerating", "reason", "recorded_by", "reference",
    "cache_write_tokens", "cache_write_1h_tokens",
)  # fmt: skip
# The first of the columns that are left out while all of them are zero.
_ADDED = COLUMNS.index("cache_write_tokens")
_AMOUNT = COLUMNS.index("amount_nanodollars")
_EXTENT = ("first_id", "last_id", "last_statement_id", "entries_count", "sum_nanodollars")


def seal(every: timedelta = EVERY) -> LedgerSeal | None:
    """Seal what is new since the last seal; None if there is nothing, or if it is too early for the next.

    Any number of processes may call it at the same time, outside of transactions: one of them seals.
    """
    last = LedgerSeal.objects.order_by("-id").first()
    if last is not None and last.entries_count < BLOCK:
        age = database_now() - last.sealed_at
        if timedelta(0) <= age < every:  # negative if the clock was ahead when the seal was made
            return None
    try:
        block = _Block.after(_place_of(last), *_last_stable_ids(), limit=BLOCK)
        return _write(last.digest if last else BEGINNING, block) if block.hashes else None
    except IntegrityError:
        return None  # another process has sealed them
    except OperationalError as error:
        log.info("the ledger is not sealed this time: %s", error)
        return None


def check(since: datetime | None = None) -> Iterator[Difference]:
    """Recompute the seals (written since then), and yield the first row of each block that has changed.

    Entries with an id below 1 are in no seal; the database assigns no such id, so they are differences too.
    """
    for entry_id in LedgerEntry.objects.filter(id__lt=1).order_by("id").values_list("id", flat=True):
        yield Difference("I6 sealed", f"ledger entry {entry_id}", "an id above 0", "it is in no seal")
    rows = LedgerSeal.objects.order_by("id")
    before = rows.filter(sealed_at__lt=since).last() if since else None
    place, previous = _place_of(before), before.digest if before else BEGINNING
    # Few at once: a seal has up to 80 kB of fingerprints.
    for row in (rows.filter(id__gt=before.pk) if before else rows).iterator(chunk_size=20):
        if row.previous_digest != previous:
            yield Difference(
                "I6 sealed", f"seal {row.pk}", f"after {previous[:16]}", f"after {row.previous_digest[:16]}"
            )
        block = _Block.after(place, row.last_id, row.last_statement_id or place.statement_id)
        yield from _check_block(row, block)
        place, previous = block.place, row.digest


def canonical(entry: Sequence[Any]) -> bytes:
    """Return the bytes of an entry that are hashed: a JSON array of `COLUMNS` without spaces, in ASCII.

    Times are in UTC, with microseconds.
    """
    hashed = entry if any(entry[_ADDED:]) else entry[:_ADDED]
    return json.dumps([_plain(value) for value in hashed], separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        case date():
            return value.isoformat()
        case UUID():
            return value.hex
    return value


class _Place(NamedTuple):
    """The last entry and the last statement that are sealed."""

    entry_id: int
    statement_id: int


def _place_of(last: LedgerSeal | None) -> _Place:
    if last is None:
        return _Place(0, 0)
    statement_id = last.last_statement_id
    if statement_id is None:  # a process that knows no statements has made it
        sealed = LedgerSeal.objects.filter(pk__lt=last.pk)
        statement_id = sealed.aggregate(last=Max("last_statement_id"))["last"] or 0
    return _Place(last.last_id, statement_id)


def _last_stable_ids() -> _Place:
    """Return the highest ids up to which no row can still appear."""
    # PostgreSQL assigns ids before the commit, so this waits for running writers: milliseconds, and 0.1 s at
    # most, because new writers wait behind the lock. SQLite has one writer at a time.
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '100ms'")
                cursor.execute("LOCK TABLE usage_ledgerentry, usage_statement IN SHARE MODE")
        return _Place(
            LedgerEntry.objects.aggregate(last=Max("id"))["last"] or 0,
            Statement.objects.aggregate(last=Max("id"))["last"] or 0,
        )


@dataclass(frozen=True, slots=True)
class _Block:
    """The rows of a seal."""

    before: _Place
    entries: list[tuple[Any, ...]]
    """The values of `COLUMNS`."""
    statements: list[tuple[int, date, int, str]]
    """The id, month, organization and digest of each."""

    @classmethod
    def after(
        cls, before: _Place, last_id: int, last_statement_id: int, limit: int | None = None
    ) -> "_Block":
        """Return the rows up to these ids; `limit` bounds the entries and the statements."""
        entries = LedgerEntry.objects.filter(id__gt=before.entry_id, id__lte=last_id)
        statements = Statement.objects.filter(id__gt=before.statement_id, id__lte=last_statement_id)
        columns = ("id", "month", "organization_id", "digest")
        return cls(
            before,
            list(entries.order_by("id").values_list(*COLUMNS)[:limit]),
            list(statements.order_by("id").values_list(*columns)[:limit]),
        )

    @property
    def place(self) -> _Place:
        """Return the last rows that are sealed with this block."""
        return _Place(
            self.entries[-1][0] if self.entries else self.before.entry_id,
            self.statements[-1][0] if self.statements else self.before.statement_id,
        )

    @property
    def hashes(self) -> list[bytes]:
        return [*map(_hash, self.entries), *self._of_statements]

    @property
    def older_hashes(self) -> list[bytes]:
        """Return the hashes as by a process that does not know the added columns."""
        return [*(_hash(entry[:_ADDED]) for entry in self.entries), *self._of_statements]

    @property
    def _of_statements(self) -> list[bytes]:
        return [bytes.fromhex(digest) for *_, digest in self.statements]

    @property
    def extent(self) -> tuple[int, ...]:
        first_id = self.entries[0][0] if self.entries else self.place.entry_id
        amounts = (entry[_AMOUNT] for entry in self.entries)
        return (first_id, *self.place, len(self.entries), sum(amounts))

    def name(self, position: int) -> str:
        """Return the name of the row with that position, or of the one that should follow."""
        if position < len(self.entries):
            return f"ledger entry {self.entries[position][0]}"
        if position - len(self.entries) < len(self.statements):
            _, month, organization_id, _ = self.statements[position - len(self.entries)]
            return f"the statement {month:%Y-%m} of organization {organization_id}"
        if self.statements:
            return f"the statement after statement {self.statements[-1][0]}"
        return f"the entry after ledger entry {self.entries[-1][0]}" if self.entries else "all rows of a seal"


def _write(previous: str, block: _Block) -> LedgerSeal:
    hashes = block.hashes
    with transaction.atomic():
        return LedgerSeal.objects.create(
            **dict(zip(_EXTENT, block.extent, strict=True)),
            previous_digest=previous,
            digest=_digest(previous, hashes),
            fingerprints=b"".join(each[:FINGERPRINT_BYTES] for each in hashes),
            sealed_at=database_now(),
        )


def _check_block(row: LedgerSeal, block: _Block) -> Iterator[Difference]:
    hashes = block.hashes
    if _digest(row.previous_digest, hashes) != row.digest:
        # A process that does not know the added columns may have sealed the block during an upgrade.
        older = block.older_hashes
        hashes = older if _digest(row.previous_digest, older) == row.digest else hashes
    # The columns that are not hashed are checked as well: a `last_id` that is too high would end sealing.
    last_statement_id = block.before.statement_id if row.last_statement_id is None else row.last_statement_id
    extent = (row.first_id, row.last_id, last_statement_id, row.entries_count, row.sum_nanodollars)
    if _digest(row.previous_digest, hashes) == row.digest and block.extent == extent:
        return
    when = f"as sealed at {row.sealed_at:%Y-%m-%d %H:%M:%S}"
    sealed = [
        bytes(row.fingerprints[at : at + FINGERPRINT_BYTES])
        for at in range(0, len(row.fingerprints), FINGERPRINT_BYTES)
    ]
    found = [each[:FINGERPRINT_BYTES] for each in hashes]
    for position, (was, now) in enumerate(zip_longest(sealed, found)):
        if was != now:
            yield Difference("I6 sealed", block.name(position), when, _change(sealed, found, position))
            return
    yield Difference("I6 sealed", f"seal {row.pk}", when, "the seal itself was changed")


def _change(sealed: list[bytes], found: list[bytes], position: int) -> str:
    """Describe the change at the first position that differs."""
    if position >= len(found):
        return "it is gone"
    if found[position] in sealed[position + 1 :]:
        return "an entry before it is gone"
    is_new = position >= len(sealed) or sealed[position] in found[position + 1 :]
    return "it was not there" if is_new else "it was changed"


def _hash(entry: Sequence[Any]) -> bytes:
    return sha256(canonical(entry)).digest()


def _digest(previous: str, hashes: Sequence[bytes]) -> str:
    return sha256(bytes.fromhex(previous) + b"".join(hashes)).hexdigest()
