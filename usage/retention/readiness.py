"""Reasons why a period's generations cannot be dropped yet, as messages for the operator."""

from collections.abc import Iterator
from datetime import timedelta

from usage import verification
from usage.exports.exporting import ExportSpec
from usage.models import OPEN, Generation, Kind, LedgerEntry, LedgerSeal
from usage.rollups import closed_days
from usage.rollups.closed_days import DAY, midnight
from usage.statements import itemizing

# A month and some days, by which re-rating, reconciliation and corrections of a month are done. No lease,
# idempotency key or open day is nearly as old.
MIN_AGE = timedelta(days=35)
MAX_SHOWN = 3


def reasons_against(spec: ExportSpec) -> Iterator[str]:
    """Yield the reasons against dropping the period's generations, those that are cheap to find first."""
    not_settled = Generation.objects.filter(OPEN, admitted_at__lt=spec.until).order_by("admitted_at")
    if first := not_settled.first():
        yield (
            f"{not_settled.count()} requests from before {spec.until:%Y-%m-%d} are not settled, such as "
            f"{first} of {first.admitted_at:%Y-%m-%d %H:%M}. A running reaper settles them: is one running?"
        )
    yield from _not_closed(spec)
    seal = LedgerSeal.objects.order_by("-id").first()
    if LedgerEntry.objects.filter(created_at__lt=spec.until, id__gt=seal.last_id if seal else 0).exists():
        yield (
            f"Some ledger entries from before {spec.until:%Y-%m-%d} are not sealed. "
            "A running reaper seals them within minutes."
        )
    found = verification.verify().differences
    yield from (f"The books are not right: {difference}." for difference in found[:MAX_SHOWN])
    if len(found) > MAX_SHOWN:
        yield f"And {len(found) - MAX_SHOWN} differences more: see `manage.py verifyledger`."


def _not_closed(spec: ExportSpec) -> Iterator[str]:
    charges = LedgerEntry.objects.filter(
        kind=Kind.CHARGE, created_at__gte=spec.since, created_at__lt=spec.until
    )
    first = charges.order_by("created_at").first()
    if first is None:
        return
    for start, end in closed_days.spans(midnight(first.created_at.date()), spec.until).open[:MAX_SHOWN]:
        days = f"{start:%Y-%m-%d}" if end - start == DAY else f"{start:%Y-%m-%d} to {end - DAY:%Y-%m-%d}"
        yield (
            f"{days}: the sums by day or the times to first token are missing. "
            "A running reaper does it, or `manage.py rollup`."
        )
    # Only requests know the prices of a statement's lines.
    until = itemizing.itemized_until()
    if until is None or midnight(until) < spec.until:
        days = f"from {until or first.created_at.date()} to {spec.until - DAY:%Y-%m-%d}"
        yield (
            f"The days {days} are not itemized for statements yet. "
            "A running reaper does it, or `manage.py rollup`."
        )
