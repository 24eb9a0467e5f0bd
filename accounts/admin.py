"""Admin pages about organizations, people and groups; Django looks for them here.

The pages of API keys and rate limits also need the catalog, so they are in `chatapi/pages/`.
"""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import TabularInline
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action, display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts import access, invitations
from accounts.models import Member, Organization, Project
from accounts.natural_order import NaturalOrder
from accounts.pages import member_admin, sign_in_admin  # noqa: F401  they register their pages
from accounts.pages.admin_mixins import ConstrainedForm, ListAdmin
from accounts.pages.organization_form import NamedOrganizationForm
from accounts.pages.tenant_admin import TenantAdmin

# The most projects, and members, that the form of an organization shows.
_MAX_INLINE_ROWS = 20

admin.site.unregister(User)
admin.site.unregister(Group)


class PersonForm(UserChangeForm):
    """A person, whose user name may be any address."""

    def _get_validation_exclusions(self) -> set[str]:
        """Check a new name only: Django refuses some signs that addresses have."""
        found: set[str] = super()._get_validation_exclusions()
        return found if "username" in self.changed_data else found | {"username"}


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ListAdmin):  # type: ignore[type-arg]  # not generic at run time
    """People. Staff can't give themselves, or anyone, more rights than they have."""

    form = PersonForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    actions_detail = ["new_password"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Let only superusers change rights."""
        own = [] if request.user.is_superuser else ["is_staff", "is_superuser", "groups", "user_permissions"]
        return [*super().get_readonly_fields(request, obj), *own]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let only superusers change superusers and other staff: a new password takes an account over."""
        is_else = obj is not None and (obj.is_superuser or (obj.is_staff and obj.pk != request.user.pk))
        return super().has_change_permission(request, obj) and (request.user.is_superuser or not is_else)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: logs name people, and the last owner must stay. They can be made inactive."""
        return False

    def has_link_permission(self, request: HttpRequest, object_id: str) -> bool:
        return bool(request.user.is_superuser) and self.get_object(request, object_id) is not None

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Return the button of the link, if there may be one."""
        person = self.get_object(request, object_id) if request.user.is_superuser else None
        is_offered = person is not None and invitations.may_reset(request.user, person)
        return self._get_base_actions_detail() if is_offered else []

    @action(description="Link for a new password", permissions=["link"], icon="link", url_path="new-password")
    def new_password(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Make the link at which the person chooses another password, and show it once."""
        person = self.get_object(request, object_id)
        assert person is not None, "there is a permission for it"
        if not invitations.may_reset(request.user, person):
            messages.error(
                request,
                f"There is no link for {person}: where this service sends no mail, links are for other "
                "people who are active and have signed in or chosen a password.",
            )
            return redirect("admin:auth_user_change", object_id)
        context = self.admin_site.each_context(request) | {
            "opts": self.opts,
            "title": f"New password of {person}",
            "person": person,
            "link": invitations.reset_link(request, person) if request.method == "POST" else "",
            "days": settings.PASSWORD_RESET_TIMEOUT // 86_400,
        }
        return TemplateResponse(request, "accounts/new_password.html", context)


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ListAdmin):
    """Permissions of groups of operators."""

    nothing_yet = "No groups yet. A group gives several operators the same permissions."

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let only superusers change groups: staff could give their own group every right."""
        return bool(request.user.is_superuser)


class NewOrganizationForm(ConstrainedForm):
    """A new organization with its first project, which its API keys need."""

    project = forms.CharField(
        label="First project",
        max_length=100,
        initial="default",
        validators=Project._meta.get_field("name").validators,
        widget=UnfoldAdminTextInputWidget,
        help_text="API keys belong to a project. More can be added later.",
    )

    class Meta:
        model = Organization
        fields = ["name", "time_zone", "is_active"]


class MemberInline(TenantAdmin, TabularInline):
    """An organization's members, who have pages of their own for changes."""

    model = Member
    extra = 0
    fields = readonly_fields = ["user", "role", "created_at"]
    show_change_link = True
    hide_title = True
    nobody_may = ("add", "change", "delete")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).select_related("user", "organization")
        return rows


class ProjectInline(TenantAdmin, TabularInline):
    """An organization's projects."""

    model = Project
    form = ConstrainedForm
    fields = ["name", "is_active"]
    extra = 0
    show_change_link = True
    hide_title = True
    can_delete = False


@admin.register(Organization)
class OrganizationAdmin(TenantAdmin, ListAdmin):
    """Organizations."""

    nothing_yet = "No organizations yet. An organization pays for its projects, which have the API keys."
    list_display_links = None
    list_display = ["page_link", "time_zone", "is_active", "projects_count", "members_count", "created_at"]
    list_filter = ["is_active"]
    search_fields = ["name"]
    inlines = [ProjectInline, MemberInline]
    ordering = [NaturalOrder("name")]  # Django drops the model's ordering in queries with counts
    actions_detail = ["invite", "grant_credit"]
    nobody_may = ("delete",)  # the ledger names it; it can be made inactive

    def get_inlines(self, request: HttpRequest, obj: Organization | None) -> list[Any]:
        """Return none for a new organization, and none with more rows than a form shows."""
        if obj is None:
            return []
        rows = {ProjectInline: obj.projects.all(), MemberInline: obj.members.all()}
        return [inline for inline in self.inlines if not rows[inline][_MAX_INLINE_ROWS:].exists()]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        own = ["name", "time_zone", "is_active"]
        return own if obj else [*own, "project"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Let only operators activate and deactivate an organization."""
        return [] if access.is_operator(request.user) else ["is_active"]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(
            request, obj, change, form=NamedOrganizationForm if obj else NewOrganizationForm, **kwargs
        )
        form.person = request.user
        return form

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        if change:
            # Not the other columns, which others may have changed since this form was opened.
            obj.save(update_fields=form.changed_data)
        else:
            obj.save()
            Project.objects.create(organization=obj, name=form.cleaned_data["project"])

    def response_post_save_add(self, request: HttpRequest, obj: Organization) -> HttpResponse:
        """Show the organization's page, which has the next step."""
        return redirect("admin:organization", obj.pk)

    def response_post_save_change(self, request: HttpRequest, obj: Organization) -> HttpResponse:
        return redirect("admin:organization", obj.pk)

    @display(description="Name", ordering=NaturalOrder("name"))
    def page_link(self, row: Organization) -> SafeString:
        """Return a link to the page with the organization's usage, which links to its settings."""
        return format_html(
            '<a class="font-medium text-primary-600 dark:text-primary-500" href="{}">{}</a>',
            reverse("admin:organization", args=[row.pk]),
            row.name,
        )

    def has_invite_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        row = self.get_object(request, str(object_id))
        return row is not None and access.may(request.user, "accounts.add_member", row)

    @action(
        description="Invite a member", permissions=["invite"], icon="person_add", url_path="invite-member"
    )
    def invite(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect(f"{reverse('admin:accounts_member_add')}?organization={object_id}")

    def has_grant_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm("usage.add_ledgerentry")

    @action(description="Grant credit", permissions=["grant"], icon="payments", url_path="grant-credit")
    def grant_credit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return redirect(f"{reverse('admin:credit_grant')}?organization={object_id}")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Organization]:
        counts = {
            # Distinct, because the two joins multiply each other's rows.
            "projects_counted": Count("projects", distinct=True),
            "members_counted": Count("members", distinct=True),
        }
        rows: QuerySet[Organization] = super().get_queryset(request).annotate(**counts)
        return rows

    @display(description="Projects", ordering="projects_counted")
    def projects_count(self, row: Any) -> int:
        return int(row.projects_counted)

    @display(description="Members", ordering="members_counted")
    def members_count(self, row: Any) -> int:
        return int(row.members_counted)
