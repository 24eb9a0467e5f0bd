"""Pages about API keys: their list with recent activity; creating, rotating, disabling and revoking them.

They need all three packages: a key belongs to a tenant, its usage is in the books, its models are the
catalog's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.messages import ERROR, SUCCESS
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.views import ChangeList

from accounts import access, keys
from accounts.forwarding import client_ip
from accounts.models import APIKey
from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ChoosesRows, IsSetFilter, ListAdmin
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.pages import key_secrets
from chatapi.pages.key_forms import NOTHING_TO_ROTATE, KeyForm, NewKeyForm
from chatapi.pages.key_panels import may_add, panels, with_maker
from chatapi.pages.key_question import asked_first
from usage import formatting
from usage.insights.keys import key_activity
from usage.pages.columns import amount
from usage.pages.gauges import draw_sparkline

_STATUSES = {
    "active": "success",
    "disabled": "warning",
    "revoked": "danger",
    "expired": "danger",
    "organization inactive": "warning",
    "project archived": "warning",
}
# Pages that were opened before the key was revoked still have its buttons.
_REVOKED = "Nothing was changed: this key is revoked."
# The buttons of a key that is not revoked, each with its condition.
_OFFERED: dict[str, Callable[[APIKey], bool]] = {
    "rotate": lambda row: row.has_secret,
    "end_previous": lambda row: row.has_previous(timezone.now()),
    "disable": lambda row: row.is_active,
    "enable": lambda row: not row.is_active,
    "revoke_one": lambda row: True,
}


class KeyList(ChangeList):
    """A page of the list, with the recent activity of its keys."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        """Read the activity of all keys of the page together."""
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        activity = key_activity(rows, timezone.now())
        for row in rows:
            row.activity = activity[row.pk]
        self.result_list = rows


@admin.register(APIKey)
class APIKeyAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """API keys. A secret is shown once, when it is made.

    Keys are revoked and never deleted, because the ledger names them.
    """

    nothing_yet = "No API keys yet. Clients need one to call the API."
    form = KeyForm
    change_form_outer_before_template = "chatapi/key_activity.html"
    change_form_outer_after_template = "chatapi/key_limits.html"
    list_display = [
        "name", "redacted", "organization", "project_name", "kind", "status", "requests", "spent",
        "last_request",
    ]  # fmt: skip
    number_columns = ("spent",)
    list_filter = [
        "is_test", "is_admin", "is_active", ("revoked_at", IsSetFilter),
        "project__organization",
    ]  # fmt: skip
    list_select_related = ["project__organization"]
    # The public part of a key is not secret, so that it can be searched for.
    search_fields = ["name", "public", "previous_public", "project__name", "project__organization__name"]
    search_help_text = "Search by name, project, organization, or the 12 characters after ck_live_."
    autocomplete_fields = ["project"]
    show_full_result_count = False
    actions = ["disable_selected", "enable_selected", "revoke_selected"]
    actions_detail = ["rotate", "end_previous", "disable", "enable", "revoke_one"]

    class Media:
        css = {"all": ["usage/operator.css", "chatapi/keys.css"]}
        js = ["usage/confirm.js"]

    # ---- who may do what

    def has_delete_permission(self, request: HttpRequest, obj: APIKey | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse admin keys that the person may not make: changing one is as good as making one."""
        if not super().has_change_permission(request, obj):
            return False
        row = None if obj is None else self.row_of(request, obj)
        if row is None or not row.is_admin:
            return True
        return access.may_change_admin_key(request.user, row)

    def has_key_permission(self, request: HttpRequest, object_id: str) -> bool:
        return self._changeable(request, object_id) is not None

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Return the buttons that apply to the key's state."""
        row = self._changeable(request, object_id)
        if row is None or row.revoked_at is not None:
            return []
        offered = [name for name, is_offered in _OFFERED.items() if is_offered(row)]
        return [
            each for each in self._get_base_actions_detail() if each.method.original_function_name in offered
        ]

    def _changeable(self, request: HttpRequest, object_id: str) -> APIKey | None:
        row: APIKey | None = self.row_of(request, object_id)
        return row if row is not None and self.has_change_permission(request, row) else None

    # ---- the list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeyList

    @display(description="Key")
    def redacted(self, row: APIKey) -> str:
        return row.redacted

    @display(description="Organization", ordering=NaturalOrder("project__organization__name"))
    def organization(self, row: APIKey) -> str:
        return row.project.organization.name

    @display(description="Project", ordering=NaturalOrder("project__name"))
    def project_name(self, row: APIKey) -> SafeString:
        return format_html('<span class="cut" title="{0}">{0}</span>', row.project.name)

    @display(
        description="Kind",
        label={
            "live": "info",
            "live, admin": "info",
            "live, access tokens": "info",
            "test": "warning",
            "test, admin": "warning",
        },
    )
    def kind(self, row: APIKey) -> str:
        special = ", admin" if row.is_admin else "" if row.has_secret else ", access tokens"
        return f"{'test' if row.is_test else 'live'}{special}"

    @display(description="Status", label=_STATUSES)
    def status(self, row: APIKey) -> str:
        return keys.status(row, timezone.now())

    @display(description="Requests, 30 days")
    def requests(self, row: Any) -> SafeString:
        bars = draw_sparkline(row.activity.requests_by_day, row.activity.first_day)
        return render_to_string(
            "chatapi/key_requests.html", {"sparkline": bars, "count": formatting.count(row.activity.requests)}
        )

    @display(description="Spent, 30 days")
    def spent(self, row: Any) -> SafeString | str:
        return amount(row.activity.amount_nanodollars)

    @display(description="Last request", empty_value="–")
    def last_request(self, row: Any) -> str | None:
        moment = row.activity.last_request_at
        return None if moment is None else formatting.age(moment, timezone.now())

    # ---- one key

    def get_queryset(self, request: HttpRequest) -> "QuerySet[APIKey]":
        """Return the keys that the person sees; for the page of one, with the entry of its creation."""
        rows: QuerySet[APIKey] = super().get_queryset(request)
        match = request.resolver_match
        return with_maker(rows) if match is not None and "object_id" in match.kwargs else rows

    def get_fieldsets(self, request: HttpRequest, obj: APIKey | None = None) -> list[Any]:
        """Return the fields, without the digests of secrets."""
        may_change = obj is None or self.has_change_permission(request, obj)
        rights = ["scopes", "allowed_models", "allowed_ips"]
        if not may_change:
            rights = [f"{name}_shown" for name in rights]
        if obj is not None or access.may_make_admin_keys(request.user, None):
            rights += ["is_admin", "manages_as"]
        rights += ["default_dialect", "expires_at"]
        if obj is None:
            return [
                (None, {"fields": ["project", "name", "test_key"]}),
                ("Rights", {"fields": rights}),
            ]
        known = ["name", "redacted", "project", "kind", "status", "created_at"]
        known += ["previous_secret"] if obj.has_previous(timezone.now()) else []
        known += ["revoked_at"] if obj.revoked_at else []
        return [(None, {"fields": known}), ("Rights", {"fields": rights})]

    def get_readonly_fields(self, request: HttpRequest, obj: APIKey | None = None) -> list[str]:
        """Return the fields that the person can't edit: for an existing key, all but its name and rights."""
        if obj is None:
            return []
        may_make_admin = access.may_make_admin_keys(request.user, obj.project.organization_id)
        return [
            "redacted", "project", "kind", "status", "created_at", "previous_secret", "revoked_at",
            "scopes_shown", "allowed_models_shown", "allowed_ips_shown",
            *([] if may_make_admin else ["is_admin", "manages_as"]),
        ]  # fmt: skip

    def get_form(
        self, request: HttpRequest, obj: APIKey | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change, **({} if obj else {"form": NewKeyForm}) | kwargs)
        form.person, form.client_ip = request.user, client_ip(request)
        return form

    def render_change_form(
        self, request: HttpRequest, context: Any, add: bool = False, **kwargs: Any
    ) -> HttpResponse:
        """Add the key's activity and its limits to the page."""
        row: APIKey | None = kwargs.get("obj")
        more = panels(row, request.user) if row is not None else {}
        response: HttpResponse = super().render_change_form(request, context | more, add=add, **kwargs)
        return response

    @display(description="Old secret")
    def previous_secret(self, row: APIKey) -> str:
        """Return until when the secret from before the last rotation works."""
        return f"{row.previous_redacted} works until {formatting.moment(row.previous_expires_at)} UTC"

    @display(description="Scopes")
    def scopes_shown(self, row: APIKey) -> str:
        return ", ".join(row.scopes) or "everything"

    @display(description="Allowed models")
    def allowed_models_shown(self, row: APIKey) -> str:
        return ", ".join(row.allowed_models) or "all"

    @display(description="Allowed IP addresses")
    def allowed_ips_shown(self, row: APIKey) -> str:
        return ", ".join(row.allowed_ips) or "all"

    # ---- its secrets

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Keep a new key's secret in this request only."""
        if change:
            form.save_changes()
        else:
            obj.secret = keys.issue(obj)

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        context = self.page_context(request, obj, "API key created") | may_add(obj, request.user)
        return key_secrets.secret_page(request, obj, obj.secret, context)

    @action(description="Rotate", permissions=["key"], icon="autorenew", url_path="rotate")
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form with the end of the current secret; make a new secret, and show it once."""
        row: APIKey = self.get_object(request, object_id)
        if row.revoked_at is not None or not row.has_secret:
            messages.error(request, _REVOKED if row.revoked_at is not None else NOTHING_TO_ROTATE)
            return redirect("admin:accounts_apikey_change", object_id)
        return key_secrets.rotate(request, row, partial(self.page_context, request, row))

    def page_context(self, request: HttpRequest, row: APIKey, title: str) -> dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "row": row,
            "original": row,
        }

    # ---- its life

    @asked_first(
        "End the old secret now?",
        "Requests with the secret from before the rotation fail within a second. This can't be undone.",
        "End it",
        is_final=True,
        description="End old secret",
        icon="timer_off",
        url_path="end-previous",
    )
    def end_previous(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """End the overlap of a rotation now."""
        ended = keys.end_previous_secrets(APIKey.objects.filter(pk=object_id))
        text = "Only the new secret works now." if ended else "There was no old secret."
        return self._done(request, object_id, text)

    @asked_first(
        "Disable this key?",
        "Requests with this key fail within a second, and running ones end, until it is enabled again.",
        "Disable",
        description="Disable",
        icon="pause",
        url_path="disable",
    )
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._switch(request, object_id, is_active=False)

    @asked_first(
        "Enable this key?",
        "It works again at once.",
        "Enable",
        description="Enable",
        icon="play_arrow",
        url_path="enable",
    )
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._switch(request, object_id, is_active=True)

    @asked_first(
        "Revoke this key?",
        "Requests with this key fail within a second. This can't be undone.",
        "Revoke",
        is_final=True,
        description="Revoke",
        icon="block",
        url_path="revoke",
    )
    def revoke_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        keys.revoke(APIKey.objects.filter(pk=object_id))
        return self._done(request, object_id, "The key is revoked.")

    def _switch(self, request: HttpRequest, object_id: str, *, is_active: bool) -> HttpResponse:
        row = APIKey.objects.filter(pk=object_id)
        keys.set_active(row, is_active=is_active)
        if not row.filter(revoked_at=None).exists():
            return self._done(request, object_id, _REVOKED, ERROR)
        return self._done(request, object_id, f"The key is {'enabled' if is_active else 'disabled'}.")

    def _done(self, request: HttpRequest, object_id: str, text: str, level: int = SUCCESS) -> HttpResponse:
        messages.add_message(request, level, text)
        return redirect("admin:accounts_apikey_change", object_id)

    # ---- many keys

    @action(description="Disable selected keys", permissions=["change"])
    def disable_selected(self, request: HttpRequest, rows: QuerySet[APIKey]) -> None:
        count = keys.set_active(self._changeable_rows(request, rows), is_active=False)
        messages.success(request, f"Disabled {_keys(count)}. Their requests fail within a second.")

    @action(description="Enable selected keys", permissions=["change"])
    def enable_selected(self, request: HttpRequest, rows: QuerySet[APIKey]) -> None:
        count = keys.set_active(self._changeable_rows(request, rows), is_active=True)
        messages.success(request, f"Enabled {_keys(count)}.")

    @action(description="Revoke selected keys", permissions=["change"])
    def revoke_selected(self, request: HttpRequest, rows: QuerySet[APIKey]) -> None:
        count = keys.revoke(self._changeable_rows(request, rows))
        messages.success(request, f"Revoked {_keys(count)}. Their requests fail within a second.")

    def _changeable_rows(self, request: HttpRequest, rows: QuerySet[APIKey]) -> QuerySet[APIKey]:
        """Return the rows that the person may change: their roles can differ between organizations."""
        changeable = access.where_may(
            request.user, self.permission("change"), APIKey.objects.filter(pk__in=rows.values("pk"))
        )
        return access.without_others_admin_keys(request.user, changeable)


def _keys(count: int) -> str:
    return f"{count} key{'' if count == 1 else 's'}"
