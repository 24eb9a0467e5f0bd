"""The page of projects, with their own names for models."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from accounts import access, roles
from accounts.models import Project, Role
from accounts.pages.admin_mixins import ChoosesRows, ListAdmin
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.pages.catalog_forms import ProjectForm


@admin.register(Project)
class ProjectAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """The projects of organizations."""

    form = ProjectForm
    nothing_yet = "No projects yet. A project is a part of an organization with its own API keys."
    list_display = ["name", "organization", "is_active", "created_at"]
    list_filter = ["is_active", "organization"]
    list_select_related = ["organization"]
    search_fields = ["name", "organization__name"]
    autocomplete_fields = ["organization"]
    show_full_result_count = False
    fieldsets = [
        (None, {"fields": ["organization", "name", "is_active"]}),
        ("Models", {"fields": ["models_mode", "listed_models", "model_aliases", "model_fallbacks"]}),
        ("End users and metadata", {"fields": ["counts_end_users", "hashes_end_users", "stores_metadata"]}),
        ("Responses", {"fields": ["stores_responses_days"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Keep the organization, which the keys and the ledger name. Only the role of an admin key, or a
        higher one, may end or revive the key with its project.
        """
        if obj is None:
            return []
        own = access.role_in(request.user, obj.organization_id)
        above = [role for role in Role if roles.is_above(role, own)]
        has_key_above = obj.api_keys.filter(is_admin=True, revoked_at=None, manages_as__in=above).exists()
        return ["organization", "is_active"] if has_key_above else ["organization"]

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        """Save the project, and what follows from its switches."""
        super().save_model(request, obj, form, change)
        form.rename_limited_end_users()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: the ledger names it. It can be made inactive."""
        return False
