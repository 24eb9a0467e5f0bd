"""The reads of operators' and organizations' pages: sums, requests, budgets, running generations.

Nothing here scans generations. Sums come from the rollups; requests come in keyset pages through an index,
and a filter without an index looks at a bounded number of rows.
"""

from usage.insights.counters import Counters, ModelCounters, Overage, counters
from usage.insights.end_user_ranking import can_rank
from usage.insights.first_tokens import Percentiles
from usage.insights.fullest_budgets import NEAR_LIMIT, BudgetUse, budgets_near_limit
from usage.insights.generation_list import SEARCHED, NewestRequests, Page, newest_settled, requests_page
from usage.insights.open_generations import RunningGeneration, running
from usage.insights.overview_sums import OverviewSums, overview_sums
from usage.insights.range import Bucket, Range, parse_range
from usage.insights.request_filters import RequestFilters, with_stored_name
from usage.insights.request_sums import metadata_keys
from usage.insights.service_health import Health, health
from usage.insights.sources import Filters, GroupBy
from usage.insights.sums import (
    GroupList,
    Point,
    Row,
    Series,
    SumsSpec,
    Totals,
    by_amount,
    series,
    series_and_whole,
    series_beside,
    top,
    tops,
    totals,
)
from usage.models.generations import FAILED

__all__ = [
    "FAILED", "NEAR_LIMIT", "SEARCHED", "Bucket", "BudgetUse", "Counters", "Filters", "GroupBy",
    "GroupList", "Health", "ModelCounters", "NewestRequests", "Overage", "OverviewSums", "Page",
    "Percentiles", "Point", "Range", "RequestFilters", "Row", "RunningGeneration", "Series", "SumsSpec",
    "Totals", "budgets_near_limit", "by_amount", "can_rank", "counters", "health", "metadata_keys",
    "newest_settled", "overview_sums", "parse_range", "requests_page", "running", "series",
    "series_and_whole", "series_beside", "top", "tops", "totals", "with_stored_name",
]  # fmt: skip
