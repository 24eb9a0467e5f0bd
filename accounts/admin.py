"""The operator's pages about who may call: rate limits here; organizations, projects and people in modules of their own.

The pages about API keys need the catalog and the books too, so they are in `chatapi/pages/key_admin.py`.
"""

from django.contrib import admin
from unfold.admin import ModelAdmin
from unfold.decorators import display

from accounts.models import RateLimit
from accounts.pages import organization_admin  # noqa: F401  registers its pages
from accounts.pages.tenant_admin import TenantAdmin


@admin.register(RateLimit)
class RateLimitAdmin(TenantAdmin, ModelAdmin):
    """How much may be asked for; without a row here there is no limit. A change holds within a second."""

    nothing_yet = "Everyone may ask as often as they like."
    list_display = ["owner", "scope", "served_model", *RateLimit.NUMBERS]
    list_select_related = ["organization", "project__organization", "api_key"]
    search_fields = ["organization__name", "project__name", "api_key__name", "api_key__public", "model"]
    autocomplete_fields = ["organization", "project", "api_key"]
    show_full_result_count = False
    fieldsets = [
        ("Applies to one of these", {"fields": ["organization", "project", "api_key"]}),
        ("And to", {"fields": ["model"]}),
        ("Limits", {"fields": [*RateLimit.NUMBERS], "description": "Empty: no limit. 0: nothing may pass."}),
    ]

    operators_fields = ("organization",)

    def is_operators(self, row: RateLimit) -> bool:
        """What an organization may have at most is not its own to say."""
        return row.organization_id is not None

    @display(description="Applies to")
    def owner(self, row: RateLimit) -> str:
        """The name of what is limited."""
        return str(row.owner)

    @display(description="Scope")
    def scope(self, row: RateLimit) -> str:
        """What kind of thing that is."""
        return row.scope

    @display(description="Model", ordering="model")
    def served_model(self, row: RateLimit) -> str:
        """Which model, or all."""
        return row.model or "all"
