"""The audit log's page: who did what, when, and each value before and after. Newest first, read-only, a page
by keyset.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_safe

from accounts import access, memberships
from accounts.audit.models import AuditEntry
from usage.formatting import usd
from usage.models import Generation, LedgerEntry
from usage.pages.choices import MAX_OPTIONS, Choice, by_name, search_address
from usage.pages.page_query import Chip, address

PAGE = 50
PERMISSION = "audit.view_auditentry"
_FILTERS = {"person": "actor", "type": "object_type", "object": "object_id"}
"""Names in the address, and the columns that they ask for."""
_MAX_ID = 2**63 - 1
_MOODS = {"deleted": "bad", "failed to sign in": "bad", "created": "good"}


@dataclass(frozen=True, slots=True)
class Change:
    """One value, before and after, as a reader wants it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Line:
    """An entry, with where its object is shown."""

    entry: AuditEntry
    mood: str
    kind: str
    url: str
    history_url: str
    changes: list[Change]


@require_safe
def list_page(request: HttpRequest) -> HttpResponse:
    """The entries that the address asks for, a page of them."""
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    query = {
        name: value
        for name in (*_FILTERS, "before")
        if (value := request.GET.get(name, "").replace("\x00", ""))
    }
    asked = {name: value for name, value in query.items() if name in _FILTERS}
    context: dict[str, Any] = {
        "title": "Audit log",
        "query": query,
        "clear_url": address("audit", {}),
        "selects": _selects(request, query),
    }
    before = query.get("before")
    if before is not None and not _is_id(before):
        return _answer(
            request,
            context | {"mistake": f"before: {before[:40]!r} is not the number of an entry."},
            status=400,
        )
    rows = _rows(request).filter(**{_FILTERS[name]: value for name, value in asked.items()})
    page = list((rows.filter(id__lt=int(before)) if before else rows).order_by("-id")[: PAGE + 1])
    context |= {
        "shows_addresses": access.is_operator(request.user),
        "lines": [_line(entry) for entry in page[:PAGE]],
        "chips": [
            Chip(f"{name}: {value}", address("audit", _without(asked, name))) for name, value in asked.items()
        ],
        "older_url": address("audit", asked | {"before": page[PAGE - 1].pk}) if len(page) > PAGE else "",
        "newest_url": address("audit", asked) if before else "",
    }
    return _answer(request, context)


@require_safe
def history(request: HttpRequest, app_label: str, model_name: str, object_id: str) -> HttpResponse:
    """What the theme's pages link to as an object's history: the audit log's entries about it.

    A ledger entry has none, for it never changes: what people did is about its request.
    """
    kind, key = f"{app_label}.{model_name}", unquote(object_id)
    if kind == LedgerEntry._meta.label_lower and _is_id(key):
        entry = access.seen_by(
            request.user, LedgerEntry.objects.filter(pk=int(key), generation__isnull=False)
        ).first()
        kind, key = (Generation._meta.label_lower, str(entry.generation_id)) if entry else (kind, key)
    return redirect(_history_url(kind, key))


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= _MAX_ID


def _rows(request: HttpRequest) -> "QuerySet[AuditEntry]":
    """What the person may see of the log."""
    return access.seen_by(request.user, AuditEntry.objects.all())


def _without(asked: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in asked.items() if key != name}


def _selects(request: HttpRequest, query: dict[str, str]) -> list[Choice]:
    """People who may have acted, and kinds of what pages change; what is asked for is always among them."""
    kinds = {
        page.model._meta.label_lower: _kind(page.model._meta.label_lower)
        for page in admin.site._registry.values()
    }
    kind = query.get("type", "")
    kinds |= {kind: _kind(kind)} if kind else {}
    return [
        _people(request.user, query.get("person", "")),
        Choice("type", "Kind", sorted(kinds.items(), key=lambda each: each[1]), kind),
    ]


def _people(user: access.Person, chosen: str) -> Choice:
    known = memberships.known_to(user).filter(is_active=True).order_by("username")
    names = list(known.values_list("username", flat=True)[: MAX_OPTIONS + 1])
    if len(names) > MAX_OPTIONS:
        return Choice("person", "Person", [], chosen, search_address("accounts", "member", "user"))
    return by_name("person", "Person", names if chosen in ("", *names) else [*names, chosen], chosen)


def _line(entry: AuditEntry) -> Line:
    return Line(
        entry=entry,
        mood=_MOODS.get(entry.action, "plain" if entry.action.startswith("signed") else ""),
        kind=_kind(entry.object_type),
        url="" if entry.action == "deleted" else _object_url(entry),
        history_url=_history_url(entry.object_type, entry.object_id) if entry.object_id else "",
        changes=list(_changes(entry.changes)),
    )


def _kind(object_type: str) -> str:
    """What people call rows of this type; its own name when the code knows it no more."""
    try:
        return str(apps.get_model(object_type)._meta.verbose_name)
    except (LookupError, ValueError):
        return object_type


def _object_url(entry: AuditEntry) -> str:
    """Where the object is shown, if it has a page."""
    if entry.object_type == Generation._meta.label_lower:
        return reverse("admin:request", args=[entry.object_name])
    try:
        return reverse(f"admin:{entry.object_type.replace('.', '_')}_change", args=[quote(entry.object_id)])
    except NoReverseMatch:
        return ""


def _history_url(object_type: str, object_id: str) -> str:
    return address("audit", {"type": object_type, "object": object_id})


def _changes(changes: dict[str, list[Any]]) -> Iterator[Change]:
    for name, (before, after) in changes.items():
        label = name.removesuffix("_nanodollars").replace("_", " ")
        is_money = name.endswith("_nanodollars")
        yield Change(label, _written(before, is_money), _written(after, is_money))


def _written(value: Any, is_money: bool) -> str:
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return usd(value) if is_money else f"{value:,}"
        case list():
            return ", ".join(str(each) for each in value) or "–"
        case _:
            return str(value)


def _answer(request: HttpRequest, context: dict[str, Any], status: int = 200) -> HttpResponse:
    return TemplateResponse(
        request, "usage/audit.html", admin.site.each_context(request) | context, status=status
    )
