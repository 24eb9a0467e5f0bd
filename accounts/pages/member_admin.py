"""Pages about members of organizations: inviting, changing roles, removing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied, ValidationError
from django.forms.utils import flatatt
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminEmailInputWidget, UnfoldAdminTextInputWidget

from accounts import acceptance, access, invitations, invitees, memberships, roles
from accounts.models import LIMITABLE_ROLES, SHOWN_NAME, Member, Role
from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ChoosesRows, ListAdmin, OwnChangesForm
from accounts.pages.admin_site import CONFLICT
from accounts.pages.tenant_admin import TenantAdmin

MAX_SUGGESTIONS = 200


class SuggestingInput(UnfoldAdminTextInputWidget):
    """A text field with the browser's own list of suggestions."""

    suggestions: Iterable[str] = ()

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        shown = super().render(
            name, value, {**(attrs or {}), "list": f"{name}-suggestions", "autocomplete": "off"}, renderer
        )
        options = format_html_join(
            "", "<option{}></option>", ((flatatt({"value": text}),) for text in self.suggestions)
        )
        return format_html('{}<datalist id="{}-suggestions">{}</datalist>', shown, name, options)


class InvitationForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """An invitation of a new or an existing person."""

    by: access.Person
    name = forms.CharField(
        label="User name",
        max_length=150,
        widget=SuggestingInput,
        help_text="Existing users are added at once; new users get an invitation link.",
    )
    email = forms.EmailField(
        label="E-mail address", required=False, widget=UnfoldAdminEmailInputWidget, help_text="For new users."
    )

    class Meta:
        model = Member
        fields = ["organization", "name", "email", "role"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].widget.suggestions = invitees.names_known_to(self.by)[:MAX_SUGGESTIONS]

    def clean(self) -> dict[str, Any]:
        """Raise `ValidationError` for a role above the person's own, and for an existing member."""
        data = self.cleaned_data
        if self.errors:
            return data
        organization = data["organization"]
        if roles.is_above(data["role"], access.role_in(self.by, organization.pk)):
            raise ValidationError({"role": "You can't assign a role above your own."})
        invitations.count(f"person {self.by.pk}")
        self.instance.user = invitees.person_named(self.by, organization, data["name"], data["email"])
        return data


class RoleForm(OwnChangesForm):
    """The role of an existing member."""

    by: access.Person

    class Meta:
        model = Member
        fields = ["role"]

    def clean_role(self) -> str:
        """Raise `ValidationError` for a role above the person's own, and if no owner would remain."""
        role: str = self.cleaned_data["role"]
        if roles.is_above(role, access.role_in(self.by, self.instance.organization_id)):
            raise ValidationError("You can't assign a role above your own.")
        if role != Role.OWNER and memberships.is_last_owner(self.instance):
            raise ValidationError(memberships.LAST_OWNER)
        if self.instance.sees_single_projects and role not in LIMITABLE_ROLES:
            raise ValidationError(memberships.LIMITED)
        return role


@contextmanager
def _forbidden_when_invalid() -> Iterator[None]:
    """Answer 403 if another request has made the form invalid since it was checked."""
    try:
        yield
    except ValidationError as error:
        raise PermissionDenied(error.messages) from error


