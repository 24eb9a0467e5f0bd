"""A generation's receipt: what it is charged for, line by line, what was corrected later, and how long each
part took.
"""

from collections.abc import Iterable
from datetime import datetime

from usage import pricing
from usage.books.settlement import Attempt
from usage.models import Generation, Kind, LedgerEntry, State
from usage.pricing import LineItem, Tokens


def line_items(row: Generation) -> list[LineItem]:
    """The lines that add up to the generation's amount, at its own price: none while it is open or when it is
    waived.
    """
    if row.state != State.SETTLED or row.is_waived:
        return []
    return pricing.line_items(Tokens.of(row), row.price)


def attempts(row: Generation) -> list[tuple[int, Attempt]]:
    """Each attempt with its number, the last ones where there were many; none where no attempt has failed."""
    log = [Attempt(**each) for each in row.attempt_log or ()]
    return list(enumerate(log, start=row.attempts - len(log) + 1))


def corrections(row: Generation) -> list[LedgerEntry]:
    """What was corrected since, in order. The generation's amount, and so its line items, stay as its client
    was told.
    """
    if row.state != State.SETTLED:
        return []
    return list(LedgerEntry.objects.filter(generation=row, kind=Kind.CORRECTION).order_by("id"))


def net_nanodollars(row: Generation, corrected: Iterable[LedgerEntry]) -> int:
    """What the generation costs with its corrections."""
    return row.amount_nanodollars + sum(entry.amount_nanodollars for entry in corrected)


def queue_ms(row: Generation) -> int | None:
    """How long it waited for a worker; None before it was claimed."""
    return _between_ms(row.admitted_at, row.claimed_at)


def total_ms(row: Generation) -> int | None:
    """From its admission to its settlement; None while it is open."""
    return _between_ms(row.admitted_at, row.settled_at)


def _between_ms(start: datetime, end: datetime | None) -> int | None:
    return None if end is None else round((end - start).total_seconds() * 1_000)
