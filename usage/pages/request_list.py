"""The list of requests, newest first, and each one's page: its receipt."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import permission_required
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounts import access
from accounts.pages.admin_site import admin_page
from usage import insights
from usage.books import receipts
from usage.insights import RequestFilters
from usage.insights.generation_list import SEARCHED, SORTED
from usage.models import Generation, Kind, LedgerEntry, Outcome, State, UsageNote
from usage.pages.filters import generation_id_in
from usage.pages.links import page_url
from usage.pages.requests_form import SOURCES, RequestsForm
from usage.pages.requests_waterfall import waterfall
from usage.pages.tenant_scope import scoped_form
from usage.rollups import retention_horizon

PERMISSION = "usage.view_generation"


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def list_page(request: HttpRequest, *, endpoints: Iterable[str], dialects: Iterable[str]) -> HttpResponse:
    """Show a page of the requests that the URL asks for; redirect from an id to its receipt."""
    form, after = scoped_form(RequestsForm, request), request.GET.get("after", "")
    context: dict[str, Any] = {"title": "Requests", "clear_url": page_url("requests", {})}
    try:
        if not form.is_valid():
            raise ValueError(form.mistake)
        page = insights.requests_page(form.filters, after or None)
    except ValueError as error:
        return admin_page(request, "usage/requests.html", context | {"mistake": str(error)}, status=400)
    found_id = form.filters.id
    if found_id is not None and (page.rows or _entries(request, found_id).exists()):
        return redirect("admin:request", str(page.rows[0]) if page.rows else found_id.hex)
    form.offer_choices(endpoints, dialects)
    context |= {
        "form": form,
        "page": page,
        "is_operator": access.is_operator(request.user),
        "dropped_before": dropped_before(form.filters, page),
        "searched": SEARCHED,
        "sorted": SORTED,
        "chips": form.chips(),
        "older_url": page_url("requests", form.query | {"after": page.next_cursor})
        if page.next_cursor
        else "",
        "newest_url": page_url("requests", form.query) if after else "",
        "export_url": page_url("requests", {}) + "export",
        "export_query": page_url("requests", form.query).partition("?")[2],
    }
    return admin_page(request, "usage/requests.html", context)


def dropped_before(filters: RequestFilters, page: insights.Page) -> datetime | None:
    """Return until when requests of this list were dropped by retention; None before its last page."""
    if page.next_cursor is not None:
        return None
    kept_since = retention_horizon.horizon()
    is_within = kept_since is not None and filters.since is not None and filters.since >= kept_since
    return None if is_within else kept_since


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def receipt_page(request: HttpRequest, generation_id: str) -> HttpResponse:
    found = generation_id_in(generation_id)
    rows = Generation.objects.select_related("organization", "project", "api_key")
    row = access.seen_by(request.user, rows).filter(pk=found).first() if found else None
    if row is None:
        # Another tenant's, or dropped: its ledger entries, if the person may see them, stay for ever.
        return _dropped_page(request, found)
    context = receipt_context(row) | {
        "title": "Request",
        "may_correct": request.user.has_perm("usage.add_ledgerentry"),
        # Deployments and workers are shown to operators only.
        "is_operator": access.is_operator(request.user),
    }
    return admin_page(request, "usage/request.html", context)


def receipt_context(row: Generation) -> dict[str, Any]:
    """Return what a request's page shows to everyone who may see the request."""
    entries = LedgerEntry.objects.filter(generation=row).order_by("id")
    corrections = [entry for entry in entries if entry.kind == Kind.CORRECTION]
    return {
        "row": row,
        "why": why_it_ended(row),
        "lines": receipts.line_items(row),
        "usage_source": SOURCES[row.usage_source],
        "usage_note": _USAGE_NOTES[UsageNote(row.usage_note)] if row.usage_note else "",
        "attempts": receipts.attempts(row),
        # The worker reports the attempts when it settles; the reaper doesn't know them.
        "are_attempts_known": row.state == State.SETTLED and row.outcome != Outcome.WORKER_LOST,
        "waterfall": waterfall(row, timezone.now()),
        "entries": entries,
        "corrections": corrections,
        "net_nanodollars": receipts.net_nanodollars(row, corrections),
        "charge": next((entry for entry in entries if entry.kind == Kind.CHARGE), None),
        "is_open": row.state != State.SETTLED,
    }


def _dropped_page(request: HttpRequest, generation_id: UUID | None) -> HttpResponse:
    """Show the ledger entries of a request that retention dropped; raises `Http404` if there are none."""
    kept_since = retention_horizon.horizon()
    entries = list(_entries(request, generation_id)) if generation_id else []
    if not entries or kept_since is None or entries[0].created_at >= kept_since:
        raise Http404("There is no such request.")
    context = {
        "title": "Request",
        "entries": entries,
        "charge": entries[0],
        "net_nanodollars": sum(entry.amount_nanodollars for entry in entries),
        "dropped_before": kept_since,
    }
    return admin_page(request, "usage/request_dropped.html", context)


def _entries(request: HttpRequest, generation_id: UUID) -> "QuerySet[LedgerEntry]":
    """Return the request's ledger entries that the person may read, oldest first."""
    entries = LedgerEntry.objects.filter(generation_id=generation_id).select_related(
        "organization", "project", "api_key"
    )
    return access.seen_by(request.user, entries.order_by("id"))


_ENDS = {
    Outcome.CLIENT_CANCELLED: "Its client left, or a person stopped it; the output until then is charged.",
    Outcome.WORKER_LOST: "Its worker crashed; the output until then is charged.",
    Outcome.NOT_STARTED: "No worker was free in time. It never ran, so nothing is charged.",
}
_FINISHES = {
    "stop": "Finished normally.",
    "length": "It reached its limit of output tokens.",
    "tool_calls": "The model called tools.",
    "function_call": "The model called a function.",
    "content_filter": "The upstream's content filter cut it off.",
}
_USAGE_NOTES = {
    UsageNote.IMPLAUSIBLE: "The provider reported more tokens than this request can have used, so chatapi's "
    "own count is charged.",
    UsageNote.ADDED: "The provider reported each choice by itself; the charge is for their sum.",
    UsageNote.LOW: "The provider reported less than half of the tokens that chatapi counted. The provider's "
    "numbers are charged.",
}


def why_it_ended(row: Generation) -> str:
    """Return a sentence on how the request ended, or on its state."""
    if row.state == State.ADMITTED:
        return "It waits for a worker."
    if row.state == State.RUNNING:
        return "It is running; its tokens are those of the last heartbeat."
    if row.outcome == Outcome.COMPLETED:
        return _FINISHES.get(row.finish_reason, f"It finished: {row.finish_reason or 'no reason given'}.")
    return _ENDS.get(Outcome(row.outcome), "It failed; the client got the error below.")
