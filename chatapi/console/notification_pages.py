"""Notifications: the organization's events, the person's choice of mail, and the limit of low credit."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from accounts import access
from chatapi.console.tenancy import Console, page, permission_of, render
from chatapi.notifications import event_links
from chatapi.notifications.dispatch import gets_mail, prefer, preferences
from chatapi.notifications.models import Delivery
from usage.books import credit
from usage.models import CHOSEN_KINDS, TENANTS_KINDS, Credit, Event, EventKind
from usage.notifications import texts
from usage.pages.filters import Chip, choice_field
from usage.pages.forms import USDField

PAGE = 50
PERMISSION = "usage.view_event"
SET_LOW_CREDIT = "usage.change_budgetlimit"
_KINDS = {kind.value: kind.label for kind in TENANTS_KINDS}


class EventFilterForm(forms.Form):
    """The GET form of the events; `before` is the event where the page begins."""

    kind = choice_field("Kind", _KINDS)
    before = forms.UUIDField(required=False, widget=forms.HiddenInput)


class MailForm(forms.Form):
    """The kinds of events that are mailed to the person."""

    kinds = forms.MultipleChoiceField(
        label="Mail me",
        choices=[(kind.value, kind.label) for kind in CHOSEN_KINDS],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )


class LowCreditForm(forms.Form):
    """The balance below which credit is low."""

    low_credit = USDField(
        label="Warn below (USD)",
        widget=forms.TextInput,
        required=False,
        help_text="Empty: a tenth of the last grant. 0: never.",
    )


@require_http_methods(["GET", "HEAD", "POST"])
@page(PERMISSION)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the events that match the URL's filters; store which kinds are mailed to the person."""
    mail = _mail_form(console, request.POST or None)
    if request.method == "POST" and mail is not None and mail.is_valid():
        prefer(
            console.person,
            console.organization,
            {kind: str(kind) in mail.cleaned_data["kinds"] for kind in CHOSEN_KINDS},
        )
        messages.success(request, "Your choice is saved.")
        return redirect(console.url("notifications"))
    return _show(request, console, mail, _low_credit_form(console))


def _show(
    request: HttpRequest, console: Console, mail: MailForm | None, low_credit: LowCreditForm | None
) -> HttpResponse:
    form = EventFilterForm(request.GET)
    context: dict[str, Any] = {"title": "Notifications", "clear_url": console.url("notifications")}
    if not form.is_valid():
        mistake = "; ".join(f"{name}: {errors[0]}" for name, errors in form.errors.items())
        return render(request, console, "notifications.html", context | {"mistake": mistake}, 400)
    context |= _events(console, form) | {
        "filter": form,
        "meanings": [(kind.label, kind.value, texts.MEANINGS[kind]) for kind in TENANTS_KINDS],
        "mail": mail,
        "sends_mail": settings.SENDS_EMAIL,
        "has_address": gets_mail(console.person),
        "webhooks_url": console.url("webhooks") if console.may("chatapi.view_webhookendpoint") else "",
        "low_credit": low_credit if console.may(SET_LOW_CREDIT) else None,
    }
    is_wrong = any(sent is not None and sent.errors for sent in (mail, low_credit))
    return render(request, console, "notifications.html", context, 400 if is_wrong else 200)


def _events(console: Console, form: EventFilterForm) -> dict[str, Any]:
    kind, before = form.cleaned_data["kind"], form.cleaned_data["before"]
    rows = console.rows(Event.objects.exclude(kind=EventKind.TEST)).select_related("organization")
    if kind:
        rows = rows.filter(kind=kind)
    found = list(_before(rows, before).order_by("-created_at", "-id")[: PAGE + 1])
    sent = _sent(found[:PAGE])
    return {
        "events": [
            (event, own_sentence(console, event), _url(console, event), sent.get(event.pk, []))
            for event in found[:PAGE]
        ],
        "chips": [Chip(f"kind: {_KINDS[kind]}", console.url("notifications"))] if kind else [],
        "older_url": console.url("notifications", kind=kind, before=found[PAGE - 1].pk)
        if len(found) > PAGE
        else "",
        "newest_url": console.url("notifications", kind=kind) if before else "",
    }


def own_sentence(console: Console, event: Event) -> str:
    """Return the event's sentence; names of projects and keys leave the organization out."""
    return texts.sentence(event).replace(f"{console.organization} / ", "", 1)


def _url(console: Console, event: Event) -> str:
    """Return the URL of the page about the event's subject; empty if the person may open none."""
    url = event_links.path(event)
    is_hidden = event.kind == EventKind.CREDIT and not console.shows_credit
    return url if url and not is_hidden and console.may(permission_of(url)) else ""


def _before(rows: QuerySet[Event], before: UUID | None) -> QuerySet[Event]:
    """Return the rows that are older than this event; all rows if it is None, or was deleted."""
    start = rows.filter(pk=before).values_list("created_at", flat=True).first() if before else None
    if start is None:
        return rows
    return rows.filter(Q(created_at__lt=start) | Q(created_at=start, pk__lt=before))


def _sent(events: Sequence[Event]) -> dict[UUID, list[tuple[str, str]]]:
    """Return the numbers of each event's deliveries, by the event's id, as texts such as "2 webhooks failed",
    each with its colour.
    """
    counts: dict[UUID, Counter[tuple[str, str]]] = {}
    rows = Delivery.objects.filter(event__in=[event.pk for event in events])
    for event_id, endpoint_id, state in rows.values_list("event", "endpoint", "state"):
        kind = "mail" if endpoint_id is None else "webhook"
        counts.setdefault(event_id, Counter())[kind, state] += 1
    return {
        event_id: [
            (f"{number} {kind}{'s' if number > 1 else ''}{_STATES[state][0]}", _STATES[state][1])
            for (kind, state), number in sorted(of_event.items())
        ]
        for event_id, of_event in counts.items()
    }


_STATES: dict[str, tuple[str, str]] = {
    Delivery.State.DELIVERED: ("", "plain"),
    Delivery.State.DUE: (" not yet", "warn"),
    Delivery.State.FAILED: (" failed", "bad"),
}


def _mail_form(console: Console, data: Any = None) -> MailForm | None:
    """Return the form if the person is a member: only members get mail."""
    if not access.is_of_whole(console.person, console.organization.pk):
        return None
    wanted = preferences(console.person, console.organization)
    return MailForm(data, initial={"kinds": [kind for kind in wanted if wanted[kind]]})


def _low_credit_form(console: Console, data: Any = None) -> LowCreditForm | None:
    """Return the form if the organization has credit."""
    row = Credit.objects.filter(organization=console.organization).first()
    if row is None:
        return None
    return LowCreditForm(data, initial={"low_credit": row.low_credit_nanodollars})


@require_http_methods(["GET", "HEAD", "POST"])
@page(SET_LOW_CREDIT)
def set_low_credit(request: HttpRequest, console: Console) -> HttpResponse:
    """Store the balance below which credit is low."""
    if not console.may(PERMISSION):  # a refused form is shown among the notifications
        raise PermissionDenied
    if request.method != "POST":  # A sign-in or a conflict redirects here, the URL of a refused form.
        return redirect(console.url("notifications"))
    form = _low_credit_form(console, request.POST)
    if form is None:
        messages.error(request, "There is no credit yet.")
    elif form.is_valid():
        credit.set_low(console.organization, form.cleaned_data["low_credit"])
        messages.success(request, "Saved. It holds for the next requests.")
    else:
        return _show(request, console, _mail_form(console), form)
    return redirect(console.url("notifications"))
