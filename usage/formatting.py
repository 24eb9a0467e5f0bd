"""How amounts and times are shown to operators."""

from datetime import datetime

from usage.pricing import to_usd


def usd(nanodollars: int) -> str:
    """The amount, exact, with cents at least: "$1,234.50", "-$0.00025"."""
    dollars, _, fraction = to_usd(abs(nanodollars)).partition(".")
    return f"{'-' if nanodollars < 0 else ''}${int(dollars):,}.{fraction:0<2}"


def moment(time: datetime | None) -> str | None:
    """The time as logs write it, in UTC."""
    return f"{time:%Y-%m-%d %H:%M:%S}" if time else None
