"""Receipts: the line items, corrections and timings of a generation."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from usage import pricing
from usage.books.settlement import Attempt
from usage.models import Generation, Kind, LedgerEntry, State
from usage.pricing import LineItem, Tokens


def line_items(row: Generation) -> list[LineItem]:
    """Return the lines that add up to the generation's amount; none if it is open or waived."""
    if row.state != State.SETTLED or row.is_waived:
        return []
    return pricing.line_items(Tokens.of(row), row.price)


def attempts(row: Generation) -> list[tuple[int, Attempt]]:
    """Return the logged attempts with their numbers; none if no attempt failed."""
    # The log has the last attempts only, so the first of them has a later number than 1.
    log = [msgspec.convert(each, Attempt) for each in row.attempt_log or ()]
    return list(enumerate(log, start=row.attempts - len(log) + 1))


def corrections(row: Generation) -> list[LedgerEntry]:
    """Return the corrections in order. The generation keeps the amount that its client got."""
    if row.state != State.SETTLED:
        return []
    return list(LedgerEntry.objects.filter(generation=row, kind=Kind.CORRECTION).order_by("id"))


def net_nanodollars(row: Generation, corrected: Iterable[LedgerEntry]) -> int:
    return row.amount_nanodollars + sum(entry.amount_nanodollars for entry in corrected)


def queue_ms(row: Generation) -> int | None:
    """Return how long it waited for a worker; None before the claim."""
    return _between_ms(row.admitted_at, row.claimed_at)


def total_ms(row: Generation) -> int | None:
    """Return the time from admission to settlement; None while it is open."""
    return _between_ms(row.admitted_at, row.settled_at)


def _between_ms(start: datetime, end: datetime | None) -> int | None:
    return None if end is None else round((end - start).total_seconds() * 1_000)
