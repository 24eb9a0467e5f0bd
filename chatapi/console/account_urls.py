"""The routes of those pages of django-allauth that are used, with the names that it expects.

Its other pages have no route: our own forms sign people up and in, and send mail.
"""

from allauth.account import views as account
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as codes
from allauth.mfa.totp import views as totp
from allauth.mfa.webauthn import views as passkeys
from allauth.socialaccount.providers.openid_connect import views as openid_connect
from allauth.usersessions import views as sessions
from django.urls import URLPattern, path
from django.views.decorators.http import require_POST

from chatapi.console.account_pages import (
    account_page,
    after_signing_in_again,
    for_visitors,
    from_here,
    from_provider,
    guarded,
    with_own_address,
)
from chatapi.console.sign_in import sign_in


def _page(route: str, view: object, name: str) -> URLPattern:
    return path(route, guarded(view), name=name)  # type: ignore[arg-type]  # allauth has no types


urlpatterns = [
    # Names for pages of ours, to which django-allauth redirects.
    path("sign-in", sign_in, name="account_login"),
    path("account", account_page, name="mfa_index"),
    path("account", account_page, name="mfa_list_webauthn"),
    path("account", account_page, name="usersessions_list"),
    _page("sign-in/second-factor", mfa.authenticate, "mfa_authenticate"),
    path("sign-in/passkey", for_visitors(passkeys.login_webauthn), name="mfa_login_webauthn"),
    path(
        "sign-in/provider/<str:provider_id>/",
        from_here(from_provider(openid_connect.login)),
        name="openid_connect_login",
    ),
    path(
        "sign-in/provider/<str:provider_id>/callback",
        from_provider(openid_connect.callback),
        name="openid_connect_callback",
    ),
    _page("account/again/password", account.reauthenticate, "account_reauthenticate"),
    _page("account/again/code", mfa.reauthenticate, "mfa_reauthenticate"),
    _page("account/again/passkey", passkeys.reauthenticate_webauthn, "mfa_reauthenticate_webauthn"),
    _page("account/password", account.password_change, "account_change_password"),
    _page("account/password/new", after_signing_in_again(account.password_set), "account_set_password"),
    _page("account/codes-app", with_own_address(totp.activate_totp), "mfa_activate_totp"),
    _page("account/codes-app/remove", totp.deactivate_totp, "mfa_deactivate_totp"),
    _page("account/passkeys/new", with_own_address(passkeys.add_webauthn), "mfa_add_webauthn"),
    _page("account/passkeys/<int:pk>/remove", passkeys.remove_webauthn, "mfa_remove_webauthn"),
    _page("account/recovery-codes", codes.view_recovery_codes, "mfa_view_recovery_codes"),
    _page("account/recovery-codes/new", codes.generate_recovery_codes, "mfa_generate_recovery_codes"),
    _page("account/sessions/end", require_POST(sessions.list_usersessions), "end_sessions"),
]