@admin.register(Member)
class MemberAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """Members of organizations. Members with a role above one's own can't be changed or removed; the console
    changes those with a role of their organization's.
    """

    nothing_yet = "No members yet. Members sign in here to see the usage and keys of their organization."
    list_display = ["person", "email", "organization", "role_name", "sees", "state", "created_at"]
    list_filter = ["role", "is_limited", "organization"]
    list_select_related = ["user", "organization", "own_role"]
    search_fields = ["shown_name", "user__email", "organization__name"]
    ordering = [NaturalOrder("organization__name"), SHOWN_NAME]
    autocomplete_fields = ["organization"]
    actions_detail = ["invitation"]

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related(*access.LIMITS).alias(shown_name=SHOWN_NAME)

    def get_form(
        self, request: HttpRequest, obj: Member | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change, form=RoleForm if obj else InvitationForm, **kwargs)
        # Django makes a class of the form for each request, so this attribute is not shared.
        form.by = request.user
        return form

    def get_fields(self, request: HttpRequest, obj: Member | None = None) -> list[str]:
        if obj is None:
            return list(InvitationForm.Meta.fields)
        role = "role" if obj.own_role_id is None else "role_name"
        return ["person", "email", "organization", role, "sees", "state", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Member | None = None) -> list[str]:
        return [name for name in self.get_fields(request, obj) if name != "role"] if obj else []

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the roles that the person can give in some organization."""
        # The form does not know the organization yet; `clean` checks the role against the one that is
        # chosen.
        own = [Role.OWNER] if access.is_operator(request.user) else access.roles_of(request.user).values()
        givable = {role for each in own for role in roles.givable(each)}
        kwargs["choices"] = [choice for choice in Role.choices if choice[0] in givable]
        return super().formfield_for_choice_field(db_field, request, **kwargs)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return none: of many members at once, each could be an owner and none the last."""
        return {}

    def role_allows(self, request: HttpRequest, act: str, obj: Any = None) -> bool:
        """Refuse to change members whose role is above the person's own, and roles of organizations."""
        if not super().role_allows(request, act, obj):
            return False
        if obj is None or act == "view":
            return True
        if act == "change" and obj.own_role_id is not None:
            return False
        return not roles.is_above(access.rank(obj), access.role_in(request.user, obj.organization_id))

    def has_delete_permission(self, request: HttpRequest, obj: Member | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (
            obj is None or not memberships.is_last_owner(obj)
        )

    def has_invite_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Return whether the person may change the member everywhere, and no password is set."""
        member = self.get_object(request, object_id)
        return member is not None and invitations.may_send(request.user, member.user)

    def save_model(self, request: HttpRequest, obj: Member, form: Any, change: bool) -> None:
        """Save through `memberships`, which keeps its rules when two people act at the same time."""
        if not change:
            try:
                invitees.join(obj)
            except ValidationError as error:
                raise BadRequest(f"{CONFLICT} {error.messages[0]}") from error
            return
        role, obj.role = obj.role, form.initial["role"]
        with _forbidden_when_invalid():
            memberships.change_role(obj, role)

    def delete_model(self, request: HttpRequest, obj: Member) -> None:
        """Remove the member; the name of a person who never came is free again."""
        with _forbidden_when_invalid():
            if acceptance.is_invited(obj.user):
                acceptance.withdraw(obj)
            else:
                memberships.remove(obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: int) -> HttpResponse:
        """Say that a membership was kept without projects, if it was."""
        kept = Member.objects.filter(pk=obj_id).select_related("user").first()
        if kept is None:
            response: HttpResponse = super().response_delete(request, obj_display, obj_id)
            return response
        self.message_user(request, memberships.KEPT.format(kept.name), messages.WARNING)
        return redirect("admin:accounts_member_changelist")

    def response_add(
        self, request: HttpRequest, obj: Member, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the link to a person without a password."""
        if self.has_invite_permission(request, str(obj.pk)):
            return redirect("admin:accounts_member_invitation", obj.pk)
        response: HttpResponse = super().response_add(request, obj, post_url_continue)
        return response

    @action(description="Invitation link", permissions=["invite"], icon="link", url_path="invitation")
    def invitation(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the link at which the person chooses a password; nothing here sends mail."""
        member = self.get_object(request, object_id)
        assert member is not None, "there is a permission for it"
        context = self.admin_site.each_context(request) | {
            "opts": self.opts,
            "title": f"Invite {member.name}",
            "member": member,
            "sees": memberships.sees(member),
            "link": invitations.link(request, member.user),
            "days": settings.PASSWORD_RESET_TIMEOUT // 86_400,
        }
        # The link signs its holder in, so no cache may keep this page.
        return TemplateResponse(
            request, "accounts/invitation.html", context, headers={"cache-control": "no-store"}
        )

    @display(description="User name", ordering=SHOWN_NAME)
    def person(self, row: Member) -> str:
        """Return the name without a link: only operators see people's own pages."""
        return row.name

    @display(description="E-mail", ordering="user__email")
    def email(self, row: Member) -> str:
        return row.user.email or "–"

    @display(description="Role", ordering="role")
    def role_name(self, row: Member) -> str:
        return row.role_name

    @display(description="Projects")
    def sees(self, row: Member) -> str:
        """Return the projects that the member sees; a page of the console changes them."""
        return memberships.projects_seen(row)

    @display(description="State", label={"active": "success", "invited": "info", "inactive": "danger"})
    def state(self, row: Member) -> str:
        return acceptance.state(row)
