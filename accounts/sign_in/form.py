"""The form with which people sign in."""

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User

from accounts import acceptance
from accounts.forwarding import client_network
from accounts.models import IS_PLACEHOLDER
from accounts.sign_in import attempts, email_addresses
from accounts.sign_in.form_limits import TooManyAttempts, check_attempts, unless_unavailable


class SignInForm(AuthenticationForm):
    """A name or address, and the password. A wrong password and no right to enter look the same."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": "Please enter a correct name or address and password. Both may be case-sensitive."
    }
    status = 200
    """The HTTP status of the page with this form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = "E-mail address or user name"

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        typed = data.get("username")
        if typed is None:
            return data
        assert self.request is not None, "the views pass it"
        # Databases ignore the case of an address, and PostgreSQL may take "ı" for "i": all such spellings
        # share a count. The person's name is not counted instead, because that would tell whether there is
        # one.
        counted, network = typed.upper().casefold(), client_network(self.request)
        try:
            # Counted before the password is checked: parallel attempts can't exceed the limit.
            check_attempts(attempts.count_sign_in, counted, network)
            with unless_unavailable():
                data["username"] = user_name_of(typed)
                super().clean()
                if self.user_cache is not None:  # a form without a password checks none
                    attempts.forget(counted, network)
        except TooManyAttempts as refusal:
            self.status = refusal.status
            raise
        return data

    def confirm_login_allowed(self, user: Any) -> None:
        """Admit staff, and people who belong to an organization or are invited to one."""
        AuthenticationForm.confirm_login_allowed(self, user)  # Django's own form for the admin requires staff
        if not acceptance.may_sign_in(user):
            raise self.get_invalid_login_error()


def user_name_of(typed: str) -> str:
    """Return the user name of the person who typed a confirmed address, a user name, or an unconfirmed
    address that only one person has; else return the typed text.
    """
    if "@" not in typed:
        return typed
    owner = email_addresses.owner_of(typed)
    if owner is not None:
        return owner.get_username()
    for same in ({"username": typed}, {"email__iexact": typed}):
        found = list(User.objects.filter(**same).exclude(IS_PLACEHOLDER)[:2])
        if len(found) == 1:
            return found[0].get_username()
    return typed
