"""Admin pages about people and groups; Django looks for them here.

The pages of organizations, projects, API keys and rate limits also need usage or the catalog, so they are in
`chatapi/pages/`.
"""

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from unfold.dataclasses import UnfoldAction
from unfold.decorators import action
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from accounts import invitations
from accounts.pages import member_admin, sign_in_admin  # noqa: F401  they register their pages
from accounts.pages.admin_mixins import ListAdmin
from accounts.pages.permission_field import ChoosesPermissions
from accounts.sign_in import change_mail

admin.site.unregister(User)
admin.site.unregister(Group)


class PersonForm(UserChangeForm):
    """A person, whose user name may be any address."""

    def _get_validation_exclusions(self) -> set[str]:
        """Check a new name only: Django refuses some signs that addresses have."""
        found: set[str] = super()._get_validation_exclusions()
        return found if "username" in self.changed_data else found | {"username"}


class PasswordForm(AdminPasswordChangeForm):
    """A new password that an operator sets, or none."""

    def save(self, commit: bool = True) -> User:
        """Save the password. Mail about a removed one begins here: Django's row does not tell of it."""
        person: User = super().save(commit)
        if not person.has_usable_password():
            change_mail.notify(person, change_mail.NO_PASSWORD)
        return person


@admin.register(User)
class UserAdmin(ChoosesPermissions, DjangoUserAdmin, ListAdmin):  # type: ignore[type-arg]  # at run time
    """People. Staff can't give themselves, or anyone, more rights than they have."""

    form = PersonForm
    add_form = UserCreationForm
    change_password_form = PasswordForm
    actions_detail = ["new_password"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Let only superusers change rights."""
        own = [] if request.user.is_superuser else ["is_staff", "is_superuser", "groups", "user_permissions"]
        return [*super().get_readonly_fields(request, obj), *own]

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Save the person; an address that is replaced gets a mail about it."""
        super().save_model(request, obj, form, change)
        if change and "email" in form.changed_data and form.initial["email"]:
            change_mail.notify(obj, change_mail.ADDRESS, to=form.initial["email"])

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
class GroupAdmin(ChoosesPermissions, DjangoGroupAdmin, ListAdmin):  # type: ignore[misc]  # arguments of one
    """Permissions of groups of operators."""

    nothing_yet = "No groups yet. A group gives several operators the same permissions."

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let only superusers change groups: staff could give their own group every right."""
        return bool(request.user.is_superuser)
