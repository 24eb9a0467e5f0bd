"""Admin pages about rate limits of organizations, projects and keys."""

from typing import Any

from django import forms
from django.contrib import admin
from django.utils.text import capfirst
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.models import RateLimit
from accounts.pages.admin_mixins import ChoosesRows, ConstrainedForm, ListAdmin, OwnChangesForm
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.pages.key_forms import model_choices
from usage.pages.filters import words
from usage.pages.forms import EACH, END_USERS, end_user_field, named_end_user


class RateLimitForm(OwnChangesForm, ConstrainedForm):
    """A limit. Its model is chosen from a list: a limit of an unknown model would limit nothing."""

    end_user_name = end_user_field()

    model = forms.ChoiceField(
        required=False, widget=UnfoldAdminSelectWidget, help_text="All models share one limit."
    )

    class Meta:
        model = RateLimit
        fields = ["organization", "project", "api_key", "each_end_user", "model", *RateLimit.NUMBERS]
        help_texts = {"each_end_user": EACH}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields.get("model")
        # People who may only view have no fields.
        if field is not None:
            known = model_choices([self.instance.model] if self.instance.model else [])
            field.choices = [("", "All models"), *known]

    def clean(self) -> dict[str, Any]:
        """Replace the project by its end user, if one is named."""
        data = self.cleaned_data
        project = data.get("project")
        if person := named_end_user(project, data.get("end_user_name"), is_each=data.get("each_end_user")):
            self.instance.end_user, self.instance.project, data["project"] = person, None, None
        return data

    def changed_columns(self) -> set[str]:
        """Add the owner that the name of an end user chooses."""
        named = {"end_user", "project"} if "end_user_name" in self.changed_data else set()
        return super().changed_columns() | named


def _number(name: str) -> Any:
    """Return a column of the limit of this name; its own name is the column's for style sheets."""

    @display(description=capfirst(words(name)), ordering=name)
    def column(row: RateLimit) -> str | None:
        number: int | None = getattr(row, name)
        return None if number is None else f"{number:,}"

    column.__name__ = name
    return column


_NUMBERS = [*map(_number, RateLimit.NUMBERS)]


@admin.register(RateLimit)
class RateLimitAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """Rate limits; without a row here there is no limit. A change takes effect within a second."""

    form = RateLimitForm
    nothing_yet = "No rate limits."
    list_display = ["owner", "scope", "served_model", *_NUMBERS]
    number_columns = _NUMBERS
    list_select_related = [
        "organization",
        "project__organization",
        "api_key__project__organization",
        "end_user__project__organization",
    ]
    search_fields = ["organization__name", "project__name", "api_key__name", "api_key__public", "model"]
    autocomplete_fields = ["organization", "project", "api_key"]
    show_full_result_count = False
    fieldsets = [
        ("Who (choose one)", {"fields": ["organization", "project", "api_key"]}),
        ("End users", {"fields": ["each_end_user", "end_user_name"], "description": END_USERS}),
        ("Model", {"fields": ["model"]}),
        ("Limits", {"fields": [*RateLimit.NUMBERS], "description": "Empty: no limit. 0 blocks everything."}),
    ]

    operators_fields = ("organization",)

    def is_operators(self, row: RateLimit) -> bool:
        """Return whether it limits an organization: its members can't change it."""
        return row.organization_id is not None

    @display(description="Applies to")
    def owner(self, row: RateLimit) -> str:
        return f"{row.api_key.project} / {row.api_key}" if row.api_key else str(row.owner)

    @display(description="Scope")
    def scope(self, row: RateLimit) -> str:
        return f"each end user of the {row.scope}" if row.each_end_user else words(row.scope)

    @display(description="Model", ordering="model")
    def served_model(self, row: RateLimit) -> str:
        return row.model or "all"
