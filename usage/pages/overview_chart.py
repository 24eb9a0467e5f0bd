"""A stacked bar chart as shapes in percent of its plot, so that its text keeps its size at any width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

# The number of coloured groups; all others are one grey group.
COLOURS_COUNT = 6
_LABELS_COUNT = 6
# A name is repeated in every column, and a value of metadata has up to 512 characters.
_NAME_CHARS, _LEGEND_CHARS = 32, 64
# The share of a bucket's width that stays free between columns.
_GAP = 0.24


@dataclass(frozen=True, slots=True)
class Group:
    """One colour of the chart: its name, its value in each bucket, and the URL of its rows."""

    name: str
    values: Sequence[int]
    url: str = ""
    colour: str = ""
    """Empty: a colour by its rank."""
    is_rest: bool = False
    """Whether it is the sum of groups without a name."""

    @property
    def total(self) -> int:
        return sum(self.values)

    @property
    def short_name(self) -> str:
        return _short(self.name, _LEGEND_CHARS)

    @property
    def is_cut(self) -> bool:
        return self.short_name != self.name


@dataclass(frozen=True, slots=True)
class Bucket:
    """One column: its short name under the axis, its full name, and the URL of its rows, if it has one."""

    label: str
    name: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One group's part of a column."""

    colour: str
    x: str
    y: str
    width: str
    height: str
    title: str


@dataclass(frozen=True, slots=True)
class Column:
    """One bucket's bars, lowest first."""

    bucket: Bucket
    x: str
    width: str
    bars: Sequence[Bar]
    total: str
    cells: Sequence[str]
    """Each group's value, in the legend's order: a row of the table behind the chart."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on an axis; a minor one is hidden on a narrow screen."""

    at: str
    text: str
    anchor: str = "middle"
    is_minor: bool = False


@dataclass(frozen=True, slots=True)
class Legend:
    """A colour's meaning."""

    colour: str
    group: Group
    total: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The shapes and texts that the template draws."""

    columns: Sequence[Column]
    legend: Sequence[Legend]
    heights: Sequence[Mark]
    times: Sequence[Mark]
    step: int = 1
    """How many hours or days a column has."""
    total: str = ""
    """The sum of all columns: of the groups in the legend, which include "other"."""

    @property
    def is_empty(self) -> bool:
        return not any(value for each in self.legend for value in each.group.values)


def draw(
    buckets: Sequence[Bucket], groups: Sequence[Group], to_text: Callable[[int], str], rest_url: str = ""
) -> Chart:
    """Return the chart of these groups, largest first in the legend and lowest in the columns.

    `rest_url` is the URL of the list of all groups, to which the group "other" leads.
    """
    shown = _coloured(groups, rest_url)
    # Corrections can exceed a group's spend; a bar has no height below zero.
    stacked = (sum(max(group.values[at], 0) for _, group in shown) for at in range(len(buckets)))
    step, top = scale(max(stacked, default=0))
    columns = [_column(bucket, at, len(buckets), shown, top, to_text) for at, bucket in enumerate(buckets)]
    heights = [Mark(percent(100 - 100 * value / top), to_text(value)) for value in range(step, top + 1, step)]
    legend = [Legend(colour, group, to_text(group.total)) for colour, group in shown]
    total = to_text(sum(group.total for _, group in shown))
    return Chart(columns, legend, heights, times(buckets), total=total)


def _coloured(groups: Sequence[Group], rest_url: str) -> list[tuple[str, Group]]:
    """Return the groups with their colours, largest first; those without a colour are one, at the end, if
    one of them has a value.
    """
    ordered = sorted((group for group in groups if not group.is_rest), key=lambda group: -group.total)
    coloured = [(each.colour or f"colour-{at}", each) for at, each in enumerate(ordered[:COLOURS_COUNT])]
    rest = [*ordered[COLOURS_COUNT:], *(group for group in groups if group.is_rest)]
    if any(value for group in rest for value in group.values):
        sums = [sum(values) for values in zip(*(group.values for group in rest), strict=True)]
        coloured.append(("colour-rest", Group("other", sums, rest_url)))
    return coloured


def _column(
    bucket: Bucket,
    at: int,
    count: int,
    shown: Sequence[tuple[str, Group]],
    top: int,
    to_text: Callable[[int], str],
) -> Column:
    width = 100 / count
    bars, below = [], 0
    for colour, group in shown:
        value = group.values[at]
        if value > 0:
            below += value
            place = (percent(at * width + width * _GAP / 2), percent(100 - 100 * below / top))
            size = (percent(width * (1 - _GAP)), percent(100 * value / top))
            bars.append(Bar(colour, *place, *size, f"{_short(group.name, _NAME_CHARS)}: {to_text(value)}"))
    cells = [group.values[at] for _, group in shown]
    texts = [to_text(cell) for cell in cells]
    return Column(bucket, percent(at * width), percent(width), bars, to_text(sum(cells)), texts)


def scale(highest: int) -> tuple[int, int]:
    """Return a round step between about four grid lines, and the plot's upper end."""
    rough = max(highest / 4, 1)
    magnitude = 10 ** floor(log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    # At least 5 % stay free above the highest column.
    return step, max(step, -(-highest * 21 // (20 * step)) * step)


def times(buckets: Sequence[Bucket], most: int = _LABELS_COUNT) -> list[Mark]:
    """Return at most `most` labels under the axis."""
    every = max(1, -(-len(buckets) // most))
    shown = range(0, len(buckets), every)
    # Dates with a time are so long that a narrow screen has room for two of them.
    is_long = any(len(buckets[at].label) > len("28 Oct") for at in shown)
    between = max(len(shown) - 1, 1) if is_long else 2
    width = 100 / max(len(buckets), 1)
    # Of many columns, the labels of the first and the last would reach beyond the plot.
    anchors = {0: "start", len(buckets) - 1: "end"} if len(buckets) > 12 else {}
    return [
        Mark(percent((at + 0.5) * width), buckets[at].label, anchors.get(at, "middle"), number % between > 0)
        for number, at in enumerate(shown)
    ]


def _short(name: str, chars: int) -> str:
    return name if len(name) <= chars else f"{name[: chars - 1]}…"


def percent(number: float) -> str:
    """Return the number as a length in an SVG."""
    return f"{number:.3f}%"
