"""Corrections: a wrong charge is put right by one more entry, which counts where the charge counts.

A correction changes the budgets of the day that was charged, and the rollup of the hour in which it is
written. The generation's row keeps the amount that its client got.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Sum

from usage import pricing, rollups
from usage.books import budgets, outbox, weeks
from usage.books.credit import Booking, Note, booking, earlier_booking
from usage.database.clock import database_now
from usage.database.sql import insert
from usage.errors import NotBooked
from usage.models import CHARGED, Generation, Kind, LedgerEntry
from usage.models.budget_keys import BudgetOwners
from usage.pricing import TOKEN_COLUMNS
from usage.rollups import ENTRY_COLUMNS, Entry


@dataclass(frozen=True, slots=True)
class Correction:
    """By how much an entry is corrected; a negative amount gives money back."""

    entry: LedgerEntry
    amount_nanodollars: int
    reason: str
    recorded_by: str
    is_rerating: bool = False
    reference: str = ""


def correct(entry_id: int, amount_nanodollars: int, note: Note) -> Booking:
    """Correct a charge or overage by an amount, once if the note has a reference.

    Raises `NotBooked` if there is no such charge, its generation was dropped or is a test key's, the reason
    is missing, the generation's charges would fall below zero, or the reference belongs to another booking.
    """
    if not amount_nanodollars or not note.reason.strip():
        raise NotBooked("A correction needs an amount other than zero, and a reason.")
    with booking(note):
        return _correct_once(entry_id, amount_nanodollars, note)


def _correct_once(entry_id: int, amount_nanodollars: int, note: Note) -> Booking:
    entry = LedgerEntry.objects.filter(pk=entry_id, kind__in=CHARGED).first()
    if entry is None or entry.generation_id is None:
        raise NotBooked(f"There is no charge or overage with the id {entry_id}.")
    # Locked, because two corrections at once might each take all that is left.
    row = Generation.objects.select_for_update().filter(pk=entry.generation_id).first()
    if row is None:
        raise NotBooked(
            "The request of this charge has been exported and dropped, so the charge can't be corrected. "
            "Grant credit instead."
        )
    if row.is_test:
        raise NotBooked("This is a request of a test key, which costs nothing.")
    known = earlier_booking(note, corrects_id=entry_id, amount_nanodollars=amount_nanodollars)
    if known is not None:
        return known
    left = charged(entry.generation_id)
    if left + amount_nanodollars < 0:
        raise NotBooked(f"Only ${pricing.to_usd(left)} of the charge is left to take back.")
    write(
        database_now(),
        [Correction(entry, amount_nanodollars, note.reason, note.recorded_by, reference=note.reference)],
    )
    return Booking(LedgerEntry.objects.filter(corrects=entry).latest("id"), is_new=True)


def write(now: datetime, corrections: Sequence[Correction]) -> None:
    """Write the corrections (at least one) with their budgets and hours, after locking their generations."""
    rows = [_row(now, correction) for correction in corrections]
    more = [
        (each.entry.pk, each.is_rerating, each.reason, each.recorded_by, each.reference)
        for each in corrections
    ]
    columns = (*ENTRY_COLUMNS, "corrects_id", "is_rerating", "reason", "recorded_by", "reference")
    written = [(*row.values, *values) for row, values in zip(rows, more, strict=True)]
    insert("usage_ledgerentry", columns, written)
    # Added up first: one statement must change each budget once, or only one of its changes would apply.
    changes: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        for budget_id in row.owners.budget_ids(row.budget_day):
            changes[budget_id] = (0, changes[budget_id][1] + row.amount_nanodollars)
    # A free request held nothing, so its budgets may have no row.
    budgets.ensure(changes)
    outbox.write_crossed(now, changes, budgets.post(now, changes), weeks.read_posted(changes))
    # The hour of the correction gets the amount. The hour of the charge may be in a closed day, or in a
    # report that was already sent.
    rollups.add(rows)


def _row(now: datetime, correction: Correction) -> Entry:
    entry = correction.entry
    assert entry.generation_id is not None
    return Entry(
        Kind.CORRECTION.value,
        entry.generation_id,
        BudgetOwners.of(entry),
        model=entry.model,
        outcome=entry.outcome,
        budget_day=entry.budget_day,
        created_at=now,
        # A correction moves money only: the tokens that were generated stay what they were.
        **dict.fromkeys(TOKEN_COLUMNS, 0),
        amount_nanodollars=correction.amount_nanodollars,
    )


def charged(generation_id: UUID) -> int:
    """Return what the generation is charged now, corrections included."""
    return charged_of([generation_id]).get(generation_id, 0)


def charged_of(ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return the same for several generations; one without entries is missing."""
    entries = LedgerEntry.objects.filter(generation_id__in=ids).order_by()
    return dict(entries.values_list("generation_id").annotate(Sum("amount_nanodollars")))
