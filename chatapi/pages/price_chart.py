"""A model's prices over time as steps, in percent of the plot: the template draws them, so that text keeps
its size at any width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from chatapi.pages.price_timeline import NAMES, charged
from usage.formatting import money
from usage.models import Price

_AIR = 0.08
"""Of the time shown: how much of it comes after the last price has begun, so that it can be seen."""
_NEVER = datetime.max.replace(tzinfo=UTC)
"""After the last day that there is, for prices that are to begin on it, nothing can be drawn."""
_LABEL_WIDTH = 32.0
"""In percent of the plot's: what a date needs on a phone."""


@dataclass(frozen=True, slots=True)
class Line:
    """One straight part of a curve."""

    style: str
    x1: str
    x2: str
    y1: str
    y2: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside an axis."""

    at: str
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Chart:
    """All that the template draws."""

    lines: Sequence[Line]
    legend: Sequence[tuple[str, str]]
    """Each curve's colour and name."""
    heights: Sequence[Label]
    times: Sequence[Label]
    now: str


class _Plot:
    """Where moments and amounts are."""

    def __init__(self, rows: Sequence[Price], fields: Sequence[str], now: datetime) -> None:
        self.start = rows[0].effective_from
        last = max(now, rows[-1].effective_from)
        self.end = last + min(max((last - self.start) * _AIR, timedelta(seconds=1)), _NEVER - last)
        self.highest = max(charged(row.value, field) for row in rows for field in fields)

    def x(self, moment: datetime) -> float:
        return 100 * (moment - self.start) / (self.end - self.start)

    def y(self, nanodollars: int) -> float:
        # A little air above the highest line.
        return 100 - 94 * nanodollars / max(self.highest, 1)


def draw(rows: Sequence[Price], now: datetime) -> Chart | None:
    """The chart of these prices of one model, in the order of their beginning; None where nothing has ever
    changed.
    """
    if len(rows) < 2:
        return None
    fields = [field for field in NAMES if any(getattr(row, field) is not None for row in rows)]
    plot = _Plot(rows, fields, now)
    # Drawn from the last to the first: where two are equal, the more usual one is seen.
    lines = [line for field in reversed(fields) for line in _curve(plot, rows, field, now)]
    legend = [(_colour(field), NAMES[field]) for field in fields]
    amounts = sorted({0, plot.highest // 2, plot.highest})
    heights = [Label(_percent(plot.y(amount)), money(amount)) for amount in amounts]
    return Chart(lines, legend, heights, _times(plot, rows), _percent(max(plot.x(now), 0.0)))


def _curve(plot: _Plot, rows: Sequence[Price], field: str, now: datetime) -> Iterator[Line]:
    colour = _colour(field)
    for row, following in pairwise([*rows, None]):
        assert row is not None, "only the last one is None, and it is never first"
        y = plot.y(charged(row.value, field))
        end = following.effective_from if following else plot.end
        known_until = min(max(now, row.effective_from), end)
        yield _line(colour, (plot.x(row.effective_from), plot.x(known_until)), (y, y))
        yield _line(f"{colour} upcoming", (plot.x(known_until), plot.x(end)), (y, y))
        if following:
            style = colour if end <= now else f"{colour} upcoming"
            yield _line(style, (plot.x(end), plot.x(end)), (y, plot.y(charged(following.value, field))))


def _line(style: str, x: tuple[float, float], y: tuple[float, float]) -> Line:
    return Line(style, *map(_percent, x), *map(_percent, y))


def _times(plot: _Plot, rows: Sequence[Price]) -> list[Label]:
    """The dates on which prices begin, as far as there is room for them."""
    form = "%Y-%m-%d" if plot.end - plot.start > timedelta(days=3) else "%m-%d %H:%M"
    labels, free_from = [], 0.0
    for row in rows:
        x = plot.x(row.effective_from)
        anchor, left = _anchored(x)
        if left >= free_from:
            labels.append(Label(_percent(x), f"{row.effective_from:{form}}", anchor))
            free_from = left + _LABEL_WIDTH
    return labels


def _anchored(x: float) -> tuple[str, float]:
    """How a label at x is aligned so that it stays within the plot, and where it begins."""
    if x < _LABEL_WIDTH / 2:
        return "start", x
    return ("end", x - _LABEL_WIDTH) if x > 100 - _LABEL_WIDTH / 2 else ("middle", x - _LABEL_WIDTH / 2)


def _colour(field: str) -> str:
    return f"colour-{list(NAMES).index(field)}"


def _percent(number: float) -> str:
    return f"{number:.3f}%"
