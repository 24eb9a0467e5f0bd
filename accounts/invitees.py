"""The people whom a form or a request of the management API names: known ones, and new ones."""

from collections.abc import Collection, Sequence

from django.conf import settings
from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from accounts import access, memberships
from accounts.models import Group, Member, Organization, Project, placeholder_name

_TAKEN = "This name is taken. Choose another, or invite the person by their e-mail address alone."
_NOT_THE_ADDRESS = "A name with @ must be the person's e-mail address."
_CLOSED = "Only an operator of this service adds new people."
_IS_MEMBER = "{} is already a member of {}."
_IS_PENDING = Q(last_login=None, password__startswith=UNUSABLE_PASSWORD_PREFIX)
_OTHER_ADDRESS = "A person with this name exists: leave this empty to add them."


def known_to(by: access.Person) -> QuerySet[User]:
    """Return the people that a person may add: all for an operator, else their colleagues. Invited addresses
    are not among them: each invitation is accepted by itself, and looks the same if there is an account.
    """
    # Placeholders and other invited people, so that neither lists nor links tell one from the other.
    people = User.objects.exclude(_IS_PENDING, username__contains="@")
    if access.is_operator(by):
        return people
    return people.filter(pk__in=access.seen_by(by, Member.objects.all()).values("user"))


def names_known_to(by: access.Person, organization_id: int | None = None) -> QuerySet[User, str]:
    """Return the sorted user names of the people that a person may add, and of the members of this
    organization, for its pages that name them anyway.
    """
    members = User.objects.exclude(_IS_PENDING, username__contains="@").filter(
        memberships__organization=organization_id
    )
    people = User.objects.filter(Q(pk__in=known_to(by).values("pk")) | Q(pk__in=members.values("pk")))
    return people.filter(is_active=True).order_by("username").values_list("username", flat=True)


def person_named(by: access.Person, organization: Organization, name: str, email: str) -> User:
    """Return the person of that name that `by` knows, or a new unsaved one without a password. Raises
    `ValidationError`, for a member of the organization too.
    """
    known = known_to(by).filter(username=name).first()
    if known is not None and email and email != known.email:
        raise ValidationError({"email": _OTHER_ADDRESS})
    same = Q(user__email__iexact=name) if known is None else Q(user=known)
    if ("@" in name or known is not None) and organization.members.filter(same).exists():
        raise ValidationError({"name": _IS_MEMBER.format(name, organization)})
    if known is not None:
        return known
    _check_new_people_may_come({"name": _CLOSED}, by)
    return _new_person(name, email, "name")


def person_with_email(organization_id: int, email: str) -> User:
    """Return a new unsaved person whose user name is the address. Raises `ValidationError`, for a member of
    the organization too.
    """
    if Member.objects.filter(organization=organization_id, user__email__iexact=email).exists():
        raise ValidationError({"email": "This person is already a member, or is invited."})
    _check_new_people_may_come({"email": _CLOSED})
    return _new_person(email, email, "email")


def join(
    member: Member, projects: Sequence[Project] | None = None, in_groups: Collection[Group] = ()
) -> None:
    """Save the membership of an invited person as `memberships.join` does. Raises `ValidationError` as that
    does, and if somebody else has invited the person, or taken the name, at the same time.
    """
    person, organization, is_new = member.user, member.organization, member.user._state.adding
    try:
        with transaction.atomic():
            memberships.join(member, projects, in_groups)
        return
    except IntegrityError:
        same = Q(user__email__iexact=person.email) if is_new and person.email else Q(user=person.pk)
        if organization.members.filter(same).exists():
            raise ValidationError(_IS_MEMBER.format(member.name, organization)) from None
        if not is_new:
            raise
    member.user = _new_person(person.get_username(), person.email, "email")
    memberships.join(member, projects, in_groups)


def _check_new_people_may_come(error: dict[str, str], by: access.Person | None = None) -> None:
    """Raise `ValidationError` if only operators add people, and `by` is none."""
    if settings.SIGN_UP == "closed" and not (by and access.is_operator(by)):
        raise ValidationError(error)


def _new_person(name: str, email: str, name_field: str) -> User:
    # A confirmed address is in lower case, and a name that is the address changes with it.
    email = email.lower()
    name = name.lower() if "@" in name else name
    # Else its owner could neither sign up nor come in through a provider.
    if "@" in name and name != email:
        raise ValidationError({name_field: _NOT_THE_ADDRESS})
    if "@" not in name and User.objects.filter(username=name).exists():
        raise ValidationError({name_field: _TAKEN})
    # The answer is the same for an address that has an account.
    same = Q(username__iexact=name) | Q(email__iexact=name)
    has_account = "@" in name and User.objects.filter(same).exists()
    person = User(username=placeholder_name(name) if has_account else name, email=email)
    # Both the password reset and our invitations recognize by this a person who has never chosen a password.
    person.set_unusable_password()
    try:
        # Addresses, which `email` checks, may have signs that other names have not, as o'brien@example.com.
        person.full_clean(exclude=["username"] if "@" in name else None)
    except ValidationError as error:
        texts = error.message_dict
        if "username" in texts:
            # A form has its own name for the user name, and may have texts of its own about it.
            texts.setdefault(name_field, texts.pop("username"))
        raise ValidationError(texts) from error
    return person
