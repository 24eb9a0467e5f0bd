"""The admin's list of projects, with what they spent, and the form of one."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.views import ChangeList

from accounts import access, roles
from accounts.models import Project, Role
from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ChoosesRows, ListAdmin
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.pages import spent_column
from chatapi.pages.catalog_forms import ProjectForm
from chatapi.pages.theme import link
from usage.pages.links import page_url


@admin.register(Project)
class ProjectAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """The projects of organizations."""

    form = ProjectForm
    nothing_yet = "No projects yet. A project is a part of an organization with its own API keys."
    change_form_outer_before_template = "chatapi/project_overview.html"
    list_display = ["project_name", "organization", "is_active", "spent", "created_at", "overview"]
    number_columns = ("spent",)
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

    spent = spent_column.COLUMN

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return spent_column.SpentList

    def get_list_display(self, request: HttpRequest) -> list[str]:
        return spent_column.shown_to(request, super().get_list_display(request))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Fix the organization, which the keys and the ledger name.

        Fix `is_active`, too, if the project has an admin key with a role above the person's: the switch would
        end or revive that key.
        """
        if obj is None:
            return []
        own = access.role_in(request.user, obj.organization_id)
        above = [role for role in Role if roles.is_above(role, own)]
        has_key_above = obj.api_keys.filter(is_admin=True, revoked_at=None, manages_as__in=above).exists()
        return ["organization", "is_active"] if has_key_above else ["organization"]

    @display(description="Name", ordering=NaturalOrder("name"))
    def project_name(self, row: Project) -> str:
        return row.name

    @display(description="Overview")
    def overview(self, row: Project) -> SafeString:
        url = page_url("index", {"project": row.pk, "group": "key"})
        return link(url, "Overview", f"Overview of {row.name}")

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        """Save the project, and rename end users if it hashes names from now on."""
        super().save_model(request, obj, form, change)
        form.rename_limited_end_users()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: the ledger names the project, which can be made inactive instead."""
        return False
