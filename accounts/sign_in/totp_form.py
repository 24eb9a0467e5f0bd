"""The form that adds an authenticator app as a second factor."""

from typing import Any

from allauth.core import context
from allauth.mfa import utils
from allauth.mfa.totp import forms as totp_forms
from allauth.mfa.totp.internal.auth import SECRET_SESSION_KEY


class ActivateAppForm(totp_forms.ActivateTOTPForm):
    """Encrypts a new app's secret in the session, which is a row of the database."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        session = context.request.session
        if encrypted := session.get(SECRET_SESSION_KEY):
            session[SECRET_SESSION_KEY] = utils.decrypt(encrypted)
        super().__init__(*args, **kwargs)
        session[SECRET_SESSION_KEY] = utils.encrypt(self.secret)
