"""Exports of what pages show, as CSV or NDJSON: the Overview's sums, requests with their filters, admin
lists.

A file is sent while it is read, one page of rows in memory at a time. There is no limit on rows: each page is
a statement of its own, bounded by the database's time limit, and begins where the last one ended.
"""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, cast

from asgiref.sync import sync_to_async
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.views.decorators.http import require_GET

from accounts import access
from accounts.audit import recorder
from accounts.models import Organization
from usage import insights
from usage.books import receipts
from usage.database.replica import report
from usage.exports.exporting import without_formula
from usage.insights import Range, RequestFilters
from usage.models import Generation, State
from usage.models.generations import ANY_ERROR
from usage.pages.overview_form import OverviewForm
from usage.pages.requests_form import RequestsForm
from usage.pages.tenant_scope import scoped_form
from usage.pricing import to_usd

Record = dict[str, Any]
# Requests in one page of a file.
PAGE = 500
# Rows of a table that one statement looks at, whether they match the filters or not.
WINDOW = 2_000
# Before any request.
_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
_SUMS = (
    "requests", "failed_requests", "prompt_tokens", "cached_tokens", "cache_write_tokens",
    "cache_write_1h_tokens", "completion_tokens", "reasoning_tokens", "amount_nanodollars",
)  # fmt: skip
_OVERVIEW = ("start", "group", "group_id", *_SUMS, "amount_usd")
_REQUESTS = (
    "id", "admitted_at", "settled_at", "state", "outcome", "error_code", "finish_reason", "model",
    "end_user", "metadata", "endpoint", "dialect", "is_stream", "is_test", "organization_id", "organization",
    "project_id", "project", "api_key_id", "api_key", "prompt_tokens", "cached_tokens",
    "cache_write_tokens", "cache_write_1h_tokens", "completion_tokens", "reasoning_tokens", "usage_source",
    "usage_note", "amount_nanodollars", "amount_usd", "queue_ms",
    "first_token_ms", "last_token_ms", "total_ms", "attempts", "deployment",
)  # fmt: skip
# Columns that only operators get.
_OPERATORS = {"deployment"}
_COLUMNS = {field.attname for field in Generation._meta.concrete_fields}


@dataclass(frozen=True, slots=True)
class Table:
    """A file's name, its columns, and its rows in pages.

    Values are numbers, texts, times, booleans or None; an amount of money is a `Decimal`.
    """

    name: str
    columns: Sequence[str]
    pages: Iterable[Sequence[Record]]
    estimated_rows: int | None = None
    """About how many rows there are, if that is known without counting them."""


# ---- requests and the Overview


@require_GET
@permission_required("usage.view_generation", raise_exception=True)
def requests(request: HttpRequest, file_format: str) -> HttpResponseBase:
    """Export all requests that the URL asks for, newest first."""
    return request_rows(request, scoped_form(RequestsForm, request), file_format)


def request_rows(request: HttpRequest, form: RequestsForm, file_format: str) -> HttpResponseBase:
    """Return all requests of a form, newest first, as a file."""
    if not form.is_valid():
        return _mistake(form.mistake)
    filters, is_operator = form.filters, access.is_operator(request.user)
    columns = tuple(column for column in _REQUESTS if is_operator or column not in _OPERATORS)
    name = "requests" + _dates(filters.since, filters.until)
    table = Table(name, columns, _request_pages(filters), _estimated(filters))
    return respond(request, table, file_format, form.pages.organization)


@require_GET
@permission_required("usage.view_hourlyusage", raise_exception=True)
def overview(request: HttpRequest, file_format: str) -> HttpResponseBase:
    """Export what the Overview's chart shows: sums by hour or day, and by group."""
    return sums(request, scoped_form(OverviewForm, request), file_format)


