"""Webhooks: the organization's endpoints, their secrets and delivery logs, and sending an event again."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from chatapi.console.notification_pages import own_sentence
from chatapi.console.tenancy import Console, page, render
from chatapi.notifications import backlog, webhooks
from chatapi.notifications.models import WebhookEndpoint
from chatapi.notifications.webhooks import MAX_ENDPOINTS
from chatapi.pages import webhook_parts
from chatapi.pages.webhook_parts import EndpointForm, log_page, state

PAGE = 25
_VIEW, _ADD = "chatapi.view_webhookendpoint", "chatapi.add_webhookendpoint"
_CHANGE, _DELETE = "chatapi.change_webhookendpoint", "chatapi.delete_webhookendpoint"


@require_safe
@page(_VIEW)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show all endpoints with their states."""
    found = [(row, *state(row)) for row in backlog.with_newest_state(_endpoints(console))]
    may_add = console.may(_ADD) and len(found) < MAX_ENDPOINTS
    context = {
        "title": "Webhooks",
        "endpoints": found,
        "most": MAX_ENDPOINTS,
        "new_url": console.url("new_webhook") if may_add else "",
    }
    return render(request, console, "webhooks.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page(_ADD)
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new endpoint; add it, and show its secret once."""
    form = EndpointForm(request.POST or None)
    if form.is_valid():
        form.instance.organization = console.organization
        secret = webhooks.add(form.instance)
        if secret is not None:
            return _secret_page(request, console, form.instance, secret)
        form.add_error(None, f"An organization has at most {MAX_ENDPOINTS} endpoints. Remove one first.")
    context = {
        "title": "New webhook",
        "form": form,
        "submit": "Add the webhook",
        "back": console.url("webhooks"),
    }
    return render(request, console, "webhook_form.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page(_VIEW)
def endpoint_page(request: HttpRequest, console: Console, endpoint_id: int) -> HttpResponse:
    """Show an endpoint with its delivery log; change its URL and kinds."""
    row = _endpoint(console, endpoint_id)
    form = EndpointForm(request.POST or None, instance=row) if console.may(_CHANGE) else None
    if form is not None and form.is_valid():
        form.save_changes()
        messages.success(request, "The endpoint is saved.")
        return redirect(console.url("webhook", row.pk))
    found, links = log_page(request, row, PAGE, partial(console.url, "webhook", row.pk))
    endpoint = backlog.with_newest_state(_endpoints(console)).get(pk=row.pk)  # without a URL that was refused
    words, mood = state(endpoint)
    context = {
        "title": "Webhook",
        "endpoint": endpoint,
        "secret_id": webhooks.secret_id(endpoint),
        "state": words,
        "mood": mood,
        "form": form,
        "deliveries": [(each, own_sentence(console, each.event), log) for each, log in found],
        **links,
    }
    return render(request, console, "webhook.html", context, 400 if form and form.errors else 200)


@require_POST
@page(_CHANGE)
def rotate(request: HttpRequest, console: Console, endpoint_id: int) -> HttpResponse:
    """Make a new secret, and show it once; messages are also signed with the old one for a day."""
    row = _endpoint(console, endpoint_id)
    secret = webhook_parts.rotate(request, row)
    if secret is None:
        return redirect(console.url("webhook", row.pk))
    return _secret_page(request, console, row, secret)


@require_POST
@page(_CHANGE)
def switch(request: HttpRequest, console: Console, endpoint_id: int) -> HttpResponse:
    """Disable an endpoint, or enable it again."""
    row = _endpoint(console, endpoint_id)
    # The form names the new state, so that a second press of its button changes nothing.
    row.is_enabled = request.POST.get("is_enabled") == "yes"
    row.save(update_fields=["is_enabled"])
    messages.success(request, f"The endpoint is {'enabled' if row.is_enabled else 'disabled'}.")
    return redirect(console.url("webhook", row.pk))


@require_POST
@page(_CHANGE)
def send_test(request: HttpRequest, console: Console, endpoint_id: int) -> HttpResponse:
    row = _endpoint(console, endpoint_id)
    webhook_parts.send_test(request, row)
    return redirect(console.url("webhook", row.pk))


@require_POST
@page(_DELETE)
def remove(request: HttpRequest, console: Console, endpoint_id: int) -> HttpResponse:
    _endpoint(console, endpoint_id).delete()
    messages.success(request, "The endpoint is removed.")
    return redirect(console.url("webhooks"))


@require_POST
@page(_CHANGE)
def replay(request: HttpRequest, console: Console, endpoint_id: int, delivery_id: int) -> HttpResponse:
    """Send an event to the endpoint once more."""
    row = _endpoint(console, endpoint_id)
    webhook_parts.replay(request, row, delivery_id)
    return redirect(console.url("webhook", row.pk))


def _secret_page(
    request: HttpRequest, console: Console, endpoint: WebhookEndpoint, secret: str
) -> HttpResponse:
    context = {"title": "Secret of the webhook", "endpoint": endpoint, "secret": secret}
    return render(request, console, "webhook_secret.html", context)


def _endpoints(console: Console) -> Any:
    return console.rows(WebhookEndpoint.objects.all())


def _endpoint(console: Console, endpoint_id: int) -> WebhookEndpoint:
    row: WebhookEndpoint | None = _endpoints(console).filter(pk=endpoint_id).first()
    if row is None:
        raise Http404("There is no such webhook.")
    return row
