"""Small drawings: a budget's fullness as a badge, and a number by day as a row of bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from usage.insights import NEAR_LIMIT

HEIGHT = 24
# The width of a day, and of its bar, in the units of the drawing.
_STEP, _BAR = 4, 3


@dataclass(frozen=True, slots=True)
class Fullness:
    """How much of a budget's limit is spent or reserved, and the colour of its badge."""

    text: str
    mood: str


def fullness(used: int, limit: int) -> Fullness:
    """Return "12 %", a warning near the limit, "100 %, reached" at it. A limit of 0 is always reached."""
    part = used / limit if limit else 1.0
    if part >= 1:
        return Fullness(f"{100 * part:.0f} %, reached", "bad")
    return Fullness(f"{min(round(100 * part), 99)} %", "warn" if part >= NEAR_LIMIT else "plain")


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The path of an SVG, and the same in words."""

    path: str
    width: int
    text: str
    height: int = HEIGHT


def draw_sparkline(values: Sequence[int], first_day: datetime, noun: str) -> Sparkline:
    """Return bars of these values by day, at least one unit high unless zero; `noun` is what they count."""
    most = max(values, default=0)
    bars = ((at * _STEP, -(-value * HEIGHT // most)) for at, value in enumerate(values) if value > 0)
    path = "".join(f"M{x} {HEIGHT}v-{height}h{_BAR}v{height}z" for x, height in bars)
    text = f"No {noun} in the last {len(values)} days"
    if most:
        busiest = first_day + timedelta(days=values.index(most))
        text = f"{sum(values):,} {noun} in the last {len(values)} days, most on {busiest:%Y-%m-%d}: {most:,}"
    return Sparkline(path, len(values) * _STEP - (_STEP - _BAR), text)
