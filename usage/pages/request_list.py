"""The list of requests, newest first, and each one's page: its receipt."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounts import access
from accounts.models import APIKey, Organization, Project
from usage import insights
from usage.books import receipts
from usage.insights import RequestFilters
from usage.models import Generation, Kind, LedgerEntry, Outcome, Price, State, UsageSource
from usage.models.outcomes import ANY_ERROR
from usage.pages import requests_query
from usage.pages.choices import MAX_OPTIONS, Choice, by_name, by_row
from usage.pages.page_query import address, words
from usage.pages.requests_waterfall import waterfall
from usage.pages.tenant_scope import own_query, removable
from usage.rollups import retention_horizon


def check_permission(request: HttpRequest) -> None:
    """Raises `PermissionDenied` for who may not see requests."""
    if not request.user.has_perm("usage.view_generation"):
        raise PermissionDenied


@require_safe
def list_page(request: HttpRequest, *, dialects: Iterable[str]) -> HttpResponse:
    """The requests that the address asks for, a page of them; an id leads straight to its receipt."""
    check_permission(request)
    query = own_query(request)
    context: dict[str, Any] = {"title": "Requests", "clear_url": address("requests", {}), "query": query}
    try:
        filters = requests_query.parse(query, timezone.now())
        page = insights.requests_page(filters, query.get("after") or None)
    except ValueError as error:
        return _answer(request, "usage/requests.html", context | {"mistake": str(error)}, status=400)
    if filters.id is not None and (page.rows or _entries(request, filters.id).exists()):
        return redirect("admin:request", f"chatcmpl-{filters.id.hex}")
    asked = requests_query.complete(query, filters)
    context |= {
        "page": page,
        "dropped_before": _dropped_before(filters, page),
        "chips": removable(request.user, requests_query.chips_of(query, filters)),
        "older_url": address("requests", asked | {"after": page.next_cursor}) if page.next_cursor else "",
        "newest_url": address("requests", asked) if query.get("after") else "",
        "export_url": address("requests", {}) + "export",
        "export_query": address("requests", asked).partition("?")[2],
        **_form(request.user, filters, dialects),
    }
    return _answer(request, "usage/requests.html", context)


def _dropped_before(filters: RequestFilters, page: insights.Page) -> datetime | None:
    """Until when requests are missing that the list would have, were they not dropped; it says so at its end."""
    kept_since = retention_horizon.horizon()
    if (
        kept_since is None
        or page.next_cursor is not None
        or (filters.since is not None and filters.since >= kept_since)
    ):
        return None
    return kept_since


def _form(user: access.Person, filters: RequestFilters, dialects: Iterable[str]) -> dict[str, Any]:
    """What there is to choose from; projects and keys are those of the chosen organization."""
    home = {} if filters.organization_id is None else {"organization": filters.organization_id}
    keys_home = {f"project__{name}": value for name, value in home.items()}
    organizations = access.seen_by(user, Organization.objects.all())
    projects = access.seen_by(user, Project.objects.filter(**home).select_related("organization"))
    api_keys = access.seen_by(user, APIKey.objects.filter(**keys_home))
    outcomes = [(name, words(name)) for name in (ANY_ERROR, *Outcome.values)]
    usual = [
        by_row("organization", "Organization", organizations, filters.organization_id),
        by_name("model", "Model", _models(filters.model), filters.model),
        Choice("outcome", "Outcome", outcomes, filters.outcome or ""),
    ]
    rare = [
        by_row("project", "Project", projects, filters.project_id),
        by_row("key", "Key", api_keys, filters.api_key_id),
        by_name("dialect", "Dialect", dialects, filters.dialect),
        by_name("source", "Tokens from", UsageSource.values, filters.usage_source),
    ]
    amounts = (filters.min_nanodollars, filters.max_nanodollars)
    is_rare = any(each.chosen for each in rare) or any(
        value is not None for value in (*amounts, filters.deployment)
    )
    return {
        "usual": usual,
        "rare": rare,
        "is_rare_open": is_rare,
        "has_deployments": access.is_operator(user),
        "time": filters.time,
    }


def _models(chosen: str | None) -> list[str]:
    """The models that ever had a price: without one nothing is served. And the chosen one, which one may look
    for all the same.
    """
    found = list(Price.objects.order_by("model").values_list("model", flat=True).distinct()[:MAX_OPTIONS])
    return found if chosen is None or chosen in found else [*found, chosen]


@require_safe
def receipt_page(request: HttpRequest, generation_id: str) -> HttpResponse:
    """One request: what it cost and why, how its time went, and how it ended."""
    check_permission(request)
    found = requests_query.generation_id_in(generation_id)
    row = _visible(request).filter(pk=found).first() if found else None
    if row is None:
        return _dropped_page(request, found)
    entries = LedgerEntry.objects.filter(generation=row).order_by("id")
    corrections = [entry for entry in entries if entry.kind == Kind.CORRECTION]
    context = {
        "title": "Request",
        "row": row,
        "why": why_it_ended(row),
        "lines": receipts.line_items(row),
        "attempts": receipts.attempts(row),
        # The worker tells in the end how many there were; the reaper can't.
        "are_attempts_known": row.state == State.SETTLED and row.outcome != Outcome.WORKER_LOST,
        "waterfall": waterfall(row, timezone.now()),
        "entries": entries,
        "corrections": corrections,
        "net_nanodollars": receipts.net_nanodollars(row, corrections),
        "charge": next((entry for entry in entries if entry.kind == Kind.CHARGE), None),
        "may_correct": request.user.has_perm("usage.add_ledgerentry"),
        "is_open": row.state != State.SETTLED,
        # What ran it, and where, is the installation's own affair.
        "is_operator": access.is_operator(request.user),
    }
    return _answer(request, "usage/request.html", context)


def _dropped_page(request: HttpRequest, generation_id: UUID | None) -> HttpResponse:
    """What the books still know of a request whose generation was dropped: its entries. Raises `Http404`
    where there are none.
    """
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
    return _answer(request, "usage/request_dropped.html", context)


def _entries(request: HttpRequest, generation_id: UUID) -> "QuerySet[LedgerEntry]":
    """The request's ledger entries, in order, if the person may read them."""
    entries = LedgerEntry.objects.filter(generation_id=generation_id).select_related(
        "organization", "project", "api_key"
    )
    return access.seen_by(request.user, entries.order_by("id"))


