"""Requests, filtered by their URL, and each one's receipt."""

from typing import Any

from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_safe

from chatapi.console.filters import scoped, without_mistakes
from chatapi.console.tenancy import Console, page, render
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import PROTOCOLS
from usage import insights
from usage.insights.generation_list import SEARCHED, SORTED
from usage.models import Generation
from usage.pages import exports
from usage.pages.filters import generation_id_in
from usage.pages.request_list import dropped_before, receipt_context
from usage.pages.requests_chart import requests_chart
from usage.pages.requests_form import RequestsForm

_ENDPOINTS = [name for name, protocol in PROTOCOLS.items() if not protocol.counts_tokens]


@require_safe
@page("usage.view_generation", keeps_to_projects=True)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the requests that match the URL's filters; redirect from an id to its receipt."""
    form, after = scoped(RequestsForm, request, console), request.GET.get("after", "")
    context: dict[str, Any] = {"title": "Requests", "clear_url": console.url("requests")}
    try:
        if not form.is_valid():
            raise ValueError(form.mistake)
        filters = insights.with_stored_name(form.filters)
        found = insights.requests_page(filters, after or None)
    except ValueError as error:
        context |= {"mistake": str(error), "kept_url": without_mistakes(form)}
        return render(request, console, "requests.html", context, status=400)
    if filters.id is not None and found.rows:
        return redirect(console.url("request", found.rows[0]))
    chips = form.chips()
    form.offer_choices(_ENDPOINTS, DIALECTS)
    context |= {
        "form": form,
        "page": found,
        **_chart(form, filters),
        "chips": chips,
        "dropped_before": dropped_before(form.filters, found),
        "older_url": form.link("requests", form.query | {"after": found.next_cursor})
        if found.next_cursor
        else "",
        "view_url": request.build_absolute_uri(),
        "file_url": console.url("requests_file", "csv", **form.query | {"organization": ""}),
        "searched": SEARCHED,
        "sorted": SORTED,
        "newest_url": form.link("requests", form.query) if after else "",
    }
    return render(request, console, "requests.html", context)


def _chart(form: RequestsForm, filters: insights.RequestFilters) -> dict[str, Any]:
    """Return the chart for the template, or that it takes too long, which leaves the list as it is.

    In another zone than UTC, the hours of thousands of keys are added up.
    """
    try:
        return {"chart": requests_chart(form, filters)}
    except OperationalError:
        return {"chart": None, "is_chart_slow": True}


@require_safe
@page("usage.view_generation", keeps_to_projects=True)
def requests_file(request: HttpRequest, console: Console, file_format: str) -> HttpResponseBase:
    """Send all requests that match the URL's filters as a file, and record the export in the audit log."""
    return exports.request_rows(request, scoped(RequestsForm, request, console), file_format)


@require_safe
@page("usage.view_generation", keeps_to_projects=True)
def receipt_page(request: HttpRequest, console: Console, generation_id: str) -> HttpResponse:
    """Show one request: its cost, its time and its outcome."""
    found = generation_id_in(generation_id)
    rows = Generation.objects.select_related("organization", "project__organization", "api_key")
    row = console.rows(rows).filter(pk=found).first() if found else None
    if row is None:
        raise Http404("There is no such request.")
    may_read_keys = console.may("accounts.view_apikey")
    context = receipt_context(row) | {"title": "Receipt", "may_read_keys": may_read_keys}
    return render(request, console.at(row.project_id), "request.html", context)
