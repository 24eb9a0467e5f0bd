"""The shared parts of the pages of statements in the console and in the admin: a statement and its files."""

from typing import Any, cast

from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse

from accounts import access
from accounts.audit import recorder
from accounts.models import Organization
from usage.models import Statement
from usage.statements import reading, sections
from usage.statements.formats import FORMATS, file_of
from usage.statements.month import Month
from usage.statements.reading import Reading

PERMISSION = "usage.view_statement"
PAGE = 50


def read_period(organization: Organization, period: str) -> Reading:
    """Return the organization's statement or preview of a month such as "2026-10"; raises `Http404`."""
    month = Month.parse(period)
    rows = access.belonging_to(organization.pk, Statement.objects.all())
    found = month and reading.read(rows, organization, month)
    if found is None:
        raise Http404("There is no such statement.")
    return found


def context_of(found: Reading, file_urls: dict[str, str]) -> dict[str, Any]:
    """Return what `usage/statement_body.html` shows, with the URLs of the files by format."""
    made = found.document
    head = sections.head(made)
    return {
        "title": head.title,
        "statement": made,
        "head": head,
        "row": found.row,
        "is_sealed": found.row is not None and found.row.pk <= reading.last_sealed_id(),
        "summary": sections.summary(made),
        "sections": sections.sections(made),
        "files": [(name.upper(), url) for name, url in file_urls.items()],
    }


def download(
    request: HttpRequest, found: Reading, file_format: str, owner: Organization | None = None
) -> HttpResponse:
    """Send a statement as a file, and record in the audit log, the owner's if one is given, who exported it.

    Raises `Http404`.
    """
    if file_format not in FORMATS:
        raise Http404(f"There are {', '.join(FORMATS)}.")
    file = file_of(found, file_format)
    recorder.record("exported", owner or cast(Model, request.user), {"file": [None, file.name]})
    headers = {"content-disposition": f'attachment; filename="{file.name}"', "cache-control": "no-store"}
    return HttpResponse(file.content, content_type=file.content_type, headers=headers)