def _visible(request: HttpRequest) -> "QuerySet[Generation]":
    """The requests whose receipt the person may read."""
    return access.seen_by(
        request.user, Generation.objects.select_related("organization", "project", "api_key")
    )


_ENDS = {
    Outcome.CLIENT_CANCELLED: "Its client left, or asked for it to stop; what was generated by then is charged.",
    Outcome.WORKER_LOST: "Its worker was lost; what was generated by then is charged.",
    Outcome.NOT_STARTED: "No worker took it in time. It never ran, so nothing is charged.",
}
_FINISHES = {
    "stop": "The model came to its end.",
    "length": "It reached its cap of output tokens.",
    "tool_calls": "The model called tools.",
    "function_call": "The model called a function.",
    "content_filter": "The upstream's content filter cut it off.",
}


def why_it_ended(row: Generation) -> str:
    """A sentence for people on how the request ended, or where it stands."""
    if row.state == State.ADMITTED:
        return "It waits for a worker."
    if row.state == State.RUNNING:
        return "It runs; its tokens are those of the last heartbeat."
    if row.outcome == Outcome.COMPLETED:
        return _FINISHES.get(row.finish_reason, f"It finished: {row.finish_reason or 'no reason given'}.")
    return _ENDS.get(Outcome(row.outcome), "It failed; the client was told the error below.")


def _answer(request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    return TemplateResponse(request, template, admin.site.each_context(request) | context, status=status)
