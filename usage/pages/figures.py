"""How the operator's pages write numbers, durations and ages: short on the page, exact in the title."""

from dataclasses import dataclass
from datetime import UTC, datetime

from usage.formatting import usd
from usage.insights import NEAR_LIMIT
from usage.pricing import NANODOLLARS

_CENT_NANODOLLARS = 10_000_000


def money(nanodollars: int) -> str:
    """The amount to the cent from a dollar on, "$1,234.50"; below it to three digits, "$0.0473", "$0.00024"."""
    size = abs(nanodollars)
    unit = _CENT_NANODOLLARS if size >= NANODOLLARS else 10 ** max(len(str(size)) - 3, 0)
    rounded = (size + unit // 2) // unit * unit
    return usd(-rounded if nanodollars < 0 else rounded)


def count(number: int) -> str:
    """The number, "9,999"; from ten thousand on to three digits, "12.3k", "1.23M"."""
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
    """The part in percent of the whole: "0 %", "0.04 %", "12.5 %"."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.2g} %" if percent < 1 else f"{percent:.3g} %"


@dataclass(frozen=True, slots=True)
class Fullness:
    """How much of a budget's limit is spent or held, in words, and the colour of its badge."""

    text: str
    mood: str


def fullness(used: int, limit: int) -> Fullness:
    """ "12 %"; from 80 % on a warning, and "100 %, reached" when nothing is left. A limit of nothing is always
    reached.
    """
    part = used / limit if limit else 1.0
    if part >= 1:
        return Fullness(f"{100 * part:.0f} %, reached", "bad")
    return Fullness(f"{min(round(100 * part), 99)} %", "warn" if part >= NEAR_LIMIT else "plain")


def duration(ms: float | None) -> str:
    """Milliseconds as people say them: "38 ms", "1.24 s", "2 min 5 s", "3 h 20 min"; a dash for none."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    return _clock(round(seconds))


def _clock(seconds: int) -> str:
    for unit, length, smaller, smaller_length in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= length:
            rest = seconds % length // smaller_length
            return f"{seconds // length} {unit} {rest} {smaller}" if rest else f"{seconds // length} {unit}"
    return f"{seconds} s"


def age(moment: datetime, now: datetime) -> str:
    """How long ago, in its largest unit: "just now", "40 s ago", "3 min ago", "5 d ago"; from 60 days on the
    date.
    """
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
    return f"{moment.astimezone(UTC):%Y-%m-%d}"


@dataclass(frozen=True, slots=True)
class Change:
    """A number against the same one of the period before."""

    text: str
    direction: str
    """"up", "down" or "same"."""


def change(now: float | None, before: float | None) -> Change | None:
    """How the number has changed in percent; None when there is nothing to compare."""
    if not before or now is None:
        return None
    percent = 100 * (now - before) / before
    if abs(percent) < 0.5:
        return Change("±0 %", "same")
    # Beyond tenfold a percentage says less than a factor.
    text = f"×{now / before:.3g}" if percent > 900 else f"{percent:+.0f} %".replace("-", "−")
    return Change(text, "up" if percent > 0 else "down")
