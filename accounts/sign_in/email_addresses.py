"""Confirmed e-mail addresses, and the signed links that confirm them.

A person has one address, `User.email`; it is confirmed if there is a row of it. A confirmed address belongs
to one person. A row whose address is not the person's current one is ignored: an operator has changed the
address. Links contain everything that they do, so an address that nobody confirms leaves no row.
"""

from typing import Any

from allauth.account.models import EmailAddress
from django.conf import settings
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.db.models import Q

from accounts.models import IS_PLACEHOLDER

# Links that people have got are signed with this name.
_SALT = "accounts.sign_in.addresses"
# An address is its person's user name, too, and this is the length of Django's column.
MAX_CHARS = 150


def owner_of(address: str) -> User | None:
    """Return the person who has confirmed this address, and still has it."""
    rows = EmailAddress.objects.filter(email=address.lower(), verified=True, user__email__iexact=address)
    row = rows.select_related("user").first()
    person: User | None = row.user if row else None
    return person


def is_own(person: User) -> bool:
    """Return whether the person has confirmed their address, or has none."""
    return not person.email or owner_of(person.email) == person


def is_taken(address: str, *, except_of: User | None = None) -> bool:
    """Return whether the address is another person's, confirmed or not, or their user name. Placeholders
    leave it to its owner.
    """
    others = User.objects.exclude(IS_PLACEHOLDER)
    others = others.exclude(pk=except_of.pk) if except_of else others
    return others.filter(Q(username__iexact=address) | Q(email__iexact=address)).exists()


def confirm(person: User, address: str) -> bool:
    """Make this the person's confirmed address; return False if it is somebody else's."""
    address = address.lower()
    with transaction.atomic():
        if owner_of(address) not in (None, person):
            return False
        of_person, of_address = Q(user=person), Q(email=address)
        # The person's other addresses, and the address of people who don't have it any more.
        EmailAddress.objects.filter((of_person & ~of_address) | (of_address & ~of_person)).delete()
        EmailAddress.objects.update_or_create(
            user=person, email=address, defaults={"verified": True, "primary": True}
        )
        if person.username == person.email and person.email.lower() != address:
            # Else the next owner of the address before could neither sign up nor be invited.
            person.username = address
        if person.email != address:
            person.email = address
            person.save(update_fields=["email", "username"])
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
