"""The form with which people sign in, to the console and, in the theme's look, to the admin."""

import logging
from typing import Any

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from redis.exceptions import RedisError
from unfold.forms import AuthenticationForm as ThemedForm

from accounts import access, client_ip, forwarding
from accounts.sign_in import attempts

log = logging.getLogger(__name__)


class SignInForm(AuthenticationForm):
    """User name and password. People who may not enter get the same error as for a wrong password."""

    error_messages = AuthenticationForm.error_messages | {
        "too_many": "Too many attempts to sign in. Try again in %(minutes)s min.",
        "unavailable": "Nobody can sign in now: Redis, which counts the attempts, does not respond.",
    }
    status = 200
    """The HTTP status of the page with this form."""

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = self.cleaned_data
        name = data.get("username")
        if name is None:
            return data
        assert self.request is not None, "the views pass it"
        ip = client_ip.network_of(forwarding.of_meta(self.request.META, settings.TRUSTED_PROXIES).ip)
        try:
            # Counted before the password is checked: parallel attempts can't exceed the limit.
            if wait_ms := attempts.wait_ms(name, ip):
                self.status = 429
                raise self._refusal("too_many", minutes=-(-wait_ms // 60_000))
            super().clean()
            attempts.forget(name, ip)
        except RedisError as error:
            log.warning("nobody can sign in: %r", error)
            self.status = 503
            raise self._refusal("unavailable") from error
        return data

    def confirm_login_allowed(self, user: Any) -> None:
        """Admit staff and people who belong to an organization."""
        AuthenticationForm.confirm_login_allowed(self, user)  # Django's own form for the admin requires staff
        if not access.may_enter(user):
            raise self.get_invalid_login_error()

    def _refusal(self, code: str, **params: Any) -> ValidationError:
        return ValidationError(self.error_messages[code], code=code, params=params)


class ThemedSignInForm(SignInForm, ThemedForm):
    """The same form with the widgets of the admin's theme."""
