"""Mail to people about changes of their accounts: the password, second factors, the address.

Pages, the admin and `manage.py changepassword` all save a new password, so its mail begins at the row. The
other changes call `notify`, those of a person's own factors through django-allauth's adapter.
"""

from functools import partial
from typing import Any

from allauth.account.models import EmailAddress
from allauth.core import context as allauth_context
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.signals import post_save
from django.urls import reverse
from django.utils import timezone
from redis.exceptions import RedisError

from accounts.forwarding import client_ip, client_network
from accounts.sign_in import attempts, mail

PASSWORD = "Your password was changed"  # noqa: S105  a subject
NO_PASSWORD = "Your password was removed"  # noqa: S105
ADDRESS = "The address of your account was changed"
REMOVED = {
    Authenticator.Type.TOTP: "An authenticator app was removed from your account",
    Authenticator.Type.WEBAUTHN: "A passkey was removed from your account",
    Authenticator.Type.RECOVERY_CODES: "The recovery codes of your account were removed",
}
OF_ALLAUTH = {
    "mfa/email/totp_activated": "An authenticator app was added to your account",
    "mfa/email/totp_deactivated": REMOVED[Authenticator.Type.TOTP],
    "mfa/email/webauthn_added": "A passkey was added to your account",
    "mfa/email/webauthn_removed": REMOVED[Authenticator.Type.WEBAUTHN],
    "mfa/email/recovery_codes_generated": "Your account has new recovery codes",
}
"""Our subjects, by the templates of django-allauth's mail."""


def listen() -> None:
    post_save.connect(_saved, sender=User, dispatch_uid="change_mail")


def notify(
    person: User, change: str, *, to: str = "", was_confirmed: bool = False, by_link: bool = False
) -> None:
    """Mail the change to the person when the transaction has ended, or to the address that they had before
    (`was_confirmed`: as their confirmed one).

    The mail has the IP of a person who is signed in, or has come by a mailed link. All others, and commands,
    are "an operator". Nothing is sent without an address or a mail server.
    """
    address, request = to or person.email, allauth_context.request
    if not (address and settings.SENDS_EMAIL):
        return
    confirmed = EmailAddress.objects.filter(user=person, email=address.lower(), verified=True)
    if not (was_confirmed or confirmed.exists()) and _is_too_much(address):
        return
    is_own = request is not None and (by_link or getattr(request.user, "pk", None) == person.pk)
    context = {
        "change": change,
        "name": person.get_username(),
        "host": mail.service(request),
        "time": f"{timezone.now():%Y-%m-%d at %H:%M} UTC",
        "is_own": is_own,
        "ip": client_ip(request) if is_own else None,
        "url": mail.absolute_url(request, reverse("console:forgotten")) if is_own else "",
        "is_of_address": change == ADDRESS,
    }
    transaction.on_commit(partial(mail.send, "account_changed", address, **context))


def _is_too_much(address: str) -> bool:
    """Count a mail to an address that may be a stranger's, as pages for visitors do."""
    request = allauth_context.request
    try:
        return bool(attempts.count_mail(address.lower(), client_network(request) if request else ""))
    except RedisError:
        return True


def _saved(instance: User, created: bool, **_: Any) -> None:
    """Mail about a new password of an account that has existed before.

    Django keeps the raw password until the row is saved, but not when it only renews the hash.
    """
    if not created and getattr(instance, "_password", None) is not None:
        notify(instance, PASSWORD)
