"""The form with which people sign in, that of an app for codes, and what all forms of visitors count."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allauth.core import context
from allauth.mfa import utils
from allauth.mfa.totp import forms as totp_forms
from allauth.mfa.totp.internal.auth import SECRET_SESSION_KEY
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from redis.exceptions import RedisError

from accounts import access, forwarding, ip_addresses
from accounts.sign_in import attempts, email_addresses

log = logging.getLogger(__name__)

_TOO_MANY = "Too many attempts. Try again in %(minutes)s min."
_UNAVAILABLE = "Not available now: Redis, which counts attempts, does not respond."


class TooMany(ValidationError):
    """A form was sent too often, or nobody can count it; `status` is that of its page."""

    status = 429


@contextmanager
def unless_unavailable() -> Iterator[None]:
    """Raise `TooMany`, with a status of 503, if Redis does not respond inside."""
    try:
        yield
    except RedisError as error:
        log.warning("attempts can't be counted: %r", error)
        refusal = TooMany(_UNAVAILABLE, code="unavailable")
        refusal.status = 503
        raise refusal from error


def refuse_for(wait_ms: int) -> None:
    """Raise `TooMany` if there is a time to wait."""
    if wait_ms:
        raise TooMany(_TOO_MANY, code="too_many", params={"minutes": -(-wait_ms // 60_000)})


def network_of(request: HttpRequest) -> str:
    """Return what of the client's address attempts are counted by."""
    return ip_addresses.network_of(forwarding.of_meta(request.META, settings.TRUSTED_PROXIES).ip)


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
        counted, ip = typed.upper().casefold(), network_of(self.request)
        try:
            with unless_unavailable():
                # Counted before the password is checked: parallel attempts can't exceed the limit.
                refuse_for(attempts.wait_ms(counted, ip))
                data["username"] = user_name_of(typed)
                super().clean()
                attempts.forget(counted, ip)
        except TooMany as refusal:
            self.status = refusal.status
            raise
        return data

    def confirm_login_allowed(self, user: Any) -> None:
        """Admit staff and people who belong to an organization."""
        AuthenticationForm.confirm_login_allowed(self, user)  # Django's own form for the admin requires staff
        if not access.may_enter(user):
            raise self.get_invalid_login_error()


def user_name_of(typed: str) -> str:
    """Return the name of the person with this confirmed address, name or, if no two have it, address; what
    was typed if there is nobody.
    """
    if "@" not in typed:
        return typed
    owner = email_addresses.owner_of(typed)
    if owner is not None:
        return owner.get_username()
    for same in ({"username": typed}, {"email__iexact": typed}):
        found = list(User.objects.filter(**same)[:2])
        if len(found) == 1:
            return found[0].get_username()
    return typed


class ActivateAppForm(totp_forms.ActivateTOTPForm):
    """Keeps the secret of an app that is being added encrypted: the session is a row of the database."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        session = context.request.session
        if encrypted := session.get(SECRET_SESSION_KEY):
            session[SECRET_SESSION_KEY] = utils.decrypt(encrypted)
        super().__init__(*args, **kwargs)
        session[SECRET_SESSION_KEY] = utils.encrypt(self.secret)
