"""The operator's pages of events: their list, and the kinds of which the operator wants mail."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_http_methods
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from accounts.pages.admin_mixins import ReadOnlyAdmin
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.notifications.dispatch import gets_mail, prefer, preferences
from usage.models import OPERATORS_KINDS, Event
from usage.notifications import texts


@admin.register(Event)
class EventAdmin(TenantAdmin, ReadOnlyAdmin):
    """Events of the service, which have no organization, and of organizations; newest first."""

    nothing_yet = "Nothing has happened yet."
    fields = ("created_at", "kind", "organization", "what", "subject", "period", "threshold", "dispatched_at")
    readonly_fields = ("what",)
    list_display = ("created_at", "kind", "organization", "what")
    list_filter = ("kind", "organization")
    list_select_related = ("organization",)
    ordering = ("-created_at", "-id")
    paginator = InfinitePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    @display(description="What")
    def what(self, row: Event) -> str:
        return texts.sentence(row)


class MailForm(forms.Form):
    """The kinds of which the operator wants mail."""

    kinds = forms.MultipleChoiceField(
        label="Mail me",
        choices=[(kind.value, f"{kind.label}: {texts.MEANINGS[kind]}") for kind in OPERATORS_KINDS],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )


@require_http_methods(["GET", "HEAD", "POST"])
def mail_page(request: HttpRequest) -> HttpResponse:
    """Show the kinds of events of the service; store of which the operator wants mail."""
    person: Any = request.user
    # Only superusers get it: others of the staff may see no money.
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
