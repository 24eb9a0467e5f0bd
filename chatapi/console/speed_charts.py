"""The charts of requests, failures and speed over time, and the table of their numbers: of Usage, and of a
model's page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from usage.formatting import count, duration, rate, share
from usage.insights import Percentiles, Totals
from usage.insights.speed import Number, Speed, percentile
from usage.pages.overview_chart import Bucket
from usage.pages.trends import Layer, Trend, draw


@dataclass(frozen=True, slots=True)
class Column:
    """A part of the range: its sums, and the speed of its newest requests."""

    totals: Totals
    speed: Speed


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table behind the charts."""

    bucket: Bucket
    cells: Sequence[str]


def charts(
    buckets: Sequence[Bucket],
    columns: Sequence[Column],
    whole: Totals,
    first_tokens: Percentiles | None = None,
) -> list[Trend]:
    """Return the charts, each with the number of the whole range: of speeds a typical one, unless the times
    to first token of the whole range are known.
    """
    firsts = [each.speed.first_p50_ms for each in columns]
    slow = [each.speed.first_p95_ms for each in columns]
    durations = [each.speed.duration_p50_ms for each in columns]
    longest = [each.speed.duration_p95_ms for each in columns]
    rates = [each.speed.tokens_per_second for each in columns]
    first_token = _typical(firsts, duration)
    if first_tokens is not None:
        first_token = f"p50 {duration(first_tokens.p50)}, p95 {duration(first_tokens.p95)}"
    return [
        draw(
            "Requests", count(whole.requests), buckets,
            [
                Layer("all", "colour-0", [each.totals.requests for each in columns]),
                Layer("failed", "colour-bad", [each.totals.failed_requests for each in columns]),
            ],
            count,
        ),
        draw(
            "Error rate", share(whole.failed_requests, whole.requests), buckets,
            [Layer("failed", "colour-bad", [_permyriad(each.totals) for each in columns])],
            lambda value: rate(value, 10_000),
            lambda value: share(value, 10_000) if value <= 10_000 else "",
        ),
        draw(
            "Time to first token", first_token, buckets,
            [Layer("p95", "colour-light", slow), Layer("p50", "colour-1", firsts)],
            duration,
        ),
        draw(
            "Duration", _typical(durations, duration), buckets,
            [Layer("p95", "colour-light", longest), Layer("p50", "colour-1", durations)],
            duration,
        ),
        draw(
            "Tokens per second, p50", _typical(rates, lambda rate: f"{rate:.1f}"), buckets,
            [Layer("p50", "colour-2", [None if rate is None else round(rate) for rate in rates])],
            count,
        ),
    ]  # fmt: skip


def table(trends: Sequence[Trend]) -> list[Row]:
    """Return the table of all charts' numbers."""
    return [
        Row(parts[0].bucket, [cell for part in parts for cell in part.cells])
        for parts in zip(*(trend.columns for trend in trends), strict=True)
    ]


def _permyriad(totals: Totals) -> int | None:
    """Return the error rate in hundredths of a percent; None without requests."""
    return round(10_000 * totals.error_rate) if totals.requests else None


def _typical(values: Sequence[Number | None], to_text: Callable[[Number], str]) -> str:
    """Return the median of the columns' values as text, such as "typically 2 s"."""
    middle = percentile([value for value in values if value is not None], 50)
    return "–" if middle is None else f"typically {to_text(middle)}"