def sums(request: HttpRequest, form: OverviewForm, file_format: str) -> HttpResponseBase:
    """Return the sums of a form by hour or day, and by group, as a file."""
    if not form.is_valid():
        return _mistake(form.mistake)
    rows: list[Record] = [
        {name: getattr(point.totals, name) for name in _SUMS}
        | {
            "start": point.start,
            "group": point.group_label,
            "group_id": point.group_id,
            "amount_usd": usd(point.totals.amount_nanodollars),
        }
        for point in insights.series(form.over, form.group_by if form.is_grouped else None, form.filters)
    ]
    groups = f"-by-{form.group_by}" if form.is_grouped else ""
    name = f"usage{groups}" + _dates(form.over.start, form.over.end)
    # The rollup of end users does not say which requests failed.
    columns = [
        column for column in _OVERVIEW if column != "failed_requests" or not form.has_days_of_end_users
    ]
    table = Table(name, columns, [rows], len(rows))
    return respond(request, table, file_format, form.pages.organization)


def _mistake(text: str) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=400, content_type="text/plain; charset=utf-8")


def _dates(since: datetime | None, until: datetime | None) -> str:
    """Return the part of a file's name that says the range, to its last day."""
    end = until or timezone.now()
    begin = f"_{since:%Y-%m-%d}" if since else ""
    return f"{begin}_to_{end - timedelta(microseconds=1):%Y-%m-%d}"


def _request_pages(filters: RequestFilters) -> Iterator[list[Record]]:
    after: str | None = None
    # Sorted otherwise, the list ends after the newest.
    newest_first = replace(filters, sort="newest")
    while True:
        page = insights.requests_page(newest_first, after, PAGE)
        yield [_request(row) for row in page.rows]
        after = page.next_cursor
        if after is None:
            return


def _request(row: Generation) -> Record:
    amount = row.amount_nanodollars if row.state == State.SETTLED else None
    return {name: getattr(row, name) for name in _REQUESTS if name in _COLUMNS} | {
        "id": str(row),
        "organization": row.organization.name,
        "project": row.project.name,
        "api_key": row.api_key.name,
        "amount_nanodollars": amount,
        "amount_usd": usd(amount),
        "queue_ms": receipts.queue_ms(row),
        "total_ms": receipts.total_ms(row),
    }


def _estimated(filters: RequestFilters) -> int | None:
    """Return the rollup's count; None with filters that it doesn't know. It has no open requests."""
    if (known := filters.of_rollups) is None:
        return None
    over = Range(filters.since or _BEGINNING, filters.until or timezone.now(), "day")
    if filters.outcome == ANY_ERROR:
        return insights.totals(over, replace(known, outcome=None)).failed_requests
    return insights.totals(over, known).requests


# ---- the admin's lists


class ExportedList:
    """A mixin before a ModelAdmin: people who may see its list can download it as it is filtered."""

    list_before_template = "usage/list_export.html"
    export_name: ClassVar[str]
    export_columns: ClassVar[tuple[str, ...]]
    export_select_related: ClassVar[tuple[str, ...]] = ()
    """Relations that `export_record` reads; a list's page may show more."""

    class Media:
        css = {"all": ["usage/operator.css"]}
        js = ["usage/export.js"]

    def export_record(self, row: Any) -> Record:
        raise NotImplementedError

    def export(self, request: HttpRequest, file_format: str) -> HttpResponseBase:
        """Export the rows of the list that the URL asks for, newest first."""
        page: Any = self
        if not page.has_view_permission(request):
            raise PermissionDenied
        try:
            rows = page.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return _mistake("This list does not have these filters.")
        if self.export_select_related:
            rows = rows.select_related(None).select_related(*self.export_select_related)
        pages = ([self.export_record(row) for row in window] for window in windows(rows))
        name = f"{self.export_name}_to_{timezone.now():%Y-%m-%d}"
        return respond(request, Table(name, self.export_columns, pages), file_format)

    def get_urls(self) -> list[URLPattern]:
        # Before the rows' URLs, because a row's id could be "export.csv".
        page: Any = self
        view = page.admin_site.admin_view(self.export)
        name = f"{page.opts.app_label}_{page.opts.model_name}_export"
        return [path("export.<str:file_format>", view, name=name), *super().get_urls()]  # type: ignore[misc]


