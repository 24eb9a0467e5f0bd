"""Sums by error code, metadata or end user: those of the newest requests of a range.

No rollup has errors and metadata, and that of end users has neither failures nor keys nor hours. The sums are
what the requests were charged when they finished, without later corrections.
"""

from collections import Counter
from collections.abc import Mapping

from django.db.models import Aggregate, CharField, Count, Q, QuerySet, Sum, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from usage.database.clock import TruncUTC
from usage.insights.generation_list import NewestRequests, newest_settled
from usage.insights.range import Range
from usage.insights.request_filters import value_of_key
from usage.insights.sources import Filters, GroupBy, Source
from usage.models import Dimension, Generation
from usage.models.generations import FAILED
from usage.rollups import closed_days

# The newest requests whose metadata is read to offer its keys.
_KEYS_OF = 500
_SUMS: Mapping[str, Aggregate] = {
    "sum_failed_requests": Count("id", filter=Q(outcome__in=FAILED)),
    "sum_requests": Count("id"),
    **{f"sum_{name}": Sum(name, default=0) for name in closed_days.SUMS[1:]},
}


def are_needed(group_by: GroupBy | None, filters: Filters) -> bool:
    """Return whether a report needs columns that only requests have."""
    is_by_end_user = group_by == "end_user" or filters.end_user is not None
    if is_by_end_user and filters.is_by_request:
        return True
    return group_by in ("error", "metadata") or bool(filters.error or filters.metadata)


def source(
    over: Range, group_by: GroupBy | None, filters: Filters, newest: NewestRequests | None = None
) -> Source:
    """Return the newest requests that finished in the range; by error those that have one."""
    newest = newest or newest_settled(over, filters)
    rows, group = _grouped(newest.rows, group_by, filters)
    bucket = TruncUTC("day" if over.has_utc_days else "hour", "settled_at")
    return Source(rows, bucket, group, _SUMS)


def _grouped(
    rows: QuerySet[Generation], group_by: GroupBy | None, filters: Filters
) -> tuple[QuerySet[Generation], str]:
    match group_by:
        case "error":
            return rows.exclude(error_code=""), "error_code"
        case "metadata":
            sql, key = value_of_key("usage_generation"), filters.metadata_key or ""
            value = RawSQL(sql, [key], CharField())  # noqa: S611  the text is ours, the key a parameter
            return rows.annotate(metadata_value=value), "metadata_value"
        case "end_user":
            return rows.annotate(end_user_name=Coalesce("end_user", Value(""))), "end_user_name"
    return rows, closed_days.COLUMNS[Dimension(group_by or Dimension.OUTCOME)]


def metadata_keys(rows: QuerySet[Generation]) -> list[str]:
    """Return the keys of the newest requests' metadata, the most frequent first."""
    newest = rows.order_by("-id").filter(metadata__isnull=False).values_list("metadata", flat=True)[:_KEYS_OF]
    times = Counter(key for pairs in newest for key in pairs or ())
    return [key for key, _ in times.most_common()]
