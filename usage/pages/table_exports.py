"""What a page shows, as a file: CSV or NDJSON, sent while it is read, a page of rows in memory at once.

There is no cap: each page of rows is a statement of its own, which the database's time limit bounds, and
begins where the last one ended. A reading that breaks off breaks the connection off, so that no one takes
half a file for the whole.
"""

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, StreamingHttpResponse

from accounts.audit import recorder
from usage.database.time_limit import time_limit
from usage.exports.exporting import without_formula
from usage.pricing import to_usd

Record = dict[str, Any]
WINDOW = 2_000
"""Rows of a table that one statement looks at, whether they fit the filters or not."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a page shows: its name, its columns, and its rows in pages.

    Values are numbers, texts, times, booleans or None; an amount of money is a `Decimal`.
    """

    name: str
    columns: Sequence[str]
    pages: Iterable[Sequence[Record]]
    estimated_rows: int | None = None
    """About how many rows there are, where that is known without counting them."""


def usd(nanodollars: int | None) -> Decimal | None:
    """The amount in US dollars, exact."""
    return None if nanodollars is None else Decimal(to_usd(nanodollars))


def response(request: HttpRequest, table: Table, form: str) -> StreamingHttpResponse:
    """The table as a file of that form, "csv" or "ndjson"; who took it with which filters is in the audit
    log.
    """
    if form not in _WRITERS:
        raise Http404("There are csv and ndjson.")
    write, content_type = _WRITERS[form]
    taken = {"file": f"{table.name}.{form}", "filters": request.GET.urlencode()}
    recorder.record(
        "exported", cast(Model, request.user), {name: [None, value] for name, value in taken.items() if value}
    )
    headers = {
        "content-disposition": f'attachment; filename="{table.name}.{form}"',
        "cache-control": "no-store",
        # A proxy that gathers the answer would hide how far it is.
        "x-accel-buffering": "no",
    }
    if table.estimated_rows is not None:
        headers["x-estimated-rows"] = str(table.estimated_rows)
    return StreamingHttpResponse(_sent(write(table)), content_type=content_type, headers=headers)


def windows(rows: "QuerySet[Any]", size: int = WINDOW) -> Iterator[list[Any]]:
    """The rows, newest first, a window of their table at once: however few of them fit, a statement looks at
    no more rows.

    The primary key must be in the order in which rows are made, or of no order that matters.
    """
    table: QuerySet[Any] = rows.model._base_manager.order_by("-pk")
    rows, last = rows.order_by("-pk"), None
    while True:
        with time_limit():
            floor = table.values_list("pk", flat=True)[size - 1 : size].first()
            page = list(rows if floor is None else rows.filter(pk__gte=floor))
        if page:
            yield page
        if floor is None:
            return
        last = floor
        table, rows = table.filter(pk__lt=last), rows.filter(pk__lt=last)


# ---- the forms


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
    """Text that can't be a formula; numbers stay numbers."""
    match value:
        case str():
            return without_formula(value)
        case bool():
            return "true" if value else "false"
        case Decimal():
            return f"{value:f}"
        case datetime():
            return _time(value)
        case _:
            return value


def _ndjson(table: Table) -> Iterator[bytes]:
    for page in table.pages:
        yield "".join(
            json.dumps({name: _json(record[name]) for name in table.columns}) + "\n" for record in page
        ).encode()


def _json(value: Any) -> Any:
    """Money as text, as the API has it: no reader makes a float of it."""
    match value:
        case Decimal():
            return f"{value:f}"
        case datetime():
            return _time(value)
        case _:
            return value


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_WRITERS: dict[str, tuple[Callable[[Table], Iterator[bytes]], str]] = {
    "csv": (_csv, "text/csv; charset=utf-8"),
    "ndjson": (_ndjson, "application/x-ndjson"),
}


async def _sent(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each part is read in the request's thread when the one before is on its way."""
    following = sync_to_async(lambda: next(parts, None))
    while (part := await following()) is not None:
        yield part
