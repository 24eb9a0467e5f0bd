"""Amounts, counts, times and durations as people read them."""

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from usage.pricing import NANODOLLARS, to_usd

_CENT_NANODOLLARS = 10_000_000
# What the last digit of a column of amounts counts.
_MILLIONTH_NANODOLLARS = 1_000


def usd(nanodollars: int) -> str:
    """Return the exact amount, with cents at least: "$1,234.50", "-$0.00025"."""
    dollars, _, fraction = to_usd(abs(nanodollars)).partition(".")
    return f"{'-' if nanodollars < 0 else ''}${int(dollars):,}.{fraction:0<2}"


def money(nanodollars: int) -> str:
    """Return the amount rounded to cents, "$1,234.50"; below $1 to three digits, "$0.0473", "$0.00024"."""
    size = abs(nanodollars)
    unit = _CENT_NANODOLLARS if size >= NANODOLLARS else 10 ** max(len(str(size)) - 3, 0)
    rounded = (size + unit // 2) // unit * unit
    return usd(-rounded if nanodollars < 0 else rounded)


def amount(nanodollars: int) -> str:
    """Return the amount as a column has it, with six decimals: "$1,234.500000"; "<$0.000001" if that would
    hide it.
    """
    size, sign = abs(nanodollars), "-" if nanodollars < 0 else ""
    millionths = (size + _MILLIONTH_NANODOLLARS // 2) // _MILLIONTH_NANODOLLARS
    if size and not millionths:
        return ">-$0.000001" if sign else "<$0.000001"
    dollars, fraction = divmod(millionths, NANODOLLARS // _MILLIONTH_NANODOLLARS)
    return f"{sign}${dollars:,}.{fraction:06}"


def count(number: int) -> str:
    """Return the number, "9,999"; from 10,000 with three digits, "12.3k", "1.23M"."""
    if abs(number) < 10_000:
        return f"{number:,}"
    scaled, unit = float(number), ""
    for following in ("k", "M", "G", "T"):
        # 999,950 would be written as 1000k.
        if abs(scaled) < 999.5:
            break
        scaled, unit = scaled / 1_000, following
    return f"{scaled:.3g}{unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f}{unit}"


def share(part: int, whole: int) -> str:
    """Return the part in percent of the whole: "0 %", "0.04 %", "12.5 %"."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 0.0001:
        return "<0.0001 %"  # Python would write 5e-05
    return f"{percent:.2g} %" if percent < 1 else f"{percent:.3g} %"


def rate(part: int, whole: int) -> str:
    """Return the part in percent as a column has it, with two decimals: "2.00 %"; "<0.01 %" if that would
    hide it.
    """
    text = f"{100 * part / whole if whole else 0:.2f} %"
    return "<0.01 %" if part and text == "0.00 %" else text


def duration(ms: float | None) -> str:
    """Return a duration such as "38 ms", "1.24 s", "2 min 5 s" or "3 h 20 min"; a dash for None."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole_s = round(seconds)
    units = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))
    unit, unit_s, smaller, smaller_s = next(each for each in units if whole_s >= each[1])
    rest = whole_s % unit_s // smaller_s
    return f"{whole_s // unit_s} {unit}" + (f" {rest} {smaller}" if rest else "")


def moment(when: datetime | None) -> str | None:
    """Return the time as logs write it, in UTC."""
    return f"{when:%Y-%m-%d %H:%M:%S}" if when else None


def time_span(start: datetime, end: datetime) -> str:
    """Return the days or times from `start` up to `end`: "1 Nov 2026 – 30 Nov 2026 (UTC)"."""
    are_days = start.time() == end.time() == time()
    last = end - timedelta(microseconds=1) if are_days else end
    first, last_text = (f"{each:%d %b %Y}".lstrip("0") for each in (start, last))
    if are_days:
        text = first if first == last_text else f"{first} – {last_text}"
    else:
        text = f"{first} {start:%H:%M} – {last_text} {last:%H:%M}"
    return f"{text} ({start.tzinfo})"


def age(moment: datetime, now: datetime) -> str:
    """Return how long ago the moment was: "just now", "40 s ago"; after 60 days its date, in its own zone."""
    seconds = (now - moment).total_seconds()
    if seconds < 5:
        return "just now"
    for unit, length, until in (
        ("s", 1, 60),
        ("min", 60, 3_600),
        ("h", 3_600, 2 * 86_400),
        ("d", 86_400, 60 * 86_400),
    ):
        if seconds < until:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{moment:%Y-%m-%d}"


@dataclass(frozen=True, slots=True)
class Change:
    """How a number differs from that of the period before."""

    text: str
    direction: str
    """"up", "down" or "same"."""


def change(now: float | None, before: float | None) -> Change | None:
    """Return the change in percent; None without a number to compare with.

    Below zero, as spend may be after corrections, is none: a share of it would have the wrong sign.
    """
    if now is None or before is None or before < 0:
        return None
    if now == before:
        return Change("±0 %", "same")
    if before == 0:
        return Change("from 0", "up" if now > 0 else "down")
    if now > 10 * before:
        # Such as a period that is mostly before the first request: its percentage has no meaning.
        return Change("more than tenfold", "up")
    percent = 100 * (now - before) / before
    if abs(percent) < 0.5:
        return Change("±0 %", "same")
    return Change(f"{percent:+,.0f} %".replace("-", "−"), "up" if percent > 0 else "down")
