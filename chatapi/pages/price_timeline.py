"""A model's prices as a timeline: when each counts, and what it changed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from usage import pricing
from usage.formatting import usd
from usage.models import Price

NAMES = {
    "input_per_mtok_nanodollars": "Input",
    "cached_input_per_mtok_nanodollars": "Cached input",
    "output_per_mtok_nanodollars": "Output",
    "reasoning_per_mtok_nanodollars": "Reasoning",
}
"""The parts of a price, as people call them."""
assert tuple(NAMES) == tuple(field.name for field in fields(pricing.Price)), "each part has a name"


@dataclass(frozen=True, slots=True)
class Amount:
    """One part of a price, against the price before."""

    name: str
    usd: str
    before_usd: str
    """Empty where it was the same, or where there was no price before."""
    change: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One price: when it counts, and what it changed."""

    row: Price
    ends: datetime | None
    state: str
    """"past", "in effect" or "upcoming"."""
    amounts: Sequence[Amount]


def entries(rows: Sequence[Price], now: datetime) -> list[Entry]:
    """The timeline of these prices of one model, which come in the order of their beginning; the newest is
    first.
    """
    ends: list[datetime | None] = [*(row.effective_from for row in rows[1:]), None]
    befores: list[pricing.Price | None] = [None, *(row.value for row in rows)]
    made = [
        Entry(row, end, _state(row, end, now), _amounts(row.value, before))
        for row, end, before in zip(rows, ends, befores, strict=False)
    ]
    return made[::-1]


def percent(before: int, after: int) -> str:
    """How a price has changed: "+33 %", "−2.5 %"; in words where that says nothing."""
    if before == after:
        return "unchanged"
    if not before:
        return "was free"
    if not after:
        return "free now"
    change = 100 * (after - before) / before
    if abs(change) < 0.01:
        return "barely changed"
    # Beyond tenfold a percentage says less than a factor.
    return f"×{after / before:.3g}" if change > 900 else f"{change:+.3g} %".replace("-", "−")


def _state(row: Price, end: datetime | None, now: datetime) -> str:
    if row.effective_from > now:
        return "upcoming"
    return "in effect" if end is None or end > now else "past"


def _amounts(price: pricing.Price, before: pricing.Price | None) -> list[Amount]:
    told = [
        field
        for field in NAMES
        if getattr(price, field) is not None or (before and getattr(before, field) is not None)
    ]
    return [_amount(field, price, before) for field in told]


def _amount(field: str, price: pricing.Price, before: pricing.Price | None) -> Amount:
    if before is None:
        return Amount(NAMES[field], _written(getattr(price, field)), "", "")
    change = percent(charged(before, field), charged(price, field))
    was = _written(getattr(before, field))
    now = _written(getattr(price, field))
    return Amount(NAMES[field], now, was if was != now else "", change)


def charged(price: pricing.Price, field: str) -> int:
    """What this part costs: reasoning without a price of its own costs what output costs."""
    amount: int | None = getattr(price, field)
    return price.output_per_mtok_nanodollars if amount is None else amount


def _written(nanodollars: int | None) -> str:
    return "as output" if nanodollars is None else usd(nanodollars)
