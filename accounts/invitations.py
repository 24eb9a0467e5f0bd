"""Links with which invited people choose a password.

A link works once, for `PASSWORD_RESET_TIMEOUT`, and while its sender may still send it. Nothing of it is
stored.
"""

import re
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.contrib.auth.views import PasswordResetConfirmView
from django.http import HttpRequest, HttpResponse
from django.urls import reverse, reverse_lazy
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from unfold.widgets import UnfoldAdminPasswordWidget

from accounts import access, roles
from accounts.authentication import Caller, look_up_id
from accounts.errors import AccountsError
from accounts.memberships import is_invited
from accounts.models import KeyScope, Member


def may_send(sender: access.Person, person: User) -> bool:
    """Return whether `sender` may have a link for that person.

    The link lets its holder sign in as the person, so the sender must be allowed to change them in each of
    their organizations. Nobody may have a link for a person who has a password or has signed in, or who is in
    no organization, and only superusers for staff.
    """
    places = list(Member.objects.filter(user=person))
    if not is_invited(person) or not places:
        return False
    if (person.is_staff or person.is_superuser) and not getattr(sender, "is_superuser", False):
        return False
    changeable = access.where_may(
        sender, "accounts.change_member", Member.objects.filter(user=person)
    ).count()
    is_above = any(
        roles.is_above(place.role, access.role_in(sender, place.organization_id)) for place in places
    )
    return changeable == len(places) and not is_above


def path(caller: Caller, person: User) -> str:
    """Return the path at which the person chooses a password, while the caller's key may invite people."""
    token = f"{_KEY}{caller.api_key_id}.{_Tokens(f'{_KEY}{caller.api_key_id}').make_token(person)}"
    return reverse("admin:invitation", args=[urlsafe_base64_encode(force_bytes(person.pk)), token])


def _key_may_send(api_key_id: int, person: User) -> bool:
    """Return whether the key may still invite the person, who has no other organization."""
    try:
        caller = look_up_id(api_key_id)
        caller.require(KeyScope.MANAGEMENT)
        access.require(caller, "accounts.add_member")
        for place in Member.objects.filter(user=person):
            access.require_role(caller, place.role)
    except AccountsError:
        return False
    places = list(Member.objects.filter(user=person).values_list("organization", flat=True))
    is_free = is_invited(person) and not (person.is_staff or person.is_superuser)
    return is_free and places == [caller.organization_id]


def link(request: HttpRequest, person: User) -> str:
    """Return the absolute URL at which the person chooses a password, while the sender may still send it."""
    token = f"{request.user.pk}.{_Tokens(str(request.user.pk)).make_token(person)}"
    return request.build_absolute_uri(
        reverse("admin:invitation", args=[urlsafe_base64_encode(force_bytes(person.pk)), token])
    )


# At most 18 digits: Python refuses to parse a number of thousands of digits.
_SENDER = re.compile("(key-)?([0-9]{1,18})")
_KEY = "key-"


class _Tokens(PasswordResetTokenGenerator):
    """Django's tokens, which a new password invalidates; the signature includes the sender."""

    key_salt = "accounts.invitations"

    def __init__(self, sender: str) -> None:
        """`sender` is a person's id or `key-` with an API key's."""
        super().__init__()
        self._sender = sender

    def _make_hash_value(self, user: Any, timestamp: int) -> str:
        # With the sender in the signature, nobody can put another sender's id in front of a token.
        return f"{super()._make_hash_value(user, timestamp)}{self._sender}"


class _AnySender:
    """Checks tokens for the page: a token names its sender."""

    def check_token(self, person: User | None, token: str | None) -> bool:
        """Return whether the token is valid for the person and its sender may still send it."""
        name, _, signed = (token or "").partition(".")
        known = _SENDER.fullmatch(name)
        # The signature first, because it costs no query.
        if person is None or known is None or not _Tokens(name).check_token(person, signed):
            return False
        if known[1]:
            return _key_may_send(int(known[2]), person)
        sender = User.objects.filter(pk=known[2], is_active=True).first()
        return sender is not None and may_send(sender, person)


class ChoosePassword(PasswordResetConfirmView):
    template_name = "accounts/choose_password.html"
    success_url = reverse_lazy("admin:login")
    token_generator = _AnySender()

    def get_form(self, form_class: Any = None) -> Any:
        """Use the theme's widgets."""
        form = super().get_form(form_class)
        for field in form.fields.values():
            field.widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"})
        return form

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the context of the site."""
        title = {"title": "Choose a password" if self.validlink else "This link does not work"}
        return admin.site.each_context(self.request) | super().get_context_data(**kwargs) | title

    def form_valid(self, form: Any) -> HttpResponse:
        """Save the password; the link no longer works."""
        messages.success(self.request, "Your password is set. Sign in with it.")
        return super().form_valid(form)
