"""Seals: a chain of digests over the ledger, which reveals later changes of entries.

1. The hash of an entry is the SHA-256 of a JSON array of its columns (`canonical`). Columns that a later
   version has added are at its end, and left out while they are zero, so older seals stay right.
2. A seal covers the entries after those of the seal before, in id order. Its digest is the SHA-256 of the
   digest before and the hashes of its entries, all as bytes.
3. So the newest digest stands for the whole ledger. With a copy of it elsewhere (each export has one), not
   even someone who rewrites all seals can change the past unnoticed.

Sealing is periodic and costs settlements nothing.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from itertools import zip_longest
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Max

from usage.database.clock import database_now
from usage.models import LedgerEntry, LedgerSeal
from usage.verification.invariants import Difference

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
# Entries in a seal at most; after a full seal, the next follows at once.
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
_EXTENT = ("first_id", "last_id", "entries_count", "sum_nanodollars")


def seal(every: timedelta = EVERY) -> LedgerSeal | None:
    """Seal the entries since the last seal; None if there are none, or if it is too early for the next seal.

    Any number of processes may call it at the same time, outside of transactions: one of them seals.
    """
    last = LedgerSeal.objects.order_by("-id").first()
    if last is not None and last.entries_count < BLOCK:
        age = database_now() - last.sealed_at
        if timedelta(0) <= age < every:  # negative if the clock was ahead when the seal was made
            return None
    last_id, previous = (last.last_id, last.digest) if last else (0, BEGINNING)
    try:
        entries = _entries(last_id, _last_stable_id())[:BLOCK]
        return _write(previous, entries) if entries else None
    except IntegrityError:
        return None  # another process has sealed them
    except OperationalError as error:
        log.info("the ledger is not sealed this time: %s", error)
        return None


def check(since: datetime | None = None) -> Iterator[Difference]:
    """Recompute the seals (written since then), and yield the first entry of each block that has changed.

    Entries with an id below 1 are in no seal; the database assigns no such id, so they are differences too.
    """
    for entry_id in LedgerEntry.objects.filter(id__lt=1).order_by("id").values_list("id", flat=True):
        yield Difference("I6 sealed", f"ledger entry {entry_id}", "an id above 0", "it is in no seal")
    rows = LedgerSeal.objects.order_by("id")
    before = rows.filter(sealed_at__lt=since).last() if since else None
    last_id, previous = (before.last_id, before.digest) if before else (0, BEGINNING)
    # Few at once: a seal has up to 80 kB of fingerprints.
    for row in (rows.filter(id__gt=before.pk) if before else rows).iterator(chunk_size=20):
        if row.previous_digest != previous:
            yield Difference(
                "I6 sealed", f"seal {row.pk}", f"after {previous[:16]}", f"after {row.previous_digest[:16]}"
            )
        yield from _check_block(row, _entries(last_id, row.last_id))
        last_id, previous = row.last_id, row.digest


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


def _last_stable_id() -> int:
    """Return the highest id up to which no entry can still appear."""
    # PostgreSQL assigns ids before the commit, so this waits for running writers: milliseconds, and 0.1 s at
    # most, because new writers wait behind the lock. SQLite has one writer at a time.
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '100ms'")
                cursor.execute("LOCK TABLE usage_ledgerentry IN SHARE MODE")
        return LedgerEntry.objects.aggregate(last=Max("id"))["last"] or 0


def _entries(after_id: int, last_id: int) -> Any:
    return LedgerEntry.objects.filter(id__gt=after_id, id__lte=last_id).order_by("id").values_list(*COLUMNS)


def _write(previous: str, entries: Any) -> LedgerSeal:
    rows = list(entries)
    hashes = [_hash(row) for row in rows]
    with transaction.atomic():
        return LedgerSeal.objects.create(
            **dict(zip(_EXTENT, _extent(rows), strict=True)),
            previous_digest=previous,
            digest=_digest(previous, hashes),
            fingerprints=b"".join(each[:FINGERPRINT_BYTES] for each in hashes),
            sealed_at=database_now(),
        )


def _check_block(row: LedgerSeal, entries: Any) -> Iterator[Difference]:
    rows = list(entries)
    hashes = [_hash(each) for each in rows]
    if _digest(row.previous_digest, hashes) != row.digest:
        # A process that does not know the added columns may have sealed the block during an upgrade.
        older = [_hash(each[:_ADDED]) for each in rows]
        hashes = older if _digest(row.previous_digest, older) == row.digest else hashes
    # The columns that are not hashed are checked as well: a `last_id` that is too high would end sealing.
    told = (row.first_id, row.last_id, row.entries_count, row.sum_nanodollars)
    if _digest(row.previous_digest, hashes) == row.digest and _extent(rows) == told:
        return
    when = f"as sealed at {row.sealed_at:%Y-%m-%d %H:%M:%S}"
    sealed = [
        bytes(row.fingerprints[at : at + FINGERPRINT_BYTES])
        for at in range(0, len(row.fingerprints), FINGERPRINT_BYTES)
    ]
    found = [each[:FINGERPRINT_BYTES] for each in hashes]
    for position, (was, now) in enumerate(zip_longest(sealed, found)):
        if was != now:
            yield Difference("I6 sealed", _named(rows, position), when, _change(sealed, found, position))
            return
    yield Difference("I6 sealed", f"seal {row.pk}", when, "the seal itself was changed")


def _extent(rows: list[Any]) -> tuple[int, ...]:
    """Return the values of `_EXTENT` for these entries; none without entries."""
    return (rows[0][0], rows[-1][0], len(rows), sum(row[_AMOUNT] for row in rows)) if rows else ()


def _named(rows: list[Any], position: int) -> str:
    if position < len(rows):
        return f"ledger entry {rows[position][0]}"
    return f"the entry after ledger entry {rows[-1][0]}" if rows else "all entries of a seal"


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
