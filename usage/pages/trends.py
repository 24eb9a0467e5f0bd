"""A small chart of a number over time, whose layers lie in front of each other, and its numbers as texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from usage.pages.overview_chart import Bucket, Mark, percent, scale, times

# The share of a column that stays free.
_GAP = 0.2
_LABELS_COUNT = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One number in each column; None where there is nothing to measure."""

    name: str
    colour: str
    values: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's bars, the rearmost first: colour, top and height; and its numbers as texts."""

    bucket: Bucket
    x: str
    width: str
    bar_x: str
    bar_width: str
    bars: Sequence[tuple[str, str, str]]
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class Trend:
    """What the template draws. `whole` is the number of the whole range."""

    title: str
    whole: str
    layers: Sequence[Layer]
    columns: Sequence[Column]
    heights: Sequence[Mark]
    times: Sequence[Mark]

    @property
    def is_empty(self) -> bool:
        return not any(value for layer in self.layers for value in layer.values)


def draw(
    title: str,
    whole: str,
    buckets: Sequence[Bucket],
    layers: Sequence[Layer],
    to_text: Callable[[int], str],
    to_mark: Callable[[int], str] | None = None,
) -> Trend:
    """Return the chart; the first layer is the rearmost. Numbers have the texts of `to_text`, grid lines
    those of `to_mark`, if there is one; a number with an empty text has no line.
    """
    highest = max((value or 0 for layer in layers for value in layer.values), default=0)
    step, top = scale(highest)
    every = step if top <= 3 * step else 2 * step
    # At most three grid lines, because the chart is only half as high as a large one.
    mark = to_mark or to_text
    lines = [at for at in range(every, top + 1, every) if mark(at)]
    heights = [Mark(percent(100 - 100 * at / top), mark(at)) for at in lines]
    columns = [_column(bucket, at, len(buckets), layers, top, to_text) for at, bucket in enumerate(buckets)]
    return Trend(title, whole, layers, columns, heights, times(buckets, _LABELS_COUNT))


def _column(
    bucket: Bucket,
    at: int,
    columns_count: int,
    layers: Sequence[Layer],
    top: int,
    to_text: Callable[[int], str],
) -> Column:
    width = 100 / columns_count
    values = [layer.values[at] for layer in layers]
    bars = [
        (layer.colour, percent(100 - 100 * value / top), percent(100 * value / top))
        for layer, value in zip(layers, values, strict=True)
        if value and value > 0  # a day's corrections can exceed its spend
    ]
    cells = ["–" if value is None else to_text(value) for value in values]
    bar_x, bar_width = percent(at * width + width * _GAP / 2), percent(width * (1 - _GAP))
    return Column(bucket, percent(at * width), percent(width), bar_x, bar_width, bars, cells)
