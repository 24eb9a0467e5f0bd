"""Open invitations, and what ends them: each is the membership of a person who has not signed in yet."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts import access, memberships
from accounts.models import IS_PLACEHOLDER, Member, is_placeholder, placeholder_name


def is_invited(person: User) -> bool:
    """Return whether the person was invited and has not signed in or chosen a password yet."""
    return person.last_login is None and not person.has_usable_password()


def state(member: Member) -> str:
    """Return "active", "invited" or "inactive"."""
    if not member.user.is_active:
        return "inactive"
    return "invited" if is_invited(member.user) else "active"


def pending(members: QuerySet[Member]) -> QuerySet[Member]:
    """Return the members whose `is_invited` is true."""
    return members.filter(memberships.IS_PENDING)


def expires_at(member: Member) -> datetime:
    """Return when a pending membership expires: with the link that was made at the same time."""
    return member.created_at + timedelta(seconds=settings.PASSWORD_RESET_TIMEOUT)


def withdraw(member: Member) -> None:
    """Remove a pending membership, and the person if that was the only one, so that the name is free again.
    Raises `ValidationError` if the person has accepted, or as `remove` does.
    """
    with transaction.atomic():
        person = User.objects.select_for_update().filter(pk=member.user_id).first()
        if person is None:
            raise ValidationError(memberships.CHANGED)
        member.user = person
        if not is_invited(person):
            raise ValidationError("This invitation was accepted. Remove the member instead.")
        with memberships.owned_after(member, is_owner=False):
            member.delete()
        if not (person.is_staff or person.is_superuser or person.memberships.exists()):
            person.delete()


def open_for(person: User) -> QuerySet[Member]:
    """Return the invitations for the person's address, which they accept after they have signed in."""
    if not person.email:
        return Member.objects.none()
    others = Member.objects.filter(user__is_active=True).exclude(user=person.pk)
    return pending(memberships.with_emails(others, [person.email]))


def may_sign_in(person: Any) -> bool:
    """Return whether the person may sign in: as a member or operator, or to accept an invitation."""
    return access.may_sign_in(person) or bool(person.is_active and open_for(person).exists())


def accept(invited: User, person: User) -> None:
    """Give the memberships of the invited person, whose row the caller has locked, to this person. Where
    they are a member already, they keep their own; raises `ValidationError` if no owner would remain.
    """
    rows = Member.objects.filter(user=invited)
    with transaction.atomic():
        for row in rows.filter(organization__members__user=person):
            with memberships.owned_after(row, is_owner=False):
                row.delete()
        for row in rows:
            row.user = person
            row.save(update_fields=["user"])
        invited.delete()


def accept_at_provider(person: User, organization_id: int) -> None:
    """Give the person the membership to which their address is invited here, with its limit to projects.

    Expired invitations are removed: only the provider's rules decide then. Raises `ValidationError` for that
    of the only owner.
    """
    if person.pk is not None and is_invited(person):
        for row in Member.objects.filter(user=person, organization=organization_id):
            if expires_at(row) <= timezone.now():
                with memberships.owned_after(row, is_owner=False):
                    row.delete()
    for row in open_for(person).filter(organization=organization_id).select_related("user"):
        if is_placeholder(row.user):
            # The invitation of the only owner waits. Another one may be withdrawn at this moment.
            with suppress(ValidationError, User.DoesNotExist):
                if expires_at(row) <= timezone.now():
                    withdraw(row)
                    continue
                if person._state.adding:
                    person.save()
                accept(User.objects.select_for_update().get(pk=row.user_id), person)


def set_aside(invited: User) -> bool:
    """Make an invited person the placeholder of their address, which gets an account now; return False if
    they have accepted.
    """
    person = User.objects.select_for_update().filter(pk=invited.pk).first()
    if person is None:  # the invitation was withdrawn just now
        return True
    if not is_invited(person) or person.is_staff or person.is_superuser:
        return False
    person.username = placeholder_name(person.email)
    person.save(update_fields=["username"])
    return True


def take_name(person: User, *, is_mailed: bool) -> bool:
    """Return whether the invited person may choose a password. A placeholder may not, unless the account of
    its address is gone, or has not confirmed the address to which the link was mailed: then it becomes the
    account. Another invitation that has the name gives it to the holder of a mailed link, and waits.
    """
    if not is_placeholder(person):
        return True
    address = person.email
    is_confirmed = Q(emailaddress__email=address, emailaddress__verified=True, email__iexact=address)
    has_account = Q(username__iexact=address) | is_confirmed
    if not is_mailed:
        has_account |= Q(email__iexact=address)
    for other in User.objects.exclude(IS_PLACEHOLDER).filter(has_account):
        if not (is_mailed and other.username == address and set_aside(other)):
            return False
    person.username = address
    with suppress(IntegrityError), transaction.atomic():  # somebody may sign up with the address now
        person.save(update_fields=["username"])
        return True
    return False
