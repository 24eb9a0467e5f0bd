"""How fast requests were in each of some columns of time: the newest requests of a column stand for all.

One statement reads a bounded number of rows for each column through the index of the organization or the key,
so it costs the same however many requests there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from accounts import end_users
from usage.database.replica import report
from usage.database.sql import db_value, fetch_all
from usage.insights.request_filters import has_pair, with_stored_name
from usage.insights.sources import Filters

Number = TypeVar("Number", int, float)

# The newest requests of a column that are looked at; more where a filter without an index leaves some out.
SAMPLE, SEARCHED = 300, 1_000
# Those of all columns together: with many columns, each has fewer.
ALL_SAMPLED, ALL_SEARCHED = 9_000, 20_000
# Requests with fewer tokens after the first say little about the rate.
_LEAST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Speed:
    """The percentiles of a column; None if no request of its sample has them."""

    first_p50_ms: int | None
    first_p95_ms: int | None
    tokens_per_second: float | None


def is_searched(filters: Filters) -> bool:
    """Return whether the newest requests are searched for those that match, for want of an index."""
    rest = (filters.project_id, filters.model, filters.outcome, filters.error, filters.metadata)
    is_of_a_person = filters.end_user is not None and filters.api_key_id is not None
    return is_of_a_person or any(each is not None for each in rest)


@report
def speeds(edges: Sequence[tuple[datetime, datetime]], filters: Filters) -> list[Speed]:
    """Return the speeds between each start and end; the filters have an organization or a key."""
    indexed = _indexed(filters)
    rest = {
        "project_id": filters.project_id,
        "model": filters.model,
        "outcome": filters.outcome,
        "error_code": filters.error,
    }
    narrowed = {name: value for name, value in rest.items() if value is not None}
    tests, tested = [f"{name} = %s" for name in narrowed], list(narrowed.values())
    if filters.metadata is not None:
        tests, tested = [*tests, has_pair("sample")], [*tested, *filters.metadata]
    if filters.end_user is not None and "end_user" not in indexed:
        names = (filters.end_user, end_users.digest(filters.end_user))
        tests, tested = [*tests, "end_user IN (%s, %s)"], [*tested, *names]
    each, together = (SEARCHED, ALL_SEARCHED) if is_searched(filters) else (SAMPLE, ALL_SAMPLED)
    # The two bounds are in the inner query: what it reads is limited, also if the outer one leaves much out.
    part = f"""SELECT * FROM (
            SELECT %s AS at, first_token_ms, last_token_ms, completion_tokens, reasoning_tokens, project_id,
                model, outcome, error_code, metadata, end_user
            FROM usage_generation WHERE {" AND ".join(f"{column} = %s" for column in indexed)}
                AND admitted_at >= %s AND admitted_at < %s
            ORDER BY admitted_at DESC LIMIT {min(each, together // len(edges))}) AS part{{}}"""  # noqa: S608
    statement = " UNION ALL ".join(part.format(at) for at in range(len(edges)))
    conditions = " AND ".join(["first_token_ms IS NOT NULL", *tests])
    parameters = [
        db_value(value)
        for at, (start, end) in enumerate(edges)
        for value in (at, *indexed.values(), start.astimezone(UTC), end.astimezone(UTC))
    ]
    rows = fetch_all(
        f"""SELECT at, first_token_ms, last_token_ms, completion_tokens, reasoning_tokens
        FROM ({statement}) AS sample
        WHERE {conditions}""",  # noqa: S608  the text is ours, the values are parameters
        [*parameters, *tested],
    )
    first: list[list[int]] = [[] for _ in edges]
    rates: list[list[float]] = [[] for _ in edges]
    for at, first_ms, last_ms, tokens, reasoning in rows:
        first[at].append(first_ms)
        # Reasoning may be hidden: its tokens are none of those that came after the first.
        if not reasoning and last_ms is not None and last_ms > first_ms and tokens >= _LEAST_TOKENS:
            rates[at].append(1_000 * (tokens - 1) / (last_ms - first_ms))
    return [
        Speed(percentile(own, 50), percentile(own, 95), percentile(own_rates, 50))
        for own, own_rates in zip(first, rates, strict=True)
    ]


def _indexed(filters: Filters) -> dict[str, Any]:
    """Return the columns by whose index requests are read: the key, or the organization and the end user."""
    if filters.api_key_id is not None:
        return {"api_key_id": filters.api_key_id}
    own = {"organization_id": filters.organization_id}
    return own if filters.end_user is None else own | {"end_user": with_stored_name(filters).end_user}


def percentile(values: Sequence[Number], percent: int) -> Number | None:
    """Return the nearest-rank percentile; None of nothing."""
    if not values:
        return None
    return sorted(values)[-(-len(values) * percent // 100) - 1]
