"""Adapters for django-allauth: the rules of every way to sign in, secrets of second factors, providers.

Every way ends in `AccountAdapter.pre_login`: the password, a passkey, an identity provider, the link of an
invitation. The pages here are templates of `chatapi/templates/console/`.
"""

from base64 import b64decode, b64encode
from typing import Any, NoReturn

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.stagekit import clear_login
from allauth.core import context as allauth_context
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa import utils as mfa_utils
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal.auth import SECRET_SESSION_KEY, generate_totp_secret
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from accounts import acceptance
from accounts.encryption import Purpose, decrypt, encrypt
from accounts.forwarding import client_ip
from accounts.sign_in import change_mail, nonces, openid_connect, providers, sessions
from accounts.sign_in.fetching import BoundedSession
from accounts.sign_in.models import IdentityProvider

_REAUTHENTICATION_LABELS = {
    "reauthenticate": "Use your password",
    "mfa_reauthenticate": "Use a code of your app, or a recovery code",
    "mfa_reauthenticate:webauthn": "Use a passkey",
}
_MAY_NOT_ENTER = "This account belongs to no organization, or is inactive."


def provider_page(request: HttpRequest, provider: IdentityProvider) -> HttpResponse:
    """Return the page that leads to the provider.

    It is no redirect: `form-action` of our policy also holds for redirects after a form. After a form of ours
    it goes on by itself. Opened by a link, it waits for a click, because another site can open the link of an
    invitation.
    """
    context = {"provider": provider, "next": request.POST.get("next", "")}
    return render(request, "console/to_provider.html", context)


class AccountAdapter(DefaultAccountAdapter):
    """The rules of every way to sign in."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return False: our own pages make accounts."""
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the client's address, as trusted proxies name it."""
        return client_ip(request) or "0.0.0.0"  # noqa: S104  no address, as on a UNIX socket

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, Any]]:
        """Return the ways to sign in again, named as on our pages."""
        ways: list[dict[str, Any]] = super().get_reauthentication_methods(user)
        return [
            each | {"description": _REAUTHENTICATION_LABELS.get(each["id"], each["description"])}
            for each in ways
        ]

    def pre_login(self, request: HttpRequest, user: Any, **login: Any) -> HttpResponse | None:
        """Refuse people who may not enter; send those whose organization requires its identity provider to
        that provider.
        """
        if not acceptance.may_sign_in(user):
            clear_login(request)
            messages.error(request, _MAY_NOT_ENTER)
            return redirect("account_login")
        provider = providers.required_for(user)
        # Taken out: the session would keep it, with all of the person's row, until the second factor.
        sociallogin: SocialLogin | None = (login.get("signal_kwargs") or {}).pop("sociallogin", None)
        if provider and (sociallogin is None or sociallogin.account.provider != str(provider.pk)):
            clear_login(request)
            return provider_page(request, provider)
        return None

    def post_login(self, request: HttpRequest, user: Any, **login: Any) -> HttpResponse:
        """End the person's oldest sessions before django-allauth reads all of them."""
        sessions.end_oldest(user, request.session.session_key)
        response: HttpResponse = super().post_login(request, user, **login)
        return response

    def send_notification_mail(
        self, template_prefix: str, user: Any, context: dict[str, Any] | None = None, email: str | None = None
    ) -> None:
        """Send our mail about second factors; that about a password begins where it is saved."""
        if change := change_mail.OF_ALLAUTH.get(template_prefix):
            change_mail.notify(user, change)


class MFAAdapter(DefaultMFAAdapter):
    """Secrets of second factors are encrypted in the database."""

    def encrypt(self, text: str) -> str:
        return b64encode(encrypt(Purpose.SECOND_FACTORS, b"", text.encode())).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Return the secret; a random one that no code fits, if `CHATAPI_SECRET_KEY` is another one now."""
        text = decrypt(Purpose.SECOND_FACTORS, b"", b64decode(encrypted_text))
        return text.decode() if text is not None else generate_totp_secret()

    def generate_authenticator_name(self, user: Any, type: Any) -> str:
        count = Authenticator.objects.filter(user=user, type=type).count()
        return f"Passkey {count + 1}"


class ActivateAppForm(ActivateTOTPForm):
    """Adds an authenticator app as a second factor, and encrypts its secret in the session, which is a row of
    the database.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        session = allauth_context.request.session
        if encrypted := session.get(SECRET_SESSION_KEY):
            session[SECRET_SESSION_KEY] = mfa_utils.decrypt(encrypted)
        super().__init__(*args, **kwargs)
        session[SECRET_SESSION_KEY] = mfa_utils.encrypt(self.secret)


class SocialAccountAdapter(DefaultSocialAccountAdapter):
    """The identity providers are those of organizations; `providers.admit` decides on their answers."""

    def list_apps(
        self, request: HttpRequest, provider: str | None = None, client_id: str | None = None
    ) -> list[SocialApp]:
        """Return the app of this provider; none if there is no such row or its secret cannot be decrypted."""
        if not (provider and provider.isdecimal() and len(provider) < 19):  # fits a BIGINT
            return []
        row = IdentityProvider.objects.filter(pk=int(provider)).select_related("organization").first()
        secret = row.secret if row else None
        if row is None or secret is None:
            return []
        return [openid_connect.app_of(row, secret)]

    def get_requests_session(self) -> BoundedSession:
        return BoundedSession()

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """Return False: `pre_social_login` makes accounts."""
        return False

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Find or make the person, and tie the provider's account to them."""
        account, answer = sociallogin.account, openid_connect.Claims.of(sociallogin)
        # What the provider says about a person is used now, and not kept; django-allauth has just saved it.
        account.extra_data = {}
        SocialAccount.objects.filter(pk=account.pk).update(extra_data={})
        try:
            if sociallogin.state.get("process") != "login" or answer is None:
                raise providers.Refused(
                    "The provider's answer is not that of a sign-in, or names two different people."
                )
            if not nonces.is_answer(sociallogin.state, answer.token):
                raise providers.Refused("The provider's answer belongs to another sign-in. Sign in again.")
            with transaction.atomic():
                row = providers.lock(int(account.provider), answer)
                if not sociallogin.is_existing:
                    sociallogin.lookup()  # Another sign-in may have made the account since.
                known = sociallogin.user if sociallogin.is_existing else None
                person = providers.admit(row, known, answer)
                if known is None:
                    sociallogin.connect(request, person)
        except providers.Refused as refused:
            _refuse(request, str(refused))

    def on_authentication_error(self, request: HttpRequest, provider: Any, **kwargs: Any) -> None:
        """Show our own page for every failure."""
        _refuse(
            request, "The identity provider did not sign you in. Try again, or ask your organization's owner."
        )


def _refuse(request: HttpRequest, reason: str) -> NoReturn:
    raise ImmediateHttpResponse(
        render(request, "console/sign_in_refused.html", {"reason": reason}, status=403)
    )
