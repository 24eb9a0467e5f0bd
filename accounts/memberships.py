"""Memberships: adding people, changing roles, removing people. An organization always keeps an owner."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Lower

from accounts import access, groups
from accounts.models import (
    IS_PLACEHOLDER,
    LIMITABLE_ROLES,
    Group,
    Member,
    Organization,
    Project,
    Role,
    is_placeholder,
    placeholder_name,
)

LAST_OWNER = "This is the organization's only owner: make someone else an owner first."
_CHANGED = "This member was changed or removed just now. Look again."
_TAKEN = "This name is taken. Choose another, or invite the person by their e-mail address alone."
_NOT_THE_ADDRESS = "A name with @ must be the person's e-mail address."
_CLOSED = "Only an operator of this service adds new people."
MAX_PROJECTS_OF_LIMIT = 100
"""The most projects to which a membership can be limited: it is checked every second for open Live pages."""
LIMITED = (
    "This person sees single projects only, as a viewer or a member. Let them see all projects before they "
    "get a higher role."
)
KEPT = (
    "{} sees nothing of the organization now, and stays listed without any project, so that the identity "
    "provider does not bring them back with all projects."
)
"""The result of a removal that has kept the membership."""
BY_GROUP = "This member sees the project by the group {}: take the member or the project from the group."
MAX_NAMED = 3
"""The most projects that a sentence or a list names."""
_OTHER_ADDRESS = "A person with this name exists: leave this empty to add them."


def known_to(by: access.Person) -> QuerySet[User]:
    """Return the people that a person may add: all for an operator, else their colleagues. Invited addresses
    are not among them: each invitation is accepted by itself, and looks the same if there is an account.
    """
    is_pending = Q(last_login=None, password__startswith=UNUSABLE_PASSWORD_PREFIX)
    # Placeholders and other invited people, so that neither lists nor links tell one from the other.
    people = User.objects.exclude(is_pending, username__contains="@")
    if access.is_operator(by):
        return people
    return people.filter(pk__in=access.seen_by(by, Member.objects.all()).values("user"))


def names_known_to(by: access.Person) -> QuerySet[User, str]:
    """Return the sorted user names of the people that a person may add."""
    return known_to(by).filter(is_active=True).order_by("username").values_list("username", flat=True)


def of_whole(*organization_ids: int | None) -> QuerySet[Member]:
    """Return the members who see all of these organizations' projects: what is about a whole organization,
    such as its mail, is for them only.
    """
    rows = Member.objects.filter(organization__in=organization_ids, is_limited=False)
    return rows.select_related("user")


def with_emails(rows: QuerySet[Member], emails: Collection[str]) -> QuerySet[Member]:
    """Return the memberships of people with these addresses, which are compared without case."""
    lower = [each.lower() for each in emails]
    return rows.alias(lower_email=Lower("user__email")).filter(lower_email__in=lower)


def person_named(by: access.Person, organization: Organization, name: str, email: str) -> User:
    """Return the person of that name that `by` knows, or a new unsaved one without a password. Raises
    `ValidationError`, for a member of the organization too.
    """
    known = known_to(by).filter(username=name).first()
    if known is not None and email and email != known.email:
        raise ValidationError({"email": _OTHER_ADDRESS})
    same = Q(user__email__iexact=name) if known is None else Q(user=known)
    if ("@" in name or known is not None) and organization.members.filter(same).exists():
        raise ValidationError({"name": f"{name} is already a member of {organization}."})
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


def join(
    member: Member, projects: Sequence[Project] | None = None, in_groups: Collection[Group] = ()
) -> None:
    """Save the membership, and the person if new. It is limited to these projects and those of the groups,
    unless the projects are None.

    Raises `ValidationError` for a role that can't be limited, and for projects of another organization.
    """
    if member.is_limited and projects is None:
        raise ValueError("A limited membership needs its projects, even if there are none.")
    check_limit(member.organization_id, member.role, projects)
    member.is_limited = projects is not None
    with transaction.atomic():
        if member.user._state.adding:
            member.user.save()
            member.user_id = member.user.pk
        member.save()
        if projects is not None:
            member.projects.set(projects)
        groups.set_groups(member, in_groups)


def change_role(member: Member, role: str) -> None:
    """Change the role; raises `ValidationError` if the organization would lose its last owner, if the member
    is limited to projects and the role can't be, or if the member is not as they were read.
    """
    if member.is_limited and role not in LIMITABLE_ROLES:
        raise ValidationError(LIMITED)
    with _owned_after(member, is_owner=role == Role.OWNER):
        member.role = role
        member.save(update_fields=["role"])


def place(member: Member) -> str:
    """Return role, projects and groups as the database has them, to be compared: "viewer 3,7", "admin all",
    "member 3 with 1,2".
    """
    row = Member.objects.get(pk=member.pk)
    ids, group_ids = (
        ",".join(map(str, sorted(rows.values_list("pk", flat=True)))) for rows in (row.projects, row.groups)
    )
    # A form takes spaces at the end away, so no projects need a word, too.
    return f"{row.role} {(ids or 'none') if row.is_limited else 'all'}" + (
        f" with {group_ids}" if group_ids else ""
    )


def change_place(
    member: Member,
    role: str,
    projects: Sequence[Project] | None,
    known: str | None = None,
    in_groups: Collection[Group] | None = None,
) -> None:
    """Change the role, limit the member to these projects and those of their groups, or take the limit away
    (None), and put the member into these groups only, unless they are None.

    `known` is the `place` that the caller has decided on. Raises `ValidationError` if it is another one now,
    and as `change_role` and `join` do.
    """
    check_limit(member.organization_id, role, projects)
    with _owned_after(member, is_owner=role == Role.OWNER):
        if known is not None and known != place(member):
            raise ValidationError(_CHANGED)
        member.role, member.is_limited = role, projects is not None
        member.save(update_fields=["role", "is_limited"])
        member.projects.set(projects or ())
        if in_groups is not None:
            groups.set_groups(member, in_groups)


def add_project(member: Member, project: Project) -> None:
    """Let a limited member see this project, too, whether or not a group gives it. Raises `ValidationError`
    as `join` does.
    """
    check_limit(member.organization_id, member.role, [*member.projects.exclude(pk=project.pk), project])
    with _owned_after(member, is_owner=True):
        member.projects.add(project)


def take_project(member: Member, project: Project) -> None:
    """Take the project from a limited member, who sees nothing after the last one. Raises `ValidationError`
    if a group of theirs gives it, so that they would still see it.
    """
    with _owned_after(member, is_owner=True):
        if group := member.groups.filter(projects=project).first():
            raise ValidationError(BY_GROUP.format(group.name))
        member.projects.remove(project)


def check_limit(organization_id: int, role: str, projects: Sequence[Project] | None) -> None:
    """Raise `ValidationError` if a member with this role can't be limited to these projects."""
    if projects is None:
        return
    if role not in LIMITABLE_ROLES:
        raise ValidationError({"role": "Only a viewer or a member can be limited to projects."})
    if any(each.organization_id != organization_id for each in projects):
        raise ValidationError({"projects": "A project of another organization is among these."})
    if len(projects) > MAX_PROJECTS_OF_LIMIT:
        raise ValidationError({"projects": f"Choose at most {MAX_PROJECTS_OF_LIMIT} projects."})


