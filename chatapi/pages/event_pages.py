"""The operator's pages of events: their list, and the kinds that are mailed to the operator."""

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from accounts.pages.admin_mixins import ListAdmin, ReadOnlyAdmin
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.notifications.dispatch import gets_mail, prefer, preferences
from chatapi.notifications.models import Delivery, DeliveryAttempt
from chatapi.notifications.queue import KEEP_LOG
from usage.models import OPERATORS_KINDS, Event
from usage.notifications import texts

# The most deliveries that an event's page shows.
MAX_SHOWN = 50
_STATES = {
    Delivery.State.FAILED: "failed",
    Delivery.State.DUE: "not yet",
    Delivery.State.DELIVERED: "delivered",
}


@admin.register(Event)
class EventAdmin(TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """Events of the service, which have no organization, and of organizations; newest first."""

    nothing_yet = "Nothing has happened yet."
    fields = (
        "created_at", "kind", "organization", "what", "subject", "period", "threshold", "dispatched_at",
        "deliveries",
    )  # fmt: skip
    readonly_fields = ("what", "deliveries")
    # Members see the deliveries of their organization in the console, as far as their role allows.
    operators_fields = ("deliveries",)
    list_display = ("created_at", "kind", "organization", "what", "sent")
    list_filter = ("kind", "organization")
    list_select_related = ("organization",)
    ordering = ("-created_at", "-id")
    paginator = InfinitePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    @display(description="What")
    def what(self, row: Event) -> str:
        return texts.sentence(row)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Event]:
        """Add the numbers of deliveries in each state."""
        own = Delivery.objects.filter(event=OuterRef("pk")).order_by().values("event")
        number = own.annotate(number=Count("pk")).values("number")
        numbers = {f"{state}_deliveries": Subquery(number.filter(state=state)) for state in _STATES}
        rows: QuerySet[Event] = super().get_queryset(request).annotate(**numbers)
        return rows

    @display(description="Sent")
    def sent(self, row: Any) -> str:
        if row.dispatched_at is None:
            return "not yet"
        numbers = {word: getattr(row, f"{state}_deliveries") for state, word in _STATES.items()}
        is_kept = row.dispatched_at > timezone.now() - KEEP_LOG
        nothing = "to nobody" if is_kept else "no longer known"
        return ", ".join(f"{number} {word}" for word, number in numbers.items() if number) or nothing

    @display(description="Sent to")
    def deliveries(self, row: Event) -> str:
        rows = list(_deliveries(row)[: MAX_SHOWN + 1])
        context = {
            "event": row,
            "deliveries": [(_receiver(each), each) for each in rows[:MAX_SHOWN]],
            "has_more": len(rows) > MAX_SHOWN,
        }
        return render_to_string("chatapi/event_deliveries.html", context)


def _deliveries(event: Event) -> Any:
    """Return the event's deliveries with their last attempt, those that have not arrived first."""
    log = DeliveryAttempt.objects.filter(delivery=OuterRef("pk")).order_by("-pk")
    last = {f"last_{name}": Subquery(log.values(name)[:1]) for name in ("at", "status", "error")}
    rows = Delivery.objects.filter(event=event).select_related("endpoint", "user").annotate(**last)
    # By name, "failed" and "due" come after "delivered".
    return rows.order_by("-state", "pk")


def _receiver(delivery: Delivery) -> str:
    """Return the receiver as text. A URL is cut to its host: the rest may be a secret of the organization."""
    if delivery.endpoint is not None:
        return f"webhook at {urlsplit(delivery.endpoint.url).hostname}"
    assert delivery.user is not None
    return f"mail to {delivery.user.get_username()} ({delivery.user.email or 'no address'})"


class MailForm(forms.Form):
    """The kinds of events that are mailed to the operator."""

    kinds = forms.MultipleChoiceField(
        label="Mail me",
        choices=[(kind.value, f"{kind.label}: {texts.MEANINGS[kind]}") for kind in OPERATORS_KINDS],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )


@require_http_methods(["GET", "HEAD", "POST"])
def mail_page(request: HttpRequest) -> HttpResponse:
    """Show the kinds of events of the service; store which of them are mailed to the operator."""
    person: Any = request.user
    # Only superusers get this mail: other staff may not be allowed to see amounts of money.
    if not person.is_superuser:
        raise PermissionDenied
    wanted = preferences(person, None)
    form = MailForm(request.POST or None, initial={"kinds": [kind for kind in wanted if wanted[kind]]})
    if request.method == "POST" and form.is_valid():
        prefer(person, None, {kind: kind in form.cleaned_data["kinds"] for kind in wanted})
        messages.success(request, "Your choice is saved.")
        return redirect("admin:mail")
    context = {
        "title": "Mail",
        "form": form,
        "sends_mail": settings.SENDS_EMAIL,
        "has_address": gets_mail(person),
    }
    return TemplateResponse(request, "chatapi/mail.html", admin.site.each_context(request) | context)
