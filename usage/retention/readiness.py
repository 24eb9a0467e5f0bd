"""Whether a period's generations may be dropped: what speaks against it, for the operator to read."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

from usage import verification
from usage.exports.exporting import ExportSpec
from usage.models import OPEN, ClosedDay, Generation, Kind, LedgerEntry, LedgerSeal
from usage.rollups import closed_days
from usage.rollups.closed_days import DAY, midnight

MIN_AGE = timedelta(days=35)
"""Longer than a month and some days: what still moves money of a month by its requests, such as re-rating, a
bill to reconcile or a correction, is done by then. No lease, idempotency key or open day is nearly as old.
"""
MAX_SHOWN = 3


def reasons_against(spec: ExportSpec) -> Iterator[str]:
    """What must be put right first, the cheapest to find out first; nothing: what was settled in the period
    may be dropped.
    """
    yield from _open(spec)
    yield from _not_added_up(spec)
    yield from _not_sealed(spec)
    yield from _differences()


def _open(spec: ExportSpec) -> Iterator[str]:
    rows = Generation.objects.filter(OPEN, admitted_at__lt=spec.until)
    if count := rows.count():
        first = rows.order_by("admitted_at")[0]
        yield (
            f"{count} requests of before are not settled, such as {first} of {first.admitted_at:%Y-%m-%d %H:%M}. A running reaper settles "
            f"them: is `serve` running?"
        )


def _not_added_up(spec: ExportSpec) -> Iterator[str]:
    charges = LedgerEntry.objects.filter(
        kind=Kind.CHARGE, created_at__gte=spec.since, created_at__lt=spec.until
    )
    first = charges.order_by("created_at").first()
    if first is None:
        return
    counted = ClosedDay.objects.filter(has_first_tokens=True)
    for start, end in islice(
        closed_days.spans(midnight(first.created_at.date()), spec.until, counted).open, MAX_SHOWN
    ):
        days = f"{start:%Y-%m-%d}" if end - start == DAY else f"{start:%Y-%m-%d} to {end - DAY:%Y-%m-%d}"
        yield f"{days}: not added up by day yet, times to first token included. A running reaper does it, or `manage.py rollup`."


def _not_sealed(spec: ExportSpec) -> Iterator[str]:
    seal = LedgerSeal.objects.order_by("-id").first()
    if LedgerEntry.objects.filter(created_at__lt=spec.until, id__gt=seal.last_id if seal else 0).exists():
        yield "Not all ledger entries of before are sealed yet. A running reaper seals them within minutes."


def _differences() -> Iterator[str]:
    found = verification.verify().differences
    yield from (f"The books are not right: {difference}." for difference in found[:MAX_SHOWN])
    if len(found) > MAX_SHOWN:
        yield f"And {len(found) - MAX_SHOWN} differences more: see `manage.py verifyledger`."
