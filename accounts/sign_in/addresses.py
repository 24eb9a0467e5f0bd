"""Confirmed e-mail addresses, and the signed links that confirm them.

A person has one address, `User.email`; it is confirmed if there is a row of it. A confirmed address belongs
to one person. Links hold all that they do, so an address that nobody confirms leaves no row.
"""

from typing import Any

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction

_SALT = "accounts.sign_in.addresses"


def is_confirmed(person: User) -> bool:
    """Return whether the person has shown that they read mail to their address."""
    rows = EmailAddress.objects.filter(user=person, email=person.email.lower(), verified=True)
    return bool(rows.exists())


def is_taken(address: str, *, except_of: User | None = None) -> bool:
    """Return whether the address is another person's, as a confirmed address, user name or only by claim."""
    others = User.objects.exclude(pk=except_of.pk) if except_of else User.objects.all()
    return (
        others.filter(emailaddress__email=address, emailaddress__verified=True).exists()
        or others.filter(username__iexact=address).exists()
        or others.filter(email__iexact=address).exists()
    )


def confirm(person: User, address: str) -> bool:
    """Make this the person's confirmed address; return False if it is somebody else's."""
    address = address.lower()
    with transaction.atomic():
        if EmailAddress.objects.filter(email=address, verified=True).exclude(user=person).exists():
            return False
        EmailAddress.objects.filter(user=person).exclude(email=address).delete()
        EmailAddress.objects.update_or_create(
            user=person, email=address, defaults={"verified": True, "primary": True}
        )
        if person.email != address:
            person.email = address
            person.save(update_fields=["email"])
    return True


def sign(purpose: str, content: dict[str, Any]) -> str:
    """Return the content as a token that only this purpose reads."""
    return signing.dumps(content, salt=f"{_SALT}.{purpose}")


def read(purpose: str, token: str) -> dict[str, Any] | None:
    """Return the content of a token that is not older than `PASSWORD_RESET_TIMEOUT`, or None."""
    try:
        content: dict[str, Any] = signing.loads(
            token, salt=f"{_SALT}.{purpose}", max_age=settings.PASSWORD_RESET_TIMEOUT
        )
    except signing.BadSignature:
        return None
    return content
