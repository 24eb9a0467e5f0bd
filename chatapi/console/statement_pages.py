"""The organization's statements: their list, one that prints well, and its files."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from chatapi.console.tenancy import Console, page, render
from usage.models import Statement
from usage.pages.statement_parts import PAGE, PERMISSION, context_of, download, read_period
from usage.statements.formats import FORMATS
from usage.statements.month import Month
from usage.statements.reading import open_months


@require_safe
@page(PERMISSION)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the closed months, newest first, and on the first page the months that are open."""
    after = request.GET.get("after", "")
    before = Month.parse(after)
    context: dict[str, Any] = {"title": "Statements", "clear_url": console.url("statements")}
    if after and before is None:
        mistake = f"After: {after[:40]!r} is not a month such as 2026-10."
        return render(request, console, "statements.html", context | {"mistake": mistake}, status=400)
    rows = console.rows(Statement.objects.all())
    if before is not None:
        rows = rows.filter(month__lt=before.first_day)
    # One row more than is shown tells whether there is an older page.
    found = list(rows.order_by("-month").defer("content")[: PAGE + 1])
    months = [Month.of(row.month) for row in found[:PAGE]]
    context |= {
        "rows": list(zip(found, months, strict=False)),
        "previews": [] if before else open_months(),
        "older_url": console.url("statements", after=months[-1]) if len(found) > PAGE else "",
        "newest_url": console.url("statements") if before else "",
    }
    return render(request, console, "statements.html", context)


@require_safe
@page(PERMISSION)
def statement_page(request: HttpRequest, console: Console, period: str) -> HttpResponse:
    """Show a statement, or the preview of a month that is not closed."""
    found = read_period(console.organization, period)
    file_urls = {name: console.url("statement_file", period, name) for name in FORMATS}
    return render(request, console, "statement.html", context_of(found, file_urls))


@require_safe
@page(PERMISSION)
def statement_file(request: HttpRequest, console: Console, period: str, file_format: str) -> HttpResponse:
    """Send a statement as a file, and record the export in the audit log."""
    found = read_period(console.organization, period)
    return download(request, found, file_format, console.organization)
