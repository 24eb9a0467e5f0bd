"""Memberships: joining, roles, limits to projects, removing. An organization keeps its last active owner."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Lower

from accounts import access, groups, own_roles
from accounts.models import LIMITABLE_ROLES, Group, Member, Organization, OwnRole, Project, Role

LAST_OWNER = "This is the organization's only owner: make someone else an owner first."
CHANGED = "This member was changed or removed just now. Look again."
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
IS_PENDING = Q(user__last_login=None, user__password__startswith=UNUSABLE_PASSWORD_PREFIX)
"""The members who were invited and have not signed in or chosen a password yet."""
IS_ACTIVE = Q(user__is_active=True) & ~IS_PENDING
_EVENTS = "usage.view_event"
MAX_NAMED = 3
"""The most projects that a sentence or a list names."""


def of_whole(*organization_ids: int | None) -> QuerySet[Member]:
    """Return the members who see all of these organizations' projects, and may read their events: what is
    about a whole organization, such as its mail, is for them only.
    """
    # Filtered here: SQLite can't look for a value in a list.
    own = OwnRole.objects.filter(organization__in=organization_ids)
    permitting = [row.pk for row in own if _EVENTS in own_roles.permissions_of(row.permissions)]
    rows = Member.objects.filter(
        Q(is_limited=False) | Q(own_role__in=permitting), organization__in=organization_ids
    )
    return rows.select_related("user")


def with_emails(rows: QuerySet[Member], emails: Collection[str]) -> QuerySet[Member]:
    """Return the memberships of people with these addresses, which are compared without case."""
    lower = [each.lower() for each in emails]
    return rows.alias(lower_email=Lower("user__email")).filter(lower_email__in=lower)


def join(
    member: Member, projects: Sequence[Project] | None = None, in_groups: Collection[Group] = ()
) -> None:
    """Save the membership, and the person if new. It is limited to these projects and those of the groups,
    unless the projects are None.

    Raises `ValidationError` for a role that can't be limited, and for projects of another organization.
    """
    if member.sees_single_projects and projects is None:
        raise ValueError("A limited membership needs its projects, even if there are none.")
    check_limit(member.organization_id, member.own_role or member.role, projects)
    member.is_limited = projects is not None or member.own_role is not None
    with transaction.atomic():
        if member.user._state.adding:
            member.user.save()
            member.user_id = member.user.pk
        member.save()
        if projects is not None:
            member.projects.set(projects)
        groups.set_groups(member, in_groups)


def change_role(member: Member, role: str | OwnRole) -> None:
    """Change the role; raises `ValidationError` if the organization would lose its last owner, if the member
    is limited to projects and the role can't be, or if the member is not as they were read.
    """
    if member.sees_single_projects and role not in LIMITABLE_ROLES:
        raise ValidationError(LIMITED)
    with owned_after(member, is_owner=role == Role.OWNER):
        keeps_limit = member.sees_single_projects
        set_role(member, role)
        member.is_limited |= keeps_limit
        member.save(update_fields=["role", "own_role", "is_limited"])


def set_role(member: Member, role: str | OwnRole) -> None:
    """Give the role, of all projects, to a member that the caller saves. Raises `ValidationError` for an own
    role that another organization has, or that was removed.
    """
    if isinstance(role, str):
        member.role, member.own_role, member.is_limited = role, None, False
        return
    if not OwnRole.objects.filter(pk=role.pk, organization=member.organization_id).exists():
        raise ValidationError({"role": "The organization has no such role any more."})
    # As a viewer who is limited to no project, the member sees nothing in the release before own roles.
    member.role, member.own_role, member.is_limited = Role.VIEWER, role, True


def place(member: Member) -> str:
    """Return role, projects and groups as the database has them, to be compared: "viewer 3,7", "admin all",
    "member 3 with 1,2"; "own-4 all" for the own role with the id 4.
    """
    row = Member.objects.get(pk=member.pk)
    ids, group_ids = (
        ",".join(map(str, sorted(rows.values_list("pk", flat=True)))) for rows in (row.projects, row.groups)
    )
    # A form takes spaces at the end away, so no projects need a word, too.
    role = row.role if row.own_role_id is None else f"own-{row.own_role_id}"
    return f"{role} {(ids or 'none') if row.sees_single_projects else 'all'}" + (
        f" with {group_ids}" if group_ids else ""
    )


def change_place(
    member: Member,
    role: str | OwnRole,
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
    with owned_after(member, is_owner=role == Role.OWNER):
        if known is not None and known != place(member):
            raise ValidationError(CHANGED)
        set_role(member, role)
        member.is_limited |= projects is not None
        member.save(update_fields=["role", "own_role", "is_limited"])
        member.projects.set(projects or ())
        if in_groups is not None:
            groups.set_groups(member, in_groups)


def add_project(member: Member, project: Project) -> None:
    """Let a limited member see this project, too, whether or not a group gives it. Raises `ValidationError`
    as `join` does.
    """
    check_limit(member.organization_id, member.role, [*member.projects.exclude(pk=project.pk), project])
    with owned_after(member, is_owner=True):
        member.projects.add(project)


def take_project(member: Member, project: Project) -> None:
    """Take the project from a limited member, who sees nothing after the last one. Raises `ValidationError`
    if a group of theirs gives it, so that they would still see it.
    """
    with owned_after(member, is_owner=True):
        if group := member.groups.filter(projects=project).first():
            raise ValidationError(BY_GROUP.format(group.name))
        member.projects.remove(project)


def check_limit(organization_id: int, role: str | OwnRole, projects: Sequence[Project] | None) -> None:
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
    if not member.sees_single_projects:
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
    if not member.sees_single_projects:
        return str(member.organization)
    names = [row.name for row in access.limits_of(member)]
    if len(names) == 1:
        return f"the project {names[0]} of {member.organization}"
    if 1 < len(names) <= MAX_NAMED:
        return f"the projects {', '.join(names[:-1])} and {names[-1]} of {member.organization}"
    return f"{len(names) or 'no'} projects of {member.organization}"


def remove(member: Member) -> bool:
    """Remove the membership and return True. If it is limited, or has an own role, and the person may come
    back, keep it without any project or group and return False: a new membership would permit more.

    Raises `ValidationError` if the organization would lose its last owner, or if the member is not as they
    were read.
    """
    with owned_after(member, is_owner=False):
        if member.is_limited and may_come_back(member):
            member.projects.clear()
            member.groups.clear()
            member.own_role = None
            member.save(update_fields=["own_role"])
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


def is_last_owner(member: Member) -> bool:
    """Return whether the organization has no other owner, or no other active one, as the database has it."""
    owners = Member.objects.filter(organization=member.organization_id, role=Role.OWNER)
    is_active = dict(owners.annotate(is_active=IS_ACTIVE).values_list("pk", "is_active"))
    own = is_active.pop(member.pk, None)
    return own is not None and (not is_active or (own and not any(is_active.values())))


@contextmanager
def owned_after(member: Member, *, is_owner: bool) -> Iterator[None]:
    """Lock the organization for a change after which the member is an owner or not. Raises `ValidationError`
    if no owner would remain, or no active one, or if the member is not as they were read.
    """
    with transaction.atomic():
        # If two owners remove each other at once, the second waits here and then is the last one.
        Organization.objects.select_for_update(no_key=True).get(pk=member.organization_id)
        # The role and the limit that were read decided whether the caller may do this.
        same = Member.objects.filter(
            pk=member.pk, role=member.role, own_role=member.own_role_id, is_limited=member.is_limited
        )
        if not same.exists():
            raise ValidationError(CHANGED)
        if not is_owner and is_last_owner(member):
            raise ValidationError(LAST_OWNER)
        yield
