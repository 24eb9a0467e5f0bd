"""Placeholders: invited people whose address has an account already.

A placeholder is a person to whom nobody can sign in. It keeps the membership until the address's owner signs
in to their own account and accepts. Pages, files and the audit log show its address as its name, as they do
for all people who are invited by an address: they must not tell which addresses have accounts.
"""

import secrets

from django.contrib.auth.models import User
from django.db.models import Case, Q, When

# No other user name has a space behind its last "@".
_MARK = " (invitation)"

IS_PLACEHOLDER = Q(username__endswith=_MARK)
SHOWN_NAME = Case(When(user__username__endswith=_MARK, then="user__email"), default="user__username")
"""The name of a member, as `shown_name` returns it."""


def placeholder_name(address: str) -> str:
    """Return a new user name for a placeholder."""
    return f"{address[:100]} {secrets.token_hex(8)}{_MARK}"


def is_placeholder(person: User) -> bool:
    return person.get_username().endswith(_MARK)


def shown_name(person: User) -> str:
    """Return the user name, or the address of a placeholder."""
    return person.email if is_placeholder(person) else person.get_username()
