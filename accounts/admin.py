"""The operator's pages about who may call: organizations, projects, members, API keys, and the people of this admin."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldBooleanSwitchWidget

from accounts import keys
from accounts.models import APIKey, Member, Organization, Project, RateLimit

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """People, in the theme's forms."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):
    """What groups of people may do in this admin."""


class MemberInline(TabularInline):
    """An organization's people."""

    model = Member
    extra = 0
    autocomplete_fields = ["user"]


class ProjectInline(TabularInline):
    """An organization's projects."""

    model = Project
    extra = 0
    show_change_link = True
    can_delete = False


@admin.register(Organization)
class OrganizationAdmin(ModelAdmin):
    """The tenants."""

    list_display = ["name", "time_zone", "is_active", "projects_count", "members_count", "created_at"]
    list_filter = ["is_active"]
    search_fields = ["name"]
    show_full_result_count = False
    inlines = [ProjectInline, MemberInline]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: the ledger speaks of it. It can be made inactive."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        """With the counts, so that a list costs one query."""
        counts = {"projects_counted": Count("projects", distinct=True), "members_counted": Count("members", distinct=True)}
        rows: QuerySet[Organization] = super().get_queryset(request).annotate(**counts)
        return rows

    @display(description="Projects", ordering="projects_counted")
    def projects_count(self, row: Any) -> int:
        """How many projects it has."""
        return int(row.projects_counted)

    @display(description="Members", ordering="members_counted")
    def members_count(self, row: Any) -> int:
        """How many members it has."""
        return int(row.members_counted)


@admin.register(Project)
class ProjectAdmin(ModelAdmin):
    """The organizations' parts."""

    list_display = ["name", "organization", "is_active", "created_at"]
    list_filter = ["is_active", "organization"]
    list_select_related = ["organization"]
    search_fields = ["name", "organization__name"]
    autocomplete_fields = ["organization"]
    show_full_result_count = False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: the ledger speaks of it. It can be made inactive."""
        return False


@admin.register(Member)
class MemberAdmin(ModelAdmin):
    """Who belongs to which organization."""

    list_display = ["user", "organization", "role", "created_at"]
    list_filter = ["role", "organization"]
    list_select_related = ["user", "organization"]
    search_fields = ["user__username", "user__email", "organization__name"]
    autocomplete_fields = ["user", "organization"]
    show_full_result_count = False


class NewKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A key to be: its kind can be chosen now and never again."""

    test_key = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Reaches only the sandbox engine and costs nothing.",
    )

    class Meta:
        model = APIKey
        fields = ["project", "name", "is_admin", "default_dialect", "expires_at"]


