"""Who belongs to which organization: giving people a place, changing their roles, letting them go. An
organization keeps an owner.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from accounts import access
from accounts.models import Member, Organization, Role

LAST_OWNER = "This is the organization's only owner: make someone else an owner first."
_TAKEN = "This name is taken. Choose another; if it is the person that you mean, ask an operator to add them."
_OTHER_ADDRESS = "There is a person of this name already: leave this empty to add them."


def known_to(by: access.Person) -> QuerySet[User]:
    """The people that a person may add: an operator everyone, others their colleagues."""
    if access.is_operator(by):
        return User.objects.all()
    return User.objects.filter(pk__in=access.seen_by(by, Member.objects.all()).values("user"))


def person_named(by: access.Person, name: str, email: str) -> User:
    """Whom `by` knows by that name, or else a new person, not saved yet and without a password. Raises
    `ValidationError`.
    """
    known = known_to(by).filter(username=name).first()
    if known is None:
        return _new_person(name, email)
    if email and email != known.email:
        raise ValidationError({"email": _OTHER_ADDRESS})
    return known


def join(member: Member) -> None:
    """Give the person, who may be new, this place."""
    with transaction.atomic():
        if member.user._state.adding:
            member.user.save()
            member.user_id = member.user.pk
        member.save()


def change_role(member: Member, role: str) -> None:
    """Another role from now on; raises `ValidationError` if nobody would own the organization."""
    with _owned_after(member, is_owner=role == Role.OWNER):
        member.role = role
        member.save(update_fields=["role"])


def remove(member: Member) -> None:
    """No place any more; raises `ValidationError` if nobody would own the organization."""
    with _owned_after(member, is_owner=False):
        member.delete()


def is_last_owner(member: Member) -> bool:
    """Whether the organization has no other owner than this one, as the database has it."""
    owners = Member.objects.filter(organization=member.organization_id, role=Role.OWNER)
    return owners.filter(pk=member.pk).exists() and not owners.exclude(pk=member.pk).exists()


@contextmanager
def _owned_after(member: Member, *, is_owner: bool) -> Iterator[None]:
    with transaction.atomic():
        # Two owners who remove each other at the same time: the second waits here, and sees that it is the
        # last.
        Organization.objects.select_for_update().get(pk=member.organization_id)
        if not is_owner and is_last_owner(member):
            raise ValidationError(LAST_OWNER)
        yield


def _new_person(name: str, email: str) -> User:
    if User.objects.filter(username=name).exists():
        raise ValidationError({"name": _TAKEN})
    person = User(username=name, email=email)
    person.set_unusable_password()
    try:
        person.full_clean()
    except ValidationError as error:
        raise ValidationError(
            {{"username": "name"}.get(field, field): texts for field, texts in error.message_dict.items()}
        ) from error
    return person