def projects_seen(member: Member) -> str:
    """Return the projects that the member sees, as lists show them: "all", or the first names, those that
    come by a group with it.
    """
    if not member.is_limited:
        return "all"
    own = set(member.projects.all())
    names = []
    for row, giving in access.limits_of(member).items():
        by = ", ".join(group.name for group in giving)
        names.append(f"{row.name} ({'also ' if row in own else ''}by {by})" if by else row.name)
    more = len(names) - MAX_NAMED
    shown = ", ".join(names[:MAX_NAMED])
    return (f"{shown} and {more} more" if more > 0 else shown) or "none"


def sees(member: Member) -> str:
    """Return what the member sees, for a sentence: "Acme", or "the project shop of Acme"."""
    if not member.is_limited:
        return str(member.organization)
    names = [row.name for row in access.limits_of(member)]
    if len(names) == 1:
        return f"the project {names[0]} of {member.organization}"
    if 1 < len(names) <= MAX_NAMED:
        return f"the projects {', '.join(names[:-1])} and {names[-1]} of {member.organization}"
    return f"{len(names) or 'no'} projects of {member.organization}"


def remove(member: Member) -> bool:
    """Remove the membership and return True. If it is limited and the person may come back, keep it without
    any project or group and return False: a new membership would be of all projects.

    Raises `ValidationError` if the organization would lose its last owner, or if the member is not as they
    were read.
    """
    with _owned_after(member, is_owner=False):
        if member.is_limited and may_come_back(member):
            member.projects.clear()
            member.groups.clear()
            return False
        member.delete()
    return True


