"""How fast requests were in each of some columns of time, and in each group: the newest requests of a column,
or of each quarter of it, stand for all.

One statement reads a bounded number of rows for each column through the index of the organization or the key,
so it costs the same however many requests there are.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.db import connection

from accounts import end_users
from usage.database.replica import report
from usage.database.sql import Rows, db_value, fetch_all
from usage.insights.first_tokens import Percentiles, Reading
from usage.insights.request_filters import has_pair, value_of_key, with_stored_name
from usage.insights.sources import Filters, GroupBy
from usage.models import Dimension
from usage.rollups.closed_days import COLUMNS

Number = TypeVar("Number", int, float)

# The newest requests of a part of a column that are looked at; more where a filter without an index leaves
# some out.
SAMPLE, SEARCHED = 300, 1_000
# Those of all columns together: with many columns, each has fewer.
ALL_SAMPLED, ALL_SEARCHED = 9_000, 20_000
# Requests with fewer tokens after the first say little about the rate.
_LEAST_TOKENS = 8
_COLUMNS = "first_token_ms, last_token_ms, completion_tokens, reasoning_tokens"
# From the admission to the end, in milliseconds.
_DURATION = {
    "sqlite": "CAST(round((julianday(settled_at) - julianday(admitted_at)) * 86400000) AS INTEGER)",
    "postgresql": "CAST(round(EXTRACT(EPOCH FROM settled_at - admitted_at) * 1000) AS bigint)",
}


@dataclass(frozen=True, slots=True)
class Speed:
    """The percentiles of a column or a group; None if no request of its sample has them.

    A duration is from the admission to the end, and failed requests have one, too.
    """

    first_p50_ms: int | None = None
    first_p95_ms: int | None = None
    tokens_per_second: float | None = None
    duration_p50_ms: int | None = None
    duration_p95_ms: int | None = None

    @classmethod
    def of(cls, requests: Sequence[Sequence[Any]]) -> "Speed":
        """Return the speed of requests, each of which has the columns `_COLUMNS` and its duration."""
        firsts = [first_ms for first_ms, *_ in requests if first_ms is not None]
        durations = [duration_ms for *_, duration_ms in requests]
        rates = [
            1_000 * (tokens - 1) / (last_ms - first_ms)
            for first_ms, last_ms, tokens, reasoning, _ in requests
            # Reasoning may be hidden: its tokens are none of those that came after the first.
            if not reasoning and tokens >= _LEAST_TOKENS
            if None not in (first_ms, last_ms) and last_ms > first_ms
        ]
        return cls(
            percentile(firsts, 50),
            percentile(firsts, 95),
            percentile(rates, 50),
            percentile(durations, 50),
            percentile(durations, 95),
        )

    def with_first_tokens(self, found: Percentiles | None) -> "Speed":
        """Return the speed with other times to first token."""
        return replace(
            self, first_p50_ms=found.p50 if found else None, first_p95_ms=found.p95 if found else None
        )


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of the same requests by column and by group."""

    columns: list[Speed]
    groups: Mapping[str | None, Speed]
    """By the id of the group; None stands for all that are not named. Groups without requests are missing."""
    first_tokens: Sequence[tuple[int, int, int]] = ()
    """The rows that were read for percentiles of times to first token."""


def is_searched(filters: Filters) -> bool:
    """Return whether no index covers the filters, so that the newest requests are searched for matches."""
    rest = (
        filters.project_id, filters.model, filters.outcome, filters.error, filters.metadata, filters.is_test,
    )  # fmt: skip
    is_of_a_person = filters.end_user is not None and filters.api_key_id is not None
    return is_of_a_person or any(each is not None for each in rest)


def parts_of(columns_count: int, filters: Filters) -> int:
    """Return into how many equal parts columns are divided, of each of which the newest requests are read:
    up to four, if there are so few columns that each part has a whole sample.
    """
    each, together = _bounds(filters)
    return next((parts for parts in (4, 2) if parts * each * columns_count <= together), 1)


def _bounds(filters: Filters) -> tuple[int, int]:
    return (SEARCHED, ALL_SEARCHED) if is_searched(filters) else (SAMPLE, ALL_SAMPLED)


