"""Checks of many sign-ins at once, for pages that stay open for hours, and the end of old sessions.

Updates of a page must end when its person signs out, is made inactive, gets another password or loses
the permission. So the process that sends them checks all its pages regularly, in four queries together.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from allauth.usersessions.models import UserSession
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from accounts import access
from accounts.models import Member

# Of one person: each sign-in, and the page of the account, ask three queries for each session.
MAX_SESSIONS = 50
DELETED_AT_ONCE = 500


class SignIn(NamedTuple):
    """One person in one browser."""

    user_id: int
    session_key: str
    password_hash: str
    """Django's digest of the password at sign-in: a new password ends sessions."""

    @classmethod
    def of(cls, user: Any, session: Any) -> "SignIn | None":
        """Return the sign-in of a request or connection; None for a visitor."""
        if not user.is_authenticated or not session.session_key:
            return None
        return cls(user.pk, session.session_key, session.get(HASH_SESSION_KEY, ""))


def permitted(permission: str, sign_ins: Collection[SignIn]) -> Mapping[SignIn, User]:
    """Return those whose session is open and whose person may do this, each with the person as they are now.

    A permission is a name such as "usage.view_generation". The person may do this in the whole installation,
    in a whole organization (by an own role in the console only), or in single projects of one: `access` tells
    which.
    """
    people = _people({each.user_id for each in sign_ins})
    sessions = Session.objects.filter(
        session_key__in={each.session_key for each in sign_ins}, expire_date__gt=timezone.now()
    )
    open_sessions = set(sessions.values_list("session_key", flat=True))
    staff = [person.pk for person in people.values() if access.is_operator(person)]
    # One query for all operators; the roles of members are in memory.
    operators = User.objects.with_perm(permission).filter(pk__in=staff)
    allowed = set(operators.values_list("pk", flat=True))

    def may(each: SignIn) -> bool:
        person = people.get(each.user_id)
        if person is None or each.session_key not in open_sessions or not access.may_sign_in(person):
            return False
        # A new password ends the person's sessions, as in Django's own middleware.
        if not constant_time_compare(person.get_session_auth_hash(), each.password_hash):
            return False
        if access.is_operator(person):
            return person.pk in allowed
        return (
            person.has_perm(permission)
            or bool(access.organizations_by_own_role(person, permission))
            or any(
                access.may_in_projects(person, permission, each) for each in access.limited_roles_of(person)
            )
        )

    return {each: people[each.user_id] for each in sign_ins if may(each)}


def _people(ids: Collection[int]) -> dict[int, User]:
    memberships: defaultdict[int, list[Member]] = defaultdict(list)
    for member in Member.objects.filter(user__in=ids).select_related("own_role"):
        memberships[member.user_id].append(member)
    people = {person.pk: person for person in User.objects.filter(pk__in=ids, is_active=True)}
    for person in people.values():
        access.remember_places(person, memberships[person.pk])
    return people


def end_oldest(person: Any, current: str | None) -> None:
    """End the person's oldest sessions, so that there is room for the one with this key."""
    others = UserSession.objects.filter(user=person).exclude(session_key=current)
    rows = others.order_by("-pk").values_list("session_key", flat=True)
    _delete(list(rows[MAX_SESSIONS - 1 : MAX_SESSIONS - 1 + DELETED_AT_ONCE]))


def delete_expired(now: datetime, items: Sequence[None]) -> list[bool]:
    """Delete expired sessions, at most `DELETED_AT_ONCE`; an operation of `GroupCommit`.

    Its result is whether there may be more of them.
    """
    expired = Session.objects.filter(expire_date__lte=now).order_by("expire_date")
    keys = list(expired.values_list("session_key", flat=True)[:DELETED_AT_ONCE])
    _delete(keys)
    return [len(keys) == DELETED_AT_ONCE] * len(items)


def _delete(keys: Sequence[str]) -> None:
    Session.objects.filter(session_key__in=keys).delete()
    UserSession.objects.filter(session_key__in=keys).delete()
