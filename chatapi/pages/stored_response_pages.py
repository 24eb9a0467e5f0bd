"""The list of stored responses, and the page with the content of one; each reading is audited."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_safe
from unfold.decorators import display
from unfold.paginator import InfinitePaginator

from accounts import access
from accounts.audit import recorder
from accounts.pages.admin_mixins import ListAdmin, ReadOnlyAdmin
from accounts.pages.tenant_admin import TenantAdmin
from chatapi import identity, response_store
from chatapi.models import StoredResponse
from chatapi.pages.theme import link
from chatapi.response_store import Content
from chatapi.wire import deltas
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.responses import stored

READ = "chatapi.read_storedresponse"


@admin.register(StoredResponse)
class StoredResponseAdmin(TenantAdmin, ReadOnlyAdmin, ListAdmin):
    """Stored responses without their content, newest first."""

    nothing_yet = "No responses are stored. A project's page says for how many days it stores them."
    fields = ("response_id", "project", "model", "ended_at", "expires_at", "size_bytes")
    readonly_fields = ("response_id", "expires_at", "content_link")
    list_filter = ("organization", "project", "is_test")
    list_select_related = ("project__organization",)
    ordering = ("-id",)  # UUIDs of version 7 sort by time
    paginator = InfinitePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER

    def get_queryset(self, request: HttpRequest) -> QuerySet[StoredResponse]:
        """Leave the content out."""
        return super().get_queryset(request).defer("content")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Return the columns, with a link to the content for people who may read it."""
        return (*self.fields, "content_link") if request.user.has_perm(READ) else self.fields

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the same columns as on a row's page."""
        return self.get_fields(request)

    @display(description="Id")
    def response_id(self, row: StoredResponse) -> str:
        return str(row)

    @display(description="Expires")
    def expires_at(self, row: StoredResponse) -> str:
        expires = row.ended_at + timedelta(days=row.project.response_days)
        return f"{expires:%Y-%m-%d %H:%M}"

    @display(description="Content")
    def content_link(self, row: StoredResponse) -> str:
        return link(reverse("admin:stored_response_content", args=[row.pk]), "Read", f"Read {row}")


@require_safe
def content_page(request: HttpRequest, response_id: UUID) -> HttpResponse:
    """Show the conversation and the output, to people who may read content."""
    if not request.user.has_perm(READ):
        raise PermissionDenied
    row = access.seen_by(request.user, StoredResponse.objects.filter(pk=response_id)).first()
    if row is None:
        raise Http404("There is no such stored response.")
    if not access.may(request.user, READ, row):
        raise PermissionDenied
    content = response_store.decrypt(row)
    if content is None:
        raise Http404("This response can't be decrypted.")
    recorder.record("read", row)
    context: dict[str, Any] = {"title": "Stored response", "row": row, **_texts(row, content)}
    return TemplateResponse(
        request, "chatapi/stored_response.html", admin.site.each_context(request) | context
    )


def _texts(row: StoredResponse, content: Content) -> dict[str, str]:
    """Return the items of the conversation and those of the output, as indented JSON."""
    state = stored.read_state(content.state)
    folder = stored.queued(Answer(row.pk.hex, identity.created(row.pk), row.model), state)
    for batch in content.batches:
        for delta in deltas.decode(batch):
            folder.add(delta)
    output = msgspec.json.encode(folder.response.output)
    found = {"input": bytes(state.items), "output": output}
    return {name: msgspec.json.format(items, indent=2).decode() for name, items in found.items()}