@report
def speeds(
    edges: Sequence[tuple[datetime, datetime]],
    filters: Filters,
    group_by: GroupBy | None = None,
    named: Collection[str] = (),
    reading: Reading | None = None,
) -> Speeds:
    """Return the speeds between each start and end, and the speeds of the groups with these ids; the filters
    have an organization or a key. The rows of a reading of times to first token are read with them.
    """
    columns: list[list[Sequence[Any]]] = [[] for _ in edges]
    groups: defaultdict[str | None, list[Sequence[Any]]] = defaultdict(list)
    first_tokens = []
    for at, member, *times in _sample(edges, filters, group_by, reading):
        if at < 0:
            first_tokens.append((-1 - at, times[0], times[-1]))
            continue
        columns[at].append(times)
        if member is not None:
            groups[str(member) if str(member) in named else None].append(times)
    by_group = {group: Speed.of(each) for group, each in groups.items()}
    return Speeds([Speed.of(each) for each in columns], by_group, first_tokens)


def _sample(
    edges: Sequence[tuple[datetime, datetime]],
    filters: Filters,
    group_by: GroupBy | None,
    reading: Reading | None,
) -> Rows:
    """Return the newest finished requests that match: of each the index of its column, its group, `_COLUMNS`
    and its duration.

    The rows of the reading have -1 less the number of their part instead of a column, their value first, and
    last how often it was measured.
    """
    indexed = _indexed(filters)
    rest = {
        "project_id": filters.project_id,
        "model": filters.model,
        "outcome": filters.outcome,
        "error_code": filters.error,
        "is_test": filters.is_test,
    }
    narrowed = {name: value for name, value in rest.items() if value is not None}
    tests, tested = [f"{name} = %s" for name in narrowed], list(narrowed.values())
    if filters.metadata is not None:
        tests, tested = [*tests, has_pair("sample")], [*tested, *filters.metadata]
    if filters.end_user is not None and "end_user" not in indexed:
        names = (filters.end_user, end_users.digest(filters.end_user))
        tests, tested = [*tests, "end_user IN (%s, %s)"], [*tested, *names]
    each, together = _bounds(filters)
    parts = parts_of(len(edges), filters)
    spans = [
        (at, start + (end - start) * number / parts, start + (end - start) * (number + 1) / parts)
        for at, (start, end) in enumerate(
            (start.astimezone(UTC), end.astimezone(UTC)) for start, end in edges
        )
        for number in range(parts)
    ]
    # The two bounds are in the inner query: what it reads is limited, also if the outer one leaves much out.
    part = f"""SELECT * FROM (
            SELECT %s AS at, {_COLUMNS}, admitted_at, settled_at, organization_id, project_id, api_key_id,
                model, outcome, error_code, metadata, end_user, is_test
            FROM usage_generation WHERE {" AND ".join(f"{column} = %s" for column in indexed)}
                AND admitted_at >= %s AND admitted_at < %s
            ORDER BY admitted_at DESC LIMIT {min(each, together // len(spans))}) AS part{{}}"""  # noqa: S608
    statement = " UNION ALL ".join(part.format(number) for number in range(len(spans)))
    conditions = " AND ".join(["settled_at IS NOT NULL", *tests])
    parameters = [
        db_value(value) for at, start, end in spans for value in (at, *indexed.values(), start, end)
    ]
    keys = [filters.metadata_key or ""] if group_by == "metadata" else []
    counted, counting = reading.statement() if reading else ("", [])
    if counted:
        conditions += f""" UNION ALL SELECT -1 - part, NULL, value, NULL, NULL, NULL, times
            FROM ({counted}) AS counted"""  # noqa: S608  Django's own SQL
    return fetch_all(
        f"""SELECT at, {_member(group_by)}, {_COLUMNS}, {_DURATION[connection.vendor]}
        FROM ({statement}) AS sample
        WHERE {conditions}""",  # noqa: S608  the text is ours, the values are parameters
        [*keys, *parameters, *tested, *counting],
    )


def _member(group_by: GroupBy | None) -> str:
    """Return the expression of a request's group; NULL if it is in none."""
    match group_by:
        case None:
            return "NULL"
        case "error":
            return "NULLIF(error_code, '')"
        case "end_user":
            return "COALESCE(end_user, '')"
        case "metadata":
            return value_of_key("sample")
    return COLUMNS[Dimension(group_by)]


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
