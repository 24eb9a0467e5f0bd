"""The exports of the operator's own pages: requests with their filters, and the Overview's table."""

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_GET

from accounts import access
from usage import insights
from usage.books import receipts
from usage.insights import Filters, Point, Range, RequestFilters
from usage.models import Generation, State
from usage.models.outcomes import ANY_ERROR
from usage.pages import overview_question, request_list, requests_query, table_exports
from usage.pages.overview_question import Question
from usage.pages.table_exports import Record, Table, usd
from usage.pages.tenant_scope import own_query

PAGE = 500
_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
"""Before any request that there can be."""
_SUMS = (
    "requests",
    "failed_requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "amount_nanodollars",
)
_OVERVIEW = ("start", "group", "group_id", *_SUMS, "amount_usd")
_REQUESTS = (
    "id", "admitted_at", "settled_at", "state", "outcome", "error_code", "finish_reason", "model", "endpoint", "dialect", "is_stream",
    "is_test", "organization_id", "organization", "project_id", "project", "api_key_id", "api_key", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "usage_source", "usage_note", "amount_nanodollars", "amount_usd", "queue_ms",
    "first_token_ms", "last_token_ms", "total_ms", "attempts", "deployment",
)  # fmt: skip
_OPERATORS = {"deployment"}
"""Columns with the installation's own affairs, which people of organizations don't get."""


@require_GET
def requests(request: HttpRequest, form: str) -> HttpResponseBase:
    """The requests that the address asks for, all of them, newest first."""
    request_list.check_permission(request)
    try:
        filters = requests_query.parse(own_query(request), timezone.now())
    except ValueError as error:
        return _mistake(error)
    name = "requests" + _dates(filters.since, filters.until)
    columns = tuple(
        column for column in _REQUESTS if access.is_operator(request.user) or column not in _OPERATORS
    )
    table = Table(name, columns, _requests(filters), _estimated(filters))
    return table_exports.response(request, table, form)


@require_GET
def overview(request: HttpRequest, form: str) -> HttpResponseBase:
    """What the Overview's chart shows: the sums by hour or day, and by group."""
    if not request.user.has_perm("usage.view_hourlyusage"):
        raise PermissionDenied
    try:
        question = overview_question.parse(own_query(request), timezone.now())
    except ValueError as error:
        return _mistake(error)
    rows = _points(question)
    name = f"usage-by-{question.group_by}" + _dates(question.over.start, question.over.end)
    return table_exports.response(request, Table(name, _OVERVIEW, [rows], len(rows)), form)


def _mistake(error: ValueError) -> HttpResponse:
    return HttpResponse(f"{error}\n", status=400, content_type="text/plain; charset=utf-8")


def _dates(since: datetime | None, until: datetime | None) -> str:
    """Of a file's name: the range that it has, to its last day."""
    end = until or timezone.now()
    begin = f"_{since:%Y-%m-%d}" if since else ""
    return f"{begin}_to_{end - timedelta(microseconds=1):%Y-%m-%d}"


def _requests(filters: RequestFilters) -> Iterator[list[Record]]:
    after: str | None = None
    while True:
        page = insights.requests_page(filters, after, PAGE)
        yield [_request(row) for row in page.rows]
        if page.next_cursor is None:
            return
        after = page.next_cursor


def _request(row: Generation) -> Record:
    is_settled = row.state == State.SETTLED
    amount = row.amount_nanodollars if is_settled else None
    own = {name: getattr(row, name) for name in _REQUESTS if name in _COLUMNS}
    return own | {
        "id": str(row),
        "organization": row.organization.name,
        "project": row.project.name,
        "api_key": row.api_key.name,
        "amount_nanodollars": amount,
        "amount_usd": usd(amount),
        "queue_ms": receipts.queue_ms(row),
        "total_ms": receipts.total_ms(row),
    }


_COLUMNS = {field.attname for field in Generation._meta.concrete_fields}


def _estimated(filters: RequestFilters) -> int | None:
    """What the rollup has counted; it does not know each filter, and nothing of what is still open."""
    known = {each.name for each in fields(Filters)} | {"time", "since", "until"}
    if any(value is not None for name, value in asdict(filters).items() if name not in known):
        return None
    over = Range(filters.since or _BEGINNING, filters.until or timezone.now(), "day")
    known_to_all = Filters(**{each.name: getattr(filters, each.name) for each in fields(Filters)})
    if filters.outcome == ANY_ERROR:
        return insights.totals(over, replace(known_to_all, outcome=None)).failed_requests
    return insights.totals(over, known_to_all).requests


def _points(question: Question) -> list[Record]:
    return [_point(point) for point in insights.series(question.over, question.group_by, question.filters)]


def _point(point: Point) -> Record:
    sums: dict[str, Any] = {name: getattr(point.totals, name) for name in _SUMS}
    return {
        "start": point.start,
        "group": point.group_label,
        "group_id": point.group_id,
        **sums,
        "amount_usd": usd(sums["amount_nanodollars"]),
    }
