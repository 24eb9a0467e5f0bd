"""What operators and organizations look at: sums, requests, budgets, what runs now. The one door to such
reads.

Nothing here scans generations: sums are the rollups', requests come in keyset pages through an index, and
what an index can't find is searched a bounded number of rows at a time.
"""

from usage.insights.counters import Counters, ModelCounters, counters
from usage.insights.first_tokens import Percentiles, first_token_ms
from usage.insights.fullest_budgets import NEAR_LIMIT, BudgetUse, budgets_near_limit
from usage.insights.generation_list import Page, RequestFilters, requests_page
from usage.insights.open_generations import RunningGeneration, running
from usage.insights.overages import Overage, overage
from usage.insights.range import Bucket, Range, parse_range
from usage.insights.service_health import Health, health
from usage.insights.sources import Filters, GroupBy
from usage.insights.sums import Point, Row, Totals, series, top, totals
from usage.models.outcomes import FAILED

__all__ = [
    "FAILED", "NEAR_LIMIT", "Bucket", "BudgetUse", "Counters", "Filters", "GroupBy", "Health", "ModelCounters", "Overage", "Page",
    "Percentiles", "Point", "Range", "RequestFilters", "Row", "RunningGeneration", "Totals", "budgets_near_limit", "counters",
    "first_token_ms", "health", "overage", "parse_range", "requests_page", "running", "series", "top", "totals",
]  # fmt: skip
