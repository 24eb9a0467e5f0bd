"""The organization's audit log."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from accounts.audit.models import AuditEntry
from accounts.models import APIKey
from chatapi.console.tenancy import Console, page, render
from usage.models import Generation
from usage.pages.audit import PAGE, PERMISSION, AuditFilterForm, line
from usage.pages.filters import Chip


@require_safe
@page(PERMISSION)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the entries that match the URL's filters."""
    form = AuditFilterForm(request.GET)
    context: dict[str, Any] = {"title": "Audit log", "clear_url": console.url("audit")}
    if not form.is_valid():
        mistake = f"Before: {form.errors['before'][0]}"
        return render(request, console, "audit.html", context | {"mistake": mistake}, status=400)
    form.offer_choices(console.person, console.organization.pk)
    query = form.query
    found = form.page_of(console.rows(AuditEntry.objects.all()))
    context |= {
        "filters": form.shown_fields,
        "lines": [
            line(entry, _object_url(console, entry), _history_url(console, entry)) for entry in found[:PAGE]
        ],
        "chips": [
            Chip(f"{name}: {value}", console.url("audit", **query | {name: ""}))
            for name, value in query.items()
        ],
        "older_url": console.url("audit", **query, before=found[PAGE - 1].pk) if len(found) > PAGE else "",
        "newest_url": console.url("audit", **query) if form.cleaned_data["before"] else "",
    }
    return render(request, console, "audit.html", context)


def _object_url(console: Console, entry: AuditEntry) -> str:
    """Return the URL of the object's page, or "" if the console has none."""
    if entry.object_type == APIKey._meta.label_lower and console.may("accounts.view_apikey"):
        return console.url("key", entry.object_id)
    if entry.object_type == Generation._meta.label_lower and console.may("usage.view_generation"):
        return console.url("request", entry.object_name)
    return ""


def _history_url(console: Console, entry: AuditEntry) -> str:
    return console.url("audit", type=entry.object_type, object=entry.object_id)
