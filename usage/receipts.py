"""A generation's receipt: what it is charged for, line by line, and how long each part took."""

from datetime import datetime

from usage import pricing
from usage.models import Generation, State
from usage.pricing import LineItem, Tokens


def line_items(row: Generation) -> list[LineItem]:
    """The lines that add up to the generation's amount, at its own price: none while it is open or when it is waived."""
    if row.state != State.SETTLED or row.is_waived:
        return []
    return pricing.line_items(Tokens(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens), row.price)


def queue_ms(row: Generation) -> int | None:
    """How long it waited for a worker; None before it was claimed."""
    return _between_ms(row.admitted_at, row.claimed_at)


def total_ms(row: Generation) -> int | None:
    """From its admission to its settlement; None while it is open."""
    return _between_ms(row.admitted_at, row.settled_at)


def _between_ms(start: datetime, end: datetime | None) -> int | None:
    return None if end is None else round((end - start).total_seconds() * 1_000)
