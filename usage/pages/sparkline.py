"""A row of small bars for a number by day: the path of an SVG, and the same in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

HEIGHT = 24
_STEP, _BAR = 4, 3
"""The width of a day, and of its bar, in the units of the drawing."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """What the template draws."""

    path: str
    width: int
    text: str
    height: int = HEIGHT


def draw(values: Sequence[int], first_day: datetime, noun: str) -> Sparkline:
    """The bars of these days' values, each at least one unit high if it is not zero; `noun` says what is
    counted.
    """
    most = max(values, default=0)
    bars = ((at * _STEP, -(-value * HEIGHT // most)) for at, value in enumerate(values) if value > 0)
    path = "".join(f"M{x} {HEIGHT}v-{height}h{_BAR}v{height}z" for x, height in bars)
    return Sparkline(path, len(values) * _STEP - (_STEP - _BAR), _words(values, most, first_day, noun))


def _words(values: Sequence[int], most: int, first_day: datetime, noun: str) -> str:
    if not most:
        return f"No {noun} in the last {len(values)} days"
    busiest = first_day + timedelta(days=values.index(most))
    return f"{sum(values):,} {noun} in the last {len(values)} days, most on {busiest:%Y-%m-%d}: {most:,}"