def windows(rows: "QuerySet[Any]", size: int = WINDOW) -> Iterator[list[Any]]:
    """Yield the rows, newest first; each statement looks at one window of their table, however few rows
    match.

    The primary key must be in the order in which rows are made, or in an order that does not matter.
    """
    table: QuerySet[Any] = rows.model._base_manager.order_by("-pk")
    rows = rows.order_by("-pk")
    while True:
        page, floor = _window(table, rows, size)
        if page:
            yield page
        if floor is None:
            return
        table, rows = table.filter(pk__lt=floor), rows.filter(pk__lt=floor)


@report
def _window(table: "QuerySet[Any]", rows: "QuerySet[Any]", size: int) -> tuple[list[Any], Any]:
    """Return the rows in the first window of the table, and its last key unless it ends there."""
    floor = table.values_list("pk", flat=True)[size - 1 : size].first()
    return list(rows if floor is None else rows.filter(pk__gte=floor)), floor


# ---- the formats


def usd(nanodollars: int | None) -> Decimal | None:
    """Return the exact amount in US dollars."""
    return None if nanodollars is None else Decimal(to_usd(nanodollars))


def respond(
    request: HttpRequest, table: Table, file_format: str, owner: Organization | None = None
) -> StreamingHttpResponse:
    """Return the table as a file, and record in the audit log who exported it with which filters.

    The entry is in the log of the owner whose rows they are, if one is given; else it is about the person.
    Raises `Http404` for a format other than "csv" and "ndjson".
    """
    if file_format not in _WRITERS:
        raise Http404("There are csv and ndjson.")
    write, content_type = _WRITERS[file_format]
    file_name = f"{table.name}.{file_format}"
    exported = {"file": file_name, "filters": request.GET.urlencode()}
    changes = {name: [None, value] for name, value in exported.items() if value}
    recorder.record("exported", owner or cast(Model, request.user), changes)
    headers = {
        "content-disposition": f'attachment; filename="{file_name}"',
        "cache-control": "no-store",
        # A proxy that buffers the response would hide its progress.
        "x-accel-buffering": "no",
    }
    if table.estimated_rows is not None:
        headers["x-estimated-rows"] = str(table.estimated_rows)
    return StreamingHttpResponse(
        _sent(write(table), copy_context()), content_type=content_type, headers=headers
    )


async def _sent(parts: Iterator[bytes], context: Context) -> AsyncIterator[bytes]:
    # Each part is read in the request's thread, when the part before is on its way, and as the request's own
    # reads: from the primary only, for a person who has just changed something.
    following = sync_to_async(lambda: context.run(next, parts, None))
    # An error breaks the connection, so that a partial file can't be taken for the whole.
    while (part := await following()) is not None:
        yield part


def _csv(table: Table) -> Iterator[bytes]:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(table.columns)
    for page in table.pages:
        writer.writerows([_cell(record[name]) for name in table.columns] for record in page)
        yield buffer.getvalue().encode()
        buffer.seek(0)
        buffer.truncate()
    if buffer.tell():
        yield buffer.getvalue().encode()


def _cell(value: Any) -> Any:
    match value:
        case str():
            # A spreadsheet would run a name that begins like a formula.
            return without_formula(value)
        case bool():
            return "true" if value else "false"
        case dict():
            return json.dumps(value)
        case _:
            return _plain(value)


def _ndjson(table: Table) -> Iterator[bytes]:
    for page in table.pages:
        records = ({name: _plain(record[name]) for name in table.columns} for record in page)
        yield "".join(json.dumps(record) + "\n" for record in records).encode()


def _plain(value: Any) -> Any:
    """Return times and money as text, as the API has them: no reader makes a float of an amount."""
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case _:
            return value


_WRITERS: dict[str, tuple[Callable[[Table], Iterator[bytes]], str]] = {
    "csv": (_csv, "text/csv; charset=utf-8"),
    "ndjson": (_ndjson, "application/x-ndjson"),
}
