"""The pages of statements: the list of closed months, one statement that prints well, and its files."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from django.contrib.auth.decorators import permission_required
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounts import access
from accounts.models import Organization
from accounts.pages.admin_site import admin_page
from usage.models import Kind, Statement
from usage.pages.filters import first_mistake, is_id, text_field
from usage.pages.links import admin_time, page_url
from usage.pages.organization_filter import OrganizationFilterForm
from usage.pages.statement_parts import PAGE, PERMISSION, context_of, download, read_period
from usage.statements import reading
from usage.statements.formats import FORMATS
from usage.statements.month import Month
from usage.statements.reading import Reading

# Organizations whose current month the list links to; others are found by the filter.
MAX_PREVIEWS = 20


class StatementFilterForm(OrganizationFilterForm):
    """The GET form of the list; `after` is the statement behind which the page begins."""

    month = text_field("Month", placeholder="2026-10")
    after = text_field("After")

    def clean_month(self) -> Month | None:
        text = self.cleaned_data["month"]
        month = Month.parse(text)
        if text and month is None:
            raise ValidationError(f"{text[:40]!r} is not a month such as 2026-10.")
        return month

    def clean_after(self) -> tuple[date, int] | None:
        """Return the month and the organization's id; raise `ValidationError` for anything else."""
        text = self.cleaned_data["after"]
        month_text, _, organization = text.partition("_")
        month = Month.parse(month_text)
        if not text:
            return None
        if month is None or not is_id(organization):
            raise ValidationError(f"{text[:40]!r} is not the place of a statement.")
        return month.first_day, int(organization)


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def list_page(request: HttpRequest) -> HttpResponse:
    """Show a page of the statements that the URL asks for, newest month first, and links to previews."""
    form = StatementFilterForm(request)
    context: dict[str, Any] = {"title": "Statements", "clear_url": page_url("statements", {})}
    if not form.is_valid():
        context["mistake"] = first_mistake(form)
        return admin_page(request, "usage/statements.html", context, status=400)
    data = form.cleaned_data
    organizations = form.offer_organizations()
    rows = _matching(access.seen_by(request.user, Statement.objects.all()), data)
    # One more than is shown says whether there is an older page.
    page = list(rows.select_related("organization").defer("content")[: PAGE + 1])
    query = {"organization": data["organization"], "month": data["month"]}
    last = page[PAGE - 1] if len(page) > PAGE else None
    after = last and f"{Month.of(last.month)}_{last.organization_id}"
    context |= {
        "filters": [form["organization"], form["month"]] if organizations[1:].exists() else [form["month"]],
        "chips": form.chips("statements", query),
        "rows": [(row, Month.of(row.month)) for row in page[:PAGE]],
        **_previews(organizations, data),
        "older_url": page_url("statements", query | {"after": after}) if after else "",
        "newest_url": page_url("statements", query) if data["after"] else "",
    }
    return admin_page(request, "usage/statements.html", context)


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def statement_page(request: HttpRequest, organization_id: int, period: str) -> HttpResponse:
    """Show a statement, or the preview of a month that is not closed."""
    found = _read(request, organization_id, period)
    file_urls = {
        name: reverse("admin:statement_file", args=[organization_id, period, name]) for name in FORMATS
    }
    context = context_of(found, file_urls)
    if found.document.credit_notes:
        month = found.document.month
        of_month = {"created_at__gte": admin_time(month.start), "created_at__lt": admin_time(month.end)}
        own = {"kind__exact": Kind.CORRECTION, "organization__id__exact": organization_id}
        context["corrections_url"] = page_url("usage_ledgerentry_changelist", own | of_month)
    return admin_page(request, "usage/statement.html", context)


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def statement_file(request: HttpRequest, organization_id: int, period: str, file_format: str) -> HttpResponse:
    """Send a statement as a file, and record in the audit log who exported it; raises `Http404`."""
    return download(request, _read(request, organization_id, period), file_format)


def _read(request: HttpRequest, organization_id: int, period: str) -> Reading:
    """Return the statement; raises `Http404`, the same for another organization and for an unknown one."""
    organizations = access.where_may(request.user, PERMISSION, Organization.objects.all())
    organization = organizations.filter(pk=organization_id).first()
    if organization is None:
        raise Http404("There is no such statement.")
    return read_period(organization, period)


def _matching(rows: QuerySet[Statement], data: dict[str, Any]) -> QuerySet[Statement]:
    if data["organization"] is not None:
        rows = rows.filter(organization=data["organization"])
    if data["month"] is not None:
        rows = rows.filter(month=data["month"].first_day)
    if data["after"] is not None:
        month, organization_id = data["after"]
        rows = rows.filter(Q(month__lt=month) | Q(month=month, organization__gt=organization_id))
    return rows.order_by("-month", "organization")


def _previews(organizations: QuerySet[Organization], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the organizations with each of their months that are not closed, and whether there are more."""
    if data["month"] or data["after"]:
        return {"previews": []}
    if data["organization"] is not None:
        organizations = organizations.filter(pk=data["organization"])
    months, found = reading.open_months(), list(organizations[: MAX_PREVIEWS + 1])
    return {
        "previews": [(each, month) for each in found[:MAX_PREVIEWS] for month in months],
        "has_more_previews": len(found) > MAX_PREVIEWS,
    }
