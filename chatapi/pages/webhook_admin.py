"""The operator's pages of the service's own webhook endpoints, which get only events of the service."""

from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_POST
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts import access
from accounts.pages.admin_mixins import ListAdmin, OwnChangesForm
from accounts.pages.admin_site import CONFLICT, admin_page
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.notifications import backlog, webhooks
from chatapi.notifications.models import WebhookEndpoint
from chatapi.notifications.webhooks import MAX_ENDPOINTS
from chatapi.pages import webhook_parts
from chatapi.pages.webhook_parts import kinds_field, log_page, state, url_field
from usage.models import OPERATORS_KINDS
from usage.notifications import texts

# The deliveries of a page; each may have a long log, and the theme makes the page long already.
PAGE = 10


class ServiceEndpointForm(OwnChangesForm):
    """The URL of an endpoint of the service, and the kinds of events that it gets."""

    url = url_field(UnfoldAdminTextInputWidget)
    kinds = kinds_field(OPERATORS_KINDS, UnfoldAdminCheckboxSelectMultipleWidget)
    is_enabled = forms.BooleanField(
        label="Enabled",
        required=False,
        initial=True,
        widget=UnfoldBooleanSwitchWidget,
        help_text="A disabled endpoint gets no events; those that wait are sent when it is enabled.",
    )

    class Meta:
        model = WebhookEndpoint
        fields = ["url", "kinds", "is_enabled"]

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if self.instance.pk is None and webhooks.is_full(None):
            raise ValidationError(f"The service has at most {MAX_ENDPOINTS} endpoints. Remove one first.")
        return data


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(TenantAdmin, ListAdmin):
    """Endpoints of the service. Those of organizations are in the console only."""

    nothing_yet = "No endpoints yet. One is a URL that gets each event of the service as a signed message."
    form = ServiceEndpointForm
    list_display = ["shown_url", "kinds_shown", "state", "created_at"]
    ordering = ["pk"]
    change_form_outer_after_template = "chatapi/webhook_log.html"

    class Media:
        css = {"all": ["usage/operator.css"]}
        js = ["usage/confirm.js"]

    def role_allows(self, request: HttpRequest, act: str, obj: Any = None) -> bool:
        """Refuse members of organizations: their roles allow this for their own endpoints only."""
        return access.is_operator(request.user) and super().role_allows(request, act, obj)

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookEndpoint]:
        """Return the endpoints of the service, with the state of their newest message."""
        rows: QuerySet[WebhookEndpoint] = super().get_queryset(request).filter(organization=None)
        found: QuerySet[WebhookEndpoint] = backlog.with_newest_state(rows)
        return found

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Add the state and the times of a saved endpoint to the form."""
        known = [] if obj is None else ["state", "created_at"]
        known += ["previous_expires_at"] if obj is not None and obj.previous_expires_at else []
        return [(None, {"fields": [*ServiceEndpointForm.Meta.fields, *known]})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["state", "created_at", "previous_expires_at"]

    @display(description="URL", ordering="url")
    def shown_url(self, row: WebhookEndpoint) -> str:
        return row.url

    @display(description="Kinds")
    def kinds_shown(self, row: WebhookEndpoint) -> str:
        return ", ".join(row.kinds) or "all"

    @display(description="State", label={"working": "success", "failing": "danger", "disabled": "warning"})
    def state(self, row: WebhookEndpoint) -> str:
        return state(row)[0]

    def render_change_form(
        self, request: HttpRequest, context: Any, add: bool = False, **kwargs: Any
    ) -> HttpResponse:
        """Add the delivery log to the page."""
        row: WebhookEndpoint | None = kwargs.get("obj")
        if row is not None:
            found, links = log_page(request, row, PAGE, partial(_url, row))
            deliveries = [(each, texts.sentence(each.event), log) for each, log in found]
            context |= {
                "endpoint": row,
                "secret_id": webhooks.secret_id(row),
                "deliveries": deliveries,
                "may_send": self.has_change_permission(request, row),
                **links,
            }
        response: HttpResponse = super().render_change_form(request, context, add=add, **kwargs)
        return response

    def get_deleted_objects(self, rows: Any, request: HttpRequest) -> Any:
        """Name the endpoints without their logs, which may be long."""
        names = [str(row) for row in rows]
        return names, {str(self.opts.verbose_name_plural): len(names)}, set(), []

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Keep a new endpoint's secret in this request only."""
        if change:
            form.save_changes()
            return
        obj.secret = webhooks.add(obj)
        if obj.secret is None:
            raise BadRequest(CONFLICT)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return _secret_page(request, obj, obj.secret)


def may_see(request: HttpRequest) -> bool:
    """Return whether the sidebar shows the person the link to the endpoints of the service."""
    return bool(_page().has_view_permission(request))


@require_POST
def rotate(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    """Make a new secret, and show it once; messages are also signed with the old one for a day."""
    row = _changeable(request, endpoint_id)
    secret = webhook_parts.rotate(request, row)
    return redirect(_url(row)) if secret is None else _secret_page(request, row, secret)


@require_POST
def send_test(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    row = _changeable(request, endpoint_id)
    webhook_parts.send_test(request, row)
    return redirect(_url(row))


@require_POST
def replay(request: HttpRequest, endpoint_id: int, delivery_id: int) -> HttpResponse:
    """Send an event to the endpoint once more."""
    row = _changeable(request, endpoint_id)
    webhook_parts.replay(request, row, delivery_id)
    return redirect(_url(row))


def _changeable(request: HttpRequest, endpoint_id: int) -> WebhookEndpoint:
    """Return the endpoint of the service, for people who may change it."""
    page = _page()
    if not page.has_change_permission(request):
        raise PermissionDenied
    row: WebhookEndpoint | None = page.get_queryset(request).filter(pk=endpoint_id).first()
    if row is None:
        raise Http404("There is no such webhook endpoint.")
    return row


def _page() -> Any:
    return admin.site.get_model_admin(WebhookEndpoint)


def _url(endpoint: WebhookEndpoint, before: int | None = None) -> str:
    """Return the URL of the endpoint's page."""
    path = reverse("admin:chatapi_webhookendpoint_change", args=[endpoint.pk])
    return path if before is None else f"{path}?before={before}"


def _secret_page(request: HttpRequest, endpoint: WebhookEndpoint, secret: str) -> TemplateResponse:
    """Show the secret in this response; no message, session or cookie contains it."""
    context = {"title": "Secret of the webhook", "endpoint": endpoint, "secret": secret}
    response = admin_page(request, "chatapi/webhook_secret.html", context)
    response.headers["cache-control"] = "no-store"
    return response
