"""The admin's list of organizations, with what they spent, and the form of one."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Count, Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from unfold.admin import TabularInline
from unfold.decorators import action, display
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts import access, own_roles
from accounts.models import Group, GroupMember, GroupProject, Member, Organization, OwnRole, Project
from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ConstrainedForm, ListAdmin, OwnChangesForm
from accounts.pages.organization_form import NamedOrganizationForm
from accounts.pages.tenant_admin import TenantAdmin
from chatapi.pages import spent_column

# Above this number of projects, of members, or of groups, the form of an organization leaves them out.
_MAX_INLINE_ROWS = 20


def _count_of(model: type[Model], owner: str = "organization") -> Coalesce:
    """Return an expression: the number of an owner's rows of this model, by default of an organization's."""
    own = model._default_manager.filter(**{owner: OuterRef("pk")}).order_by()
    return Coalesce(Subquery(own.values(owner).annotate(count=Count("pk")).values("count")), 0)


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


class ChangedOrganizationForm(OwnChangesForm, NamedOrganizationForm):
    """An existing organization."""


class InlineProjectForm(OwnChangesForm, ConstrainedForm):
    """A project on the page of its organization."""


class MemberInline(TenantAdmin, TabularInline):
    """An organization's members; changes are made on their own pages."""

    model = Member
    extra = 0
    fields = readonly_fields = ["person", "role_name", "created"]
    show_change_link = True
    hide_title = True
    nobody_may = ("add", "change", "delete")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("user", "organization", "own_role")

    @display(description="User")
    def person(self, row: Member) -> str:
        return row.name

    @display(description="Role")
    def role_name(self, row: Member) -> str:
        return row.role_name

    # One word: the theme capitalizes each word of a label on a phone.
    @display(description="Created")
    def created(self, row: Member) -> str:
        return f"{row.created_at:%Y-%m-%d %H:%M}"


class GroupInline(TenantAdmin, TabularInline):
    """An organization's groups of members; changes are made in the console."""

    model = Group
    extra = 0
    fields = readonly_fields = ["name", "people", "given"]
    hide_title = True
    nobody_may = ("add", "change", "delete")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        counts = {
            "people_counted": _count_of(GroupMember, "group"),
            "projects_counted": _count_of(GroupProject, "group"),
        }
        rows: QuerySet[Any] = super().get_queryset(request).select_related("organization").annotate(**counts)
        return rows

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person sees the members: groups need no permission of their own."""
        view = "accounts.view_member"
        return request.user.has_perm(view) if obj is None else access.may_in(request.user, view, obj.pk)

    @display(description="Members")
    def people(self, row: Any) -> int:
        return int(row.people_counted)

    @display(description="Projects")
    def given(self, row: Any) -> int:
        return int(row.projects_counted)


class OwnRoleInline(TenantAdmin, TabularInline):
    """An organization's own roles; changes are made in the console."""

    model = OwnRole
    extra = 0
    fields = readonly_fields = ["name", "permitted"]
    verbose_name_plural = "roles of the organization"
    hide_title = True
    nobody_may = ("add", "change", "delete")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).select_related("organization")
        return rows

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the person sees the members: roles need no permission of their own."""
        view = "accounts.view_member"
        return request.user.has_perm(view) if obj is None else access.may_in(request.user, view, obj.pk)

    @display(description="May")
    def permitted(self, row: OwnRole) -> str:
        return capfirst(own_roles.words(row.permissions))


class ProjectInline(TenantAdmin, TabularInline):
    """An organization's projects."""

    model = Project
    form = InlineProjectForm
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
    list_display = [
        "page_link", "time_zone", "is_active", "projects_count", "members_count", "spent", "created_at",
    ]  # fmt: skip
    number_columns = ("projects_count", "members_count", "spent")
    list_filter = ["is_active"]
    search_fields = ["name"]
    inlines = [ProjectInline, MemberInline, GroupInline, OwnRoleInline]
    ordering = [NaturalOrder("name"), "name"]  # Django drops the model's ordering in queries with counts
    actions_detail = ["invite", "grant_credit"]
    nobody_may = ("delete",)  # the ledger names it; it can be made inactive
    spent = spent_column.COLUMN

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return spent_column.SpentList

    def get_list_display(self, request: HttpRequest) -> list[str]:
        return spent_column.shown_to(request, super().get_list_display(request))

    def get_inlines(self, request: HttpRequest, obj: Organization | None) -> list[Any]:
        """Return the inlines that have few enough rows; none for a new organization."""
        if obj is None:
            return []
        rows = {ProjectInline: obj.projects.all(), MemberInline: obj.members.all()}
        few: list[Any] = [each for each in rows if not rows[each][_MAX_INLINE_ROWS:].exists()]
        if 0 < obj.groups.count() <= _MAX_INLINE_ROWS:
            few.append(GroupInline)
        return [*few, OwnRoleInline] if obj.own_roles.exists() else few

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        own = ["name", "time_zone", "is_active"]
        return own if obj else [*own, "project"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Let only operators activate and deactivate an organization."""
        return [] if access.is_operator(request.user) else ["is_active"]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(
            request, obj, change, form=ChangedOrganizationForm if obj else NewOrganizationForm, **kwargs
        )
        form.person = request.user
        return form

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        if change:
            form.save_changes()
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
        # Subqueries, because two joins would multiply each other's rows, and all of them would be sorted.
        counted = {"projects_counted": Project, "members_counted": Member}
        counts = {name: _count_of(model) for name, model in counted.items()}
        rows: QuerySet[Organization] = super().get_queryset(request).annotate(**counts)
        return rows

    @display(description="Projects", ordering="projects_counted")
    def projects_count(self, row: Any) -> int:
        return int(row.projects_counted)

    @display(description="Members", ordering="members_counted")
    def members_count(self, row: Any) -> int:
        return int(row.members_counted)
