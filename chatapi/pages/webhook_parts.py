"""The shared parts of the pages about webhook endpoints in the console and in the admin: the form, the state
in words, the delivery log, and sending again.
"""

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest

from accounts.pages.admin_mixins import OwnChangesForm
from chatapi.notifications import backlog, queue, webhooks
from chatapi.notifications.models import Delivery, DeliveryAttempt, WebhookEndpoint
from usage.database.clock import database_now
from usage.models import TENANTS_KINDS, EventKind
from usage.pages.filters import newest_first


def url_field(widget: Any) -> forms.CharField:
    return forms.CharField(
        label="URL",
        widget=widget,
        help_text="It gets a POST for each event. It must answer with a 2xx status within 15 seconds.",
        validators=[_check_url],
    )


def _check_url(url: str) -> None:
    """Raise `ValidationError` for a URL to which no message would be sent."""
    if mistake := webhooks.url_mistake(url):
        raise ValidationError(mistake)


def kinds_field(kinds: Iterable[EventKind], widget: Any) -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(
        choices=[(kind.value, f"{kind.label} ({kind.value})") for kind in kinds],
        required=False,
        widget=widget,
        help_text="Leave empty to send all kinds, and those of later releases.",
    )


class EndpointForm(OwnChangesForm):
    """The URL of an organization's endpoint, and the kinds of events that it gets."""

    url = url_field(forms.URLInput({"placeholder": "https://example.com/webhooks", "autocomplete": "off"}))
    kinds = kinds_field(TENANTS_KINDS, forms.CheckboxSelectMultiple)

    class Meta:
        model = WebhookEndpoint
        fields = ["url", "kinds"]


def state(row: Any) -> tuple[str, str]:
    """Return the state in words, and its colour, of an endpoint that is annotated with `newest_state`."""
    if not row.is_enabled:
        return "disabled", "plain"
    if row.newest_state in backlog.NOT_ARRIVED:
        return "failing", "bad"
    return ("working", "good") if row.newest_state else ("nothing sent yet", "plain")


def log_page(
    request: HttpRequest, endpoint: WebhookEndpoint, size: int, url: Callable[..., str]
) -> tuple[list[tuple[Delivery, list[DeliveryAttempt]]], dict[str, str]]:
    """Return `size` deliveries of the endpoint, each with its attempts, newest first, and the links to other
    pages; `url` makes their URLs.
    """
    rows = Delivery.objects.filter(endpoint=endpoint).select_related("event").prefetch_related("log")
    found, links = newest_first(request, rows, size, url)
    return [(each, sorted(each.log.all(), key=lambda attempt: -attempt.pk)) for each in found], links


def rotate(request: HttpRequest, endpoint: WebhookEndpoint) -> str | None:
    """Return a new secret of the endpoint; None, with a message, if the form is out of date."""
    secret = webhooks.rotate(endpoint, database_now(), request.POST.get("secret_id", ""))
    if secret is None:
        messages.error(
            request,
            "Nothing was changed: since this form was opened, the secret was rotated. If you rotated it "
            "yourself and saw no new one, rotate it again.",
        )
    return secret


def send_test(request: HttpRequest, endpoint: WebhookEndpoint) -> None:
    """Queue a test event for the endpoint, and add a message."""
    if queue.send_test(database_now(), endpoint) is None:
        messages.error(request, "A test event is waiting already.")
    else:
        messages.success(request, "A test event is on its way. Load this page again in a few seconds.")


def replay(request: HttpRequest, endpoint: WebhookEndpoint, delivery_id: int) -> None:
    """Queue a delivery to the endpoint again, and add a message; raises `Http404` if there is none."""
    delivery = Delivery.objects.filter(endpoint=endpoint, pk=delivery_id).first()
    if delivery is None:
        raise Http404("There is no such delivery.")
    queue.replay(database_now(), delivery)
    messages.success(request, "The event is on its way again, with the same id.")
