"""The audit log's page: who did what and when, with each value before and after; newest first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth.decorators import permission_required
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import BoundField
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_safe

from accounts import access, invitees
from accounts.audit.models import AuditEntry
from accounts.pages.admin_site import admin_page
from usage.formatting import usd
from usage.models import Generation, LedgerEntry
from usage.pages.filters import MAX_OPTIONS, Chip, first_mistake, is_id, offer, text_field, words
from usage.pages.links import page_url

PAGE = 50
PERMISSION = "audit.view_auditentry"
# The columns that the URL's parameters filter.
_FILTERS = {"person": "actor", "type": "object_type", "object": "object_id"}
_LABELS = {"public": "key", "previous_public": "previous key"}
_MOODS = {"deleted": "bad", "failed to sign in": "bad", "created": "good"}


@dataclass(frozen=True, slots=True)
class Change:
    """One value, before and after, as text."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An entry, with links to its object."""

    entry: AuditEntry
    mood: str
    kind: str
    url: str
    history_url: str
    changes: list[Change]


class AuditFilterForm(forms.Form):
    """The GET form of the audit log; `before` is the entry where the page begins."""

    person = text_field("Person")
    type = text_field("Kind")
    object = text_field("Id", type="search")
    before = text_field("Before")

    def __init__(self, query: QueryDict) -> None:
        # A database takes no NUL character, and none is in the log.
        super().__init__({name: str(text).replace("\x00", "") for name, text in query.items()}, auto_id=False)

    def clean_before(self) -> str:
        before = str(self.cleaned_data["before"])
        if before and not is_id(before):
            raise ValidationError(f"{before[:40]!r} is not the number of an entry.")
        return before

    @property
    def query(self) -> dict[str, str]:
        """Return the filters of a valid form that are set."""
        return {name: self.cleaned_data[name] for name in _FILTERS if self.cleaned_data[name]}

    @property
    def shown_fields(self) -> list[BoundField]:
        return [self[name] for name in _FILTERS]

    def page_of(self, rows: "QuerySet[AuditEntry]") -> list[AuditEntry]:
        """Return the newest entries that match, and one more than `PAGE` if there is an older page."""
        rows = rows.filter(**{_FILTERS[name]: value for name, value in self.query.items()})
        before = self.cleaned_data["before"]
        return list((rows.filter(id__lt=int(before)) if before else rows).order_by("-id")[: PAGE + 1])

    def offer_choices(self, user: access.Person, organization_id: int | None = None) -> None:
        """Offer people who may have acted, the kinds of rows that pages change, and the chosen values."""
        names = invitees.names_known_to(user, organization_id)
        people = {name: name for name in names[: MAX_OPTIONS + 1]}
        labels = [page.model._meta.label_lower for page in admin.site._registry.values()]
        kinds = {label: _kind(label) for label in labels}
        for name, options in {"person": people, "type": kinds}.items():
            if chosen := self.cleaned_data[name]:
                options.setdefault(chosen, _kind(chosen) if name == "type" else chosen)
        offer(self.fields["person"], list(people.items()), ("accounts", "member", "user"))
        by_text = sorted(kinds.items(), key=lambda each: each[1])
        self.fields["type"].widget = forms.Select(choices=[("", "any"), *by_text])


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def list_page(request: HttpRequest) -> HttpResponse:
    form = AuditFilterForm(request.GET)
    context: dict[str, Any] = {"title": "Audit log", "clear_url": page_url("audit", {})}
    if not form.is_valid():
        context["mistake"] = first_mistake(form)
        return admin_page(request, "usage/audit.html", context, status=400)
    form.offer_choices(request.user)
    query, before = form.query, form.cleaned_data["before"]
    page = form.page_of(access.seen_by(request.user, AuditEntry.objects.all()))
    context |= {
        "filters": form.shown_fields,
        "shows_ips": access.is_operator(request.user),
        "lines": [
            line(entry, _object_url(entry), _history_url(entry.object_type, entry.object_id))
            for entry in page[:PAGE]
        ],
        "chips": [
            Chip(f"{name}: {value}", page_url("audit", query | {name: ""})) for name, value in query.items()
        ],
        "older_url": page_url("audit", query | {"before": page[PAGE - 1].pk}) if len(page) > PAGE else "",
        "newest_url": page_url("audit", query) if before else "",
    }
    return admin_page(request, "usage/audit.html", context)


@require_safe
def history(request: HttpRequest, app_label: str, model_name: str, object_id: str) -> HttpResponse:
    """Redirect from an object's history, as the theme links to it, to the audit log.

    A ledger entry never changes, so the log has its request instead.
    """
    kind, key = f"{app_label}.{model_name}", unquote(object_id)
    if kind == LedgerEntry._meta.label_lower and is_id(key):
        entry = access.seen_by(
            request.user, LedgerEntry.objects.filter(pk=int(key), generation__isnull=False)
        ).first()
        kind, key = (Generation._meta.label_lower, str(entry.generation_id)) if entry else (kind, key)
    return redirect(_history_url(kind, key))


def line(entry: AuditEntry, url: str, history_url: str) -> AuditLine:
    """Return the entry as its page shows it, with its object's URLs."""
    return AuditLine(
        entry=entry,
        mood=_MOODS.get(entry.action, "plain" if entry.action.startswith("signed") else ""),
        kind=_kind(entry.object_type),
        url="" if entry.action == "deleted" else url,
        history_url=history_url if entry.object_id else "",
        changes=list(_changes(entry.changes)),
    )


def _kind(object_type: str) -> str:
    """Return the name of this type of row; the type itself if the code no longer has it."""
    try:
        return str(apps.get_model(object_type)._meta.verbose_name)
    except (LookupError, ValueError):
        return object_type


def _object_url(entry: AuditEntry) -> str:
    """Return the URL of the object's page, or "" if it has none."""
    if entry.object_type == Generation._meta.label_lower:
        return reverse("admin:request", args=[entry.object_name])
    if entry.object_type == "chatapi.webhookendpoint" and entry.organization_id is not None:
        # The admin has the endpoints of the service only.
        return reverse("console:webhook", args=[entry.organization_id, entry.object_id])
    try:
        return reverse(f"admin:{entry.object_type.replace('.', '_')}_change", args=[quote(entry.object_id)])
    except NoReverseMatch:
        return ""


def _history_url(object_type: str, object_id: str) -> str:
    return page_url("audit", {"type": object_type, "object": object_id})


def _changes(changes: dict[str, list[Any]]) -> Iterator[Change]:
    for name, (before, after) in changes.items():
        is_money = name.endswith("_nanodollars")
        label = _LABELS.get(name) or words(name.removesuffix("_nanodollars"))
        yield Change(label, _text(before, is_money), _text(after, is_money))


def _text(value: Any, is_money: bool) -> str:
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