def may_come_back(member: Member) -> bool:
    """Return whether the organization's identity provider may make the person a member again: by a group, or
    as a new person.
    """
    owned = Organization.objects.filter(
        pk=member.organization_id,
        email_domains__domain=member.user.email.rpartition("@")[2].lower(),
        email_domains__approved_at__isnull=False,
    )
    gives_roles = Q(identity_provider__groups_claim__gt="") | Q(identity_provider__default_role__gt="")
    return owned.filter(gives_roles).exists()


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
    return members.filter(user__last_login=None, user__password__startswith=UNUSABLE_PASSWORD_PREFIX)


def withdraw(member: Member) -> None:
    """Remove a pending membership, and the person if that was the only one, so that the name is free again.
    Raises `ValidationError` if the person has accepted, or as `remove` does.
    """
    with transaction.atomic():
        person = User.objects.select_for_update().filter(pk=member.user_id).first()
        if person is None:
            raise ValidationError(_CHANGED)
        member.user = person
        if not is_invited(person):
            raise ValidationError("This invitation was accepted. Remove the member instead.")
        with _owned_after(member, is_owner=False):
            member.delete()
        if not (person.is_staff or person.is_superuser or person.memberships.exists()):
            person.delete()


def open_for(person: User) -> QuerySet[Member]:
    """Return the invitations for the person's address, which they accept after they have signed in."""
    if not person.email:
        return Member.objects.none()
    others = Member.objects.filter(user__is_active=True).exclude(user=person.pk)
    return pending(with_emails(others, [person.email]))


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
            with _owned_after(row, is_owner=False):
                row.delete()
        for row in rows:
            row.user = person
            row.save(update_fields=["user"])
        invited.delete()


def accept_at_provider(person: User, organization_id: int) -> None:
    """Give the person the membership to which their address is invited here, with its limit to projects."""
    for row in open_for(person).filter(organization=organization_id).select_related("user"):
        if is_placeholder(row.user):
            if person._state.adding:
                person.save()
            with suppress(ValidationError):  # the invitation of the only owner waits
                accept(User.objects.select_for_update().get(pk=row.user_id), person)


def set_aside(invited: User) -> bool:
    """Make an invited person the placeholder of their address, which gets an account now; return False if
    they have accepted.
    """
    person = User.objects.select_for_update().get(pk=invited.pk)
    if not is_invited(person) or person.is_staff or person.is_superuser:
        return False
    person.username = placeholder_name(person.email)
    person.save(update_fields=["username"])
    return True


def take_name(person: User, *, is_mailed: bool) -> bool:
    """Return whether the invited person may choose a password. A placeholder may not, unless the account of
    its address is gone, or has not confirmed the address to which the link was mailed: then it becomes the
    account.
    """
    if not is_placeholder(person):
        return True
    address = person.email
    is_confirmed = Q(emailaddress__email=address, emailaddress__verified=True, email__iexact=address)
    has_account = Q(username__iexact=address) | is_confirmed
    if not is_mailed:
        has_account |= Q(email__iexact=address)
    if User.objects.exclude(IS_PLACEHOLDER).filter(has_account).exists():
        return False
    person.username = address
    with suppress(IntegrityError), transaction.atomic():  # somebody may sign up with the address now
        person.save(update_fields=["username"])
        return True
    return False


def is_last_owner(member: Member) -> bool:
    """Return whether the organization has no other owner, as the database has it."""
    owners = Member.objects.filter(organization=member.organization_id, role=Role.OWNER)
    return owners.filter(pk=member.pk).exists() and not owners.exclude(pk=member.pk).exists()


@contextmanager
def _owned_after(member: Member, *, is_owner: bool) -> Iterator[None]:
    with transaction.atomic():
        # If two owners remove each other at once, the second waits here and then is the last one.
        Organization.objects.select_for_update(no_key=True).get(pk=member.organization_id)
        # The role and the limit that were read decided whether the caller may do this.
        same = Member.objects.filter(pk=member.pk, role=member.role, is_limited=member.is_limited)
        if not same.exists():
            raise ValidationError(_CHANGED)
        if not is_owner and is_last_owner(member):
            raise ValidationError(LAST_OWNER)
        yield