@admin.register(APIKey)
class APIKeyAdmin(ModelAdmin):
    """API keys. The secret is shown once, as the answer to its creation; keys are revoked and never deleted."""

    list_display = ["name", "redacted", "organization", "project_name", "kind", "status", "created_at"]
    list_filter = ["is_test", "is_admin", ("revoked_at", admin.EmptyFieldListFilter), "project__organization"]
    list_select_related = ["project__organization"]
    search_fields = ["name", "public", "project__name", "project__organization__name"]
    search_help_text = "Search by name, project, organization, or the 12 characters after ck_live_."
    autocomplete_fields = ["project"]
    show_full_result_count = False
    actions = ["revoke_selected"]
    actions_detail = ["revoke_one"]

    def get_form(
        self, request: HttpRequest, obj: APIKey | None = None, change: bool = False, **kwargs: Any
    ) -> "type[forms.ModelForm[APIKey]]":
        """A new key also has a kind."""
        form: type[forms.ModelForm[APIKey]] = super().get_form(request, obj, change, **({} if obj else {"form": NewKeyForm}) | kwargs)
        return form

    def get_fields(self, request: HttpRequest, obj: APIKey | None = None) -> list[str]:
        """What is asked for, or shown; never the digest."""
        if obj is None:
            return ["project", "name", "test_key", "is_admin", "default_dialect", "expires_at"]
        return ["name", "redacted", "project", "kind", "status", "is_admin", "default_dialect", "expires_at", "revoked_at", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: APIKey | None = None) -> list[str]:
        """What a key is stays; what it may do can change."""
        return ["redacted", "project", "kind", "status", "revoked_at", "created_at"] if obj else []

    def has_delete_permission(self, request: HttpRequest, obj: APIKey | None = None) -> bool:
        """Never: the ledger speaks of it."""
        return False

    def has_revoke_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Whoever may change keys, while there is something to revoke."""
        return bool(self.has_change_permission(request)) and APIKey.objects.filter(pk=object_id, revoked_at=None).exists()

    def save_model(self, request: HttpRequest, obj: Any, form: "forms.ModelForm[APIKey]", change: bool) -> None:
        """A new key is made by `keys.create_key`; its secret stays in this request."""
        if change:
            obj.save(update_fields=["name", "is_admin", "default_dialect", "expires_at"])
            return
        is_test = form.cleaned_data["test_key"]
        row, secret = keys.create_key(obj.project, name=obj.name, is_test=is_test, is_admin=obj.is_admin)
        row.default_dialect, row.expires_at = obj.default_dialect, obj.expires_at
        row.save(update_fields=["default_dialect", "expires_at"])
        # Django goes on with its own object: that is the made key now.
        obj.__dict__.update(row.__dict__, secret=secret)

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """The secret, once: in this answer and in no message, session or cookie."""
        context = self.admin_site.each_context(request) | {"opts": self.opts, "title": "API key created", "row": obj, "secret": obj.secret}
        return TemplateResponse(request, "accounts/key_created.html", context, headers={"cache-control": "no-store"})

    @action(description="Revoke selected keys", permissions=["change"])
    def revoke_selected(self, request: HttpRequest, rows: QuerySet[APIKey]) -> None:
        """Revoke all that still work."""
        count = keys.revoke(rows)
        messages.success(request, f"Revoked {count} key{'' if count == 1 else 's'}. They are refused within a second.")

    @action(
        description="Revoke",
        permissions=["revoke"],
        icon="block",
        url_path="revoke",
        variant=ActionVariant.DANGER,
        dialog={
            "title": "Revoke this key?",
            "description": "It is refused within a second, for good. There is no way back: a new key would have another secret.",
            "form_class": None,
            "form_submit_text": "Revoke",
        },
    )
    def revoke_one(self, request: HttpRequest, form: forms.Form, object_id: str) -> HttpResponse:
        """Revoke this key, after a dialog asked."""
        if keys.revoke(APIKey.objects.filter(pk=object_id)):
            messages.success(request, "The key is revoked.")
        # The dialog is sent by htmx, which follows this header with the whole page.
        return HttpResponse(headers={"HX-Redirect": reverse("admin:accounts_apikey_change", args=[object_id])})

    @display(description="Key")
    def redacted(self, row: APIKey) -> str:
        """The key as it may be shown again."""
        return row.redacted

    @display(description="Organization", ordering="project__organization__name")
    def organization(self, row: APIKey) -> str:
        """Whose key it is."""
        return row.project.organization.name

    @display(description="Project", ordering="project__name")
    def project_name(self, row: APIKey) -> str:
        """The project's name, without its organization's."""
        return row.project.name

    @display(description="Kind", label={"live": "info", "live, admin": "info", "test": "warning", "test, admin": "warning"})
    def kind(self, row: APIKey) -> str:
        """Live or test, and whether it is an admin key."""
        return f"{'test' if row.is_test else 'live'}{', admin' if row.is_admin else ''}"

    @display(description="Status", label={"active": "success", "revoked": "danger", "expired": "danger", "owner inactive": "warning"})
    def status(self, row: APIKey) -> str:
        """Whether it would be let in now."""
        if row.revoked_at is not None:
            return "revoked"
        if row.expires_at is not None and row.expires_at <= timezone.now():
            return "expired"
        return "active" if row.project.is_active and row.project.organization.is_active else "owner inactive"


@admin.register(RateLimit)
class RateLimitAdmin(ModelAdmin):
    """How much may be asked for; without a row here there is no limit. A change holds within a second."""

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
