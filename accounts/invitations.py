"""Links with which invited people choose a password; without a mail server, also people who forgot theirs.

A link works once, for `PASSWORD_RESET_TIMEOUT`, and while its sender may still send it. Nothing of it is
stored: its token is `<sender>.<Django's token>`, and the signature in Django's token covers the sender.

    12              the person 12, who sees the link
    key-5           the API key 5, whose caller sees the link
    12-mail         the link was mailed, and nobody else has seen it: it confirms the address
    key-5-mail
"""

import re
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from redis.exceptions import RedisError

from accounts import acceptance, access, roles
from accounts.audit import recorder
from accounts.authentication import Caller, look_up_id
from accounts.errors import AccountsError
from accounts.forwarding import client_network
from accounts.memberships import sees
from accounts.models import APIKey, KeyScope, Member, Role, is_placeholder, shown_name
from accounts.sign_in import attempts, email_addresses, mail
from accounts.sign_in.form_limits import check_attempts
from accounts.sign_in.mail import absolute_url

_KEY, _MAILED = "key-", "-mail"
# At most 18 digits: Python refuses to parse a number of thousands of digits.
_SENDER = re.compile(f"({_KEY})?([0-9]{{1,18}})(?:{_MAILED})?")

_TOO_MANY = f"At most {attempts.MAX_INVITATIONS} people are invited in ten minutes. Try again later."


def count(inviter: str) -> None:
    """Count an invitation. Call it before the name is looked up, because the answer tells which names exist.

    Raises `ValidationError` after too many; without Redis there is no limit.
    """
    with suppress(RedisError):
        if attempts.count_invitation(inviter):
            raise ValidationError(_TOO_MANY)


def may_send(sender: access.Person, person: User) -> bool:
    """Return whether `sender` may have a link for that person.

    The link lets its holder sign in as the person, so the sender must be allowed to change them in each of
    their organizations. Nobody may have a link for a person who has a password or has signed in, or who is in
    no organization, and only superusers for staff.
    """
    places = list(Member.objects.filter(user=person).select_related("own_role"))
    if not acceptance.is_invited(person) or not places:
        return False
    if (person.is_staff or person.is_superuser) and not getattr(sender, "is_superuser", False):
        return False
    changeable = access.where_may(
        sender, "accounts.change_member", Member.objects.filter(user=person)
    ).count()
    is_above_sender = any(
        roles.is_above(access.rank(place), access.role_in(sender, place.organization_id)) for place in places
    )
    return changeable == len(places) and not is_above_sender


def may_reset(sender: access.Person, person: User) -> bool:
    """Return whether `sender` may have a link with which the person chooses another password.

    With a mail server, nobody may. Without one, a superuser may, and an owner may, if they own every
    organization of the other person, who is no staff. The second factor is still asked for.
    """
    if (
        settings.SENDS_EMAIL
        or acceptance.is_invited(person)
        or not person.is_active
        or person.pk == sender.pk
    ):
        return False
    if getattr(sender, "is_superuser", False):
        return True
    places = list(Member.objects.filter(user=person))
    return (
        bool(places)
        and not (person.is_staff or person.is_superuser)
        and all(access.role_in(sender, place.organization_id) == Role.OWNER for place in places)
    )


def path(caller: Caller, person: User) -> str:
    """Return the path at which the person chooses a password, while the caller's key may invite people."""
    return _path(f"{_KEY}{caller.api_key_id}", person)


def _key_may_send(api_key_id: int, person: User) -> bool:
    """Return whether the key may still invite the person, who has no other organization."""
    try:
        caller = look_up_id(api_key_id)
        caller.require(KeyScope.MANAGEMENT)
        access.require(caller, "accounts.add_member")
        for place in Member.objects.filter(user=person).select_related("own_role"):
            access.require_role(caller, access.rank(place))
    except AccountsError:
        return False
    places = list(Member.objects.filter(user=person).values_list("organization", flat=True))
    is_free = acceptance.is_invited(person) and not (person.is_staff or person.is_superuser)
    return is_free and places == [caller.organization_id]


def link(request: HttpRequest, person: User) -> str:
    """Return the absolute URL at which the person chooses a password, while the sender may still send it."""
    return absolute_url(request, _path(f"{request.user.pk}", person))


def reset_link(request: HttpRequest, person: User) -> str:
    """Return the link for a person whom the sender may reset, and record in each of the person's
    organizations that it was made.
    """
    for row in Member.objects.filter(user=person).select_related("user", "organization") or [person]:
        recorder.record("made a link for a new password", row)
    return link(request, person)


