"""Amounts and times as operators see them."""

from datetime import datetime

from usage.pricing import to_usd


def usd(nanodollars: int) -> str:
    """Return the amount, exact, with at least two decimals: "$1,234.50", "-$0.00025"."""
    dollars, _, fraction = to_usd(abs(nanodollars)).partition(".")
    return f"{'-' if nanodollars < 0 else ''}${int(dollars):,}.{fraction:0<2}"


def moment(time: datetime | None) -> str | None:
    """Return the time in UTC as in logs."""
    return f"{time:%Y-%m-%d %H:%M:%S}" if time else None
