"""The numbers that the columns of a chart can show."""

from collections.abc import Callable
from dataclasses import dataclass

from usage import formatting
from usage.insights import Totals


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that the chart's columns can show."""

    title: str
    value: Callable[[Totals], int]
    to_text: Callable[[int], str]


MEASURES = {
    "spend": Measure("Spend", lambda sums: sums.amount_nanodollars, formatting.money),
    "requests": Measure("Requests", lambda sums: sums.requests, formatting.count),
    "tokens": Measure("Tokens", lambda sums: sums.total_tokens, formatting.count),
    "uncached": Measure("Uncached input", lambda sums: sums.uncached_tokens, formatting.count),
    "cache_read": Measure("Cached input", lambda sums: sums.cached_tokens, formatting.count),
    "cache_write": Measure("Cache write", lambda sums: sums.cache_write_tokens, formatting.count),
    "output": Measure("Output", lambda sums: sums.completion_tokens, formatting.count),
}