def send(request: HttpRequest, member: Member, caller: Caller | None = None) -> bool | None:
    """Mail the invitation, from the key's caller or else from the person who is signed in.

    Returns whether a server took it; None if nothing was sent, because there is no mail server, no address or
    no URL for the link. Raises `TooManyAttempts`.
    """
    address = member.user.email
    # The API accepts any host name, so a link must not be built from the one in a key's request.
    has_url = settings.PUBLIC_URL or caller is None
    if not (address and settings.SENDS_EMAIL and has_url):
        return None
    check_attempts(attempts.count_mail, address, client_network(request))
    sender = f"{_KEY}{caller.api_key_id}{_MAILED}" if caller else f"{request.user.pk}{_MAILED}"
    url = absolute_url(request, _path(sender, member.user))
    context = {
        "member": member,
        "sees": sees(member),
        "sender": sender_named(sender, member),
        "has_account": is_placeholder(member.user),
    }
    return mail.send("invitation", address, url=url, host=mail.host(request), **context)


def obstacle(person: User, invited: User, token: str) -> str:
    """Return why the person, who is signed in, can't accept the invitation of a valid token; "" if they can.

    The link alone is not enough: the account must be that of the invited address.
    """
    address = invited.email.lower()
    owner = email_addresses.owner_of(address) if address else None
    is_named = address and address in (person.email.lower(), person.get_username().lower())
    if not is_named or owner not in (None, person):
        return (
            f"You are signed in as {person}, and this invitation is for {shown_name(invited)}. To accept it "
            "with another account, sign out first, and open the link again."
        )
    if person.is_staff or person.is_superuser:
        return "Only an operator makes an operator's account a member: in the administration, Members."
    is_proven = owner == person or (confirms_address(token) and person.email.lower() == address)
    if settings.SENDS_EMAIL and not is_proven:
        return f"Confirm the address {address} at “Your account” first, and open the link again."
    return ""


def accept(person: User, invited: User, token: str) -> None:
    """Give the invitation to the person, who has no `obstacle`, in the caller's transaction. Raises
    `ValidationError` as `acceptance.accept` does.
    """
    acceptance.accept(invited, person)
    if confirms_address(token):
        email_addresses.confirm(person, invited.email)


def confirms_address(token: str) -> bool:
    """Return whether a valid token was mailed to the person, so that nobody else has seen it."""
    return token.partition(".")[0].endswith(_MAILED)


def sender_named(token: str, member: Member | None) -> str:
    """Return the name of the sender of a valid token, as the invited member may read it; the token's part
    before the "." is enough.
    """
    known = _SENDER.fullmatch(token.partition(".")[0])
    if known is None:
        return ""
    if known[1] and member is not None and member.is_limited:
        # The key may be of a project that the person does not see.
        return f"{member.organization}'s API key"
    if known[1]:
        return f"API key {APIKey.objects.filter(pk=known[2]).values_list('name', flat=True).first()}"
    person = User.objects.filter(pk=known[2]).first()
    return (person.get_full_name() or person.get_username()) if person else ""


def _path(sender: str, person: User) -> str:
    token = f"{sender}.{_Tokens(sender).make_token(person)}"
    return reverse("console:accept", args=[urlsafe_base64_encode(force_bytes(person.pk)), token])


class _Tokens(PasswordResetTokenGenerator):
    """Django's tokens, which a new password invalidates; the signature includes the sender."""

    key_salt = "accounts.invitations"

    def __init__(self, sender: str) -> None:
        """`sender`: see the module's docstring."""
        super().__init__()
        self._sender = sender

    def _make_hash_value(self, user: Any, timestamp: int) -> str:
        # Otherwise anybody could put another sender in front of a token.
        return f"{super()._make_hash_value(user, timestamp)}{self._sender}"


class AnySender:
    """Checks tokens of all senders, as a `token_generator` of Django's page for a new password."""

    def check_token(self, person: User | None, token: str | None) -> bool:
        """Return whether the token is valid for the person and its sender may still send it."""
        name, _, signed = (token or "").partition(".")
        known = _SENDER.fullmatch(name)
        # The signature first, because it costs no query.
        if person is None or known is None or not _Tokens(name).check_token(person, signed):
            return False
        if known[1]:
            return _key_may_send(int(known[2]), person)
        sender = User.objects.filter(pk=known[2], is_active=True).first()
        return sender is not None and (may_send(sender, person) or may_reset(sender, person))
