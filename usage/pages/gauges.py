"""Small drawings: a budget's fullness as a badge, and a number by day as a row of bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.template.defaultfilters import pluralize

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


def bar_parts(posted: int, held: int, limit: int | None) -> tuple[str, str]:
    """Return the lengths of a budget's bar, spent and reserved, in percent: 100 together at most."""
    if not limit:
        return "0%", "0%"
    spent = min(max(posted / limit, 0), 1)
    return f"{100 * spent:.2f}%", f"{100 * min(held / limit, 1 - spent):.2f}%"


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The path of an SVG, and the same in words."""

    path: str
    width: int
    text: str
    height: int = HEIGHT


def draw_sparkline(requests: Sequence[int], first_day: datetime) -> Sparkline:
    """Return bars of the requests by day, at least one unit high unless zero."""
    most = max(requests, default=0)
    bars = ((at * _STEP, -(-value * HEIGHT // most)) for at, value in enumerate(requests) if value > 0)
    path = "".join(f"M{x} {HEIGHT}v-{height}h{_BAR}v{height}z" for x, height in bars)
    text = f"No requests in the last {len(requests)} days"
    if most:
        busiest = first_day + timedelta(days=requests.index(most))
        whole = sum(requests)
        counted = f"{whole:,} request{pluralize(whole)} in the last {len(requests)} days"
        text = f"{counted}, most on {busiest:%Y-%m-%d}: {most:,}"
    return Sparkline(path, len(requests) * _STEP - (_STEP - _BAR), text)
