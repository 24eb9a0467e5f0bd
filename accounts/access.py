"""The one door to what belongs to a tenant: all reads for a caller, or for a person in the admin, go through
here.

An object of another tenant gets the same 404 as an id that was never issued.

A *caller* is the owner of an API key, and may have a role to manage its organization with. A person is an
*operator* (a superuser, or staff without a membership; Django's permissions say what they may do, in the
whole installation) or a member of organizations. Roles decide what members and managing callers may do
(`roles.py`).

A membership may be *limited* to single projects. `roles_of` and all that asks it (`seen_by`, `where_may`,
`may_in`, `may_enter`) leave limited memberships out: code that does not know of limits shows nothing of the
organization. Only the console knows of them: see `may_in_projects` and `in_projects`. A limited member sees
their own projects and those of their groups, as `_limits` says.

A member with an *own role* of the organization has its permissions, in the whole organization and in the
console only: `roles_of` leaves these memberships out, too, and `may_in` knows of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, TypeVar

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser
from django.db.models import Exists, F, Model, OuterRef, Q, QuerySet
from django.db.models.expressions import BaseExpression
from django.db.models.functions import Now

from accounts import own_roles, roles
from accounts.authentication import Caller
from accounts.errors import PermissionDenied
from accounts.models import (
    APIKey,
    EndUser,
    Group,
    GroupMember,
    Member,
    Organization,
    OwnRole,
    Project,
    Role,
)
from accounts.natural_order import NaturalOrder

Row = TypeVar("Row", bound=Model)
Person = AbstractBaseUser | AnonymousUser


# ---- for a caller


def visible_to(caller: Caller, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows of the caller's project, of test keys or of live keys like the caller's own.

    The model has `organization_id`, `project_id` and `is_test`. Test and live keys never see each other's
    rows; admin keys make no difference.
    """
    return rows.filter(
        organization_id=caller.organization_id, project_id=caller.project_id, is_test=caller.is_test
    )


def usable_keys() -> QuerySet[APIKey]:
    """Return the keys that are usable now: not revoked, disabled or expired, with active owners."""
    is_current = Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
    has_active_owners = Q(project__is_active=True, project__organization__is_active=True)
    return APIKey.objects.filter(is_current, has_active_owners, is_active=True, revoked_at__isnull=True)


def own_key(caller: Caller) -> APIKey:
    return APIKey.objects.select_related("project__organization").get(
        pk=caller.api_key_id, project_id=caller.project_id
    )


# ---- for a caller that manages its organization


def managed_by(caller: Caller, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows of the caller's organization, for routes that have checked the caller's rights."""
    return belonging_to(caller.organization_id, rows)


def require(caller: Caller, permission: str) -> None:
    """Raise `PermissionDenied` unless the role of the caller's key has the permission."""
    if not caller.manages_as:
        raise PermissionDenied(
            "This needs a live admin key with a role. An owner or admin of your organization, or the "
            "operator, can make one."
        )
    if permission not in roles.PERMISSIONS[caller.manages_as]:
        raise PermissionDenied(f"An API key with the role '{caller.manages_as}' may not do this.")


def require_role(caller: Caller, role: str) -> None:
    """Raise `PermissionDenied` if the role, such as the `rank` of a member, is above that of the caller's
    key.
    """
    if role and roles.is_above(role, caller.manages_as):
        raise PermissionDenied(f"An API key with the role '{caller.manages_as}' can't manage a higher role.")


# ---- for a person of the admin


def roles_of(user: Person) -> Mapping[int, str]:
    """Return the person's roles by organization id, without those that are limited to single projects. Read
    once per request.
    """
    return _places_of(user).roles


def limited_roles_of(user: Person) -> Mapping[int, str]:
    """Return the person's roles that are limited to single projects, by organization id."""
    return _places_of(user).limited_roles


def _places_of(user: Person) -> "_Places":
    if not user.is_authenticated:
        return _Places()
    known: _Places | None = getattr(user, "_places", None)
    if known is None:
        known = remember_places(user, Member.objects.filter(user_id=user.pk).select_related("own_role"))
    return known


def remember_places(user: Person, memberships: Iterable[Member]) -> "_Places":
    """Store memberships that were read with others, and with their own roles; this spares the person's
    query.
    """
    found = _Places()
    for each in memberships:
        if each.own_role is not None:
            found.own_roles[each.organization_id] = permissions_of(each)
        else:
            (found.limited_roles if each.is_limited else found.roles)[each.organization_id] = each.role
    # Django keeps its `_perm_cache` on the user, too.
    user._places = found  # type: ignore[union-attr]
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """A person's memberships: the roles by organization id, and the permissions of own roles."""

    roles: dict[int, str] = field(default_factory=dict)
    limited_roles: dict[int, str] = field(default_factory=dict)
    own_roles: dict[int, frozenset[str]] = field(default_factory=dict)


def permissions_of(member: Member) -> frozenset[str]:
    """Return what the member's role permits: in all projects, or in those to which they are limited."""
    if member.own_role is not None:
        return own_roles.permissions_of(member.own_role.permissions)
    return (roles.LIMITED_PERMISSIONS if member.is_limited else roles.PERMISSIONS)[member.role]


def rank(member: Member) -> Role:
    """Return the role by which others may change the member: that of an own role is the least with all of
    its permissions, so nobody gives or takes more than they have.
    """
    return rank_of(member.own_role) if member.own_role is not None else Role(member.role)


def rank_of(own_role: OwnRole) -> Role:
    """Return the least role that has all permissions of the own role."""
    return roles.least_with(own_roles.permissions_of(own_role.permissions))


def organizations_by_own_role(user: Person, permission: str) -> frozenset[int]:
    """Return the ids of the organizations in which an own role of the person has the permission."""
    places = {} if is_operator(user) else _places_of(user).own_roles
    return frozenset(pk for pk, permitted in places.items() if user.is_active and permission in permitted)


def is_of_whole(user: Person, organization_id: int) -> bool:
    """Return whether the person is a member of the organization who is not limited to single projects."""
    places = _places_of(user)
    return organization_id in places.roles or organization_id in places.own_roles


def memberships_of(user: Person, **columns: BaseExpression) -> list[Member]:
    """Return the memberships by which the person sees at least one project, with their organizations and
    these columns, by name; the roles are known then, too.
    """
    if not user.is_authenticated:
        return []
    has_project = reduce(or_, (Exists(rows) for rows, _ in _limits(member=OuterRef("pk"))))
    rows = Member.objects.filter(user_id=user.pk).annotate(has_project=has_project, **columns)
    memberships: list[Any] = list(
        rows.select_related("organization", "own_role").order_by(NaturalOrder("organization__name"))
    )
    remember_places(user, memberships)
    return [each for each in memberships if each.has_project or not each.sees_single_projects]


def role_in(user: Person, organization_id: int) -> str | None:
    """Return the person's role in the organization, or None. An operator counts as an owner."""
    return Role.OWNER if is_operator(user) else roles_of(user).get(organization_id)


def is_operator(user: Person) -> bool:
    """Return whether the person sees all organizations: a superuser, or staff without any membership."""
    # A superuser's memberships are not read.
    if not user.is_active or getattr(user, "is_superuser", False):
        return user.is_active
    places = _places_of(user)
    is_member = bool(places.roles or places.limited_roles or places.own_roles)
    return getattr(user, "is_staff", False) and not is_member


def organizations_of(user: Person) -> tuple[int, ...] | None:
    """Return the ids of the organizations that limit what the person sees; None for an operator."""
    return None if is_operator(user) else tuple(sorted(roles_of(user)))


def may_enter(user: Person) -> bool:
    """Return whether the person may enter the admin: staff, and members who see a whole organization."""
    if not user.is_active:
        return False
    is_staff_operator = getattr(user, "is_staff", False) and is_operator(user)
    return bool(is_staff_operator or roles_of(user))


def may_sign_in(user: Person) -> bool:
    """Return whether the person may sign in: all who may enter the admin, members of single projects, and
    members with own roles.
    """
    places = _places_of(user)
    return may_enter(user) or bool(user.is_active and (places.limited_roles or places.own_roles))


def seen_by(user: Person, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows that belong to the person's organizations; an operator sees all rows."""
    return rows if is_operator(user) else rows.filter(_belonging_to(roles_of(user), rows.model))


def where_may(user: Person, permission: str, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows on which the person has the permission, such as "accounts.change_apikey"."""
    if is_operator(user):
        has_perm = getattr(user, "has_perm")  # noqa: B009  AbstractBaseUser has no permissions
        return rows if has_perm(permission) else rows.none()
    allowing = [
        organization_id
        for organization_id, role in roles_of(user).items()
        if permission in roles.PERMISSIONS[role]
    ]
    return rows.filter(_belonging_to(allowing, rows.model))


def may(user: Person, permission: str, row: Model) -> bool:
    """Return whether the person has the permission on this row, as the database has it."""
    return where_may(user, permission, type(row)._default_manager.filter(pk=row.pk)).exists()


def role_on(user: Person, row: Model) -> str | None:
    """Return the person's role in the row's organization, as the database has it; None in another's."""
    by_role: dict[str, list[int]] = {}
    for organization_id, role in roles_of(user).items():
        by_role.setdefault(role, []).append(organization_id)
    own = type(row)._default_manager.filter(pk=row.pk)
    return next(
        (role for role, ids in by_role.items() if own.filter(_belonging_to(ids, own.model)).exists()), None
    )


def may_in(user: Person, permission: str, organization_id: int) -> bool:
    """Return whether the person has the permission in this organization; reads no row of it."""
    if is_operator(user):
        return bool(getattr(user, "has_perm")(permission))  # noqa: B009  AbstractBaseUser has no permissions
    role = roles_of(user).get(organization_id)
    if role is None:
        return organization_id in organizations_by_own_role(user, permission)
    return permission in roles.PERMISSIONS[role]


def belonging_to(organization_id: int, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the organization's rows, for pages that have checked the person's place in it."""
    return rows.filter(_belonging_to([organization_id], rows.model))


# ---- for a person who sees single projects of an organization, in the console only


def may_in_projects(user: Person, permission: str, organization_id: int) -> bool:
    """Return whether the person has the permission in the projects to which their membership is limited."""
    role = None if is_operator(user) else limited_roles_of(user).get(organization_id)
    return bool(user.is_active and role is not None and permission in roles.LIMITED_PERMISSIONS[role])


def organizations_in_console(user: Person) -> QuerySet[Organization]:
    """Return the organizations of which the person sees anything in the console."""
    places = _places_of(user)
    if is_operator(user) or not (places.limited_roles or places.own_roles):
        return seen_by(user, Organization.objects.all())
    own = Q(pk__in=[*places.roles, *places.own_roles])
    for rows, _ in _limits(member__user=user.pk, member__is_limited=True):
        own |= Q(pk__in=rows.values("member__organization"))
    return Organization.objects.filter(own)


def projects_of(membership: Member, **columns: BaseExpression) -> list[Project]:
    """Return the projects that a limited member sees, archived ones included, in natural order, with these
    columns, by name.
    """
    seen = reduce(or_, (Q(pk__in=rows.values(project)) for rows, project in _limits(member=membership)))
    return list(Project.objects.filter(seen).annotate(**columns))


def limited_projects_of(people: Collection[int]) -> Mapping[int, frozenset[tuple[int, int]]]:
    """Return the projects that limited memberships of these people show, by the people's ids: each as the ids
    of its organization and of the project.
    """
    own, by_group = (
        rows.values_list("member__user", "member__organization", project)
        for rows, project in _limits(member__user__in=people, member__is_limited=True)
    )
    found: dict[int, set[tuple[int, int]]] = {}
    for person, organization_id, project_id in own.union(by_group):
        found.setdefault(person, set()).add((organization_id, project_id))
    return {person: frozenset(projects) for person, projects in found.items()}


def members_seeing(project: Project, members: QuerySet[Member]) -> QuerySet[Member]:
    """Return those of the members who see the project: all of its organization, or single projects."""
    sees = Q(is_limited=False) | Q(own_role__isnull=False)
    for rows, path in _limits(member=OuterRef("pk")):
        sees |= Q(Exists(rows.filter(**{path: project})))
    return members.filter(sees, organization=project.organization_id)


def _limits(**of_members: Any) -> Iterator[tuple[QuerySet[Any], str]]:
    """Yield the rows that say which projects these members see if they are limited: of their own, then of
    their groups. Each comes with the name of its project.
    """
    # Members with an own role may be in groups, which give them nothing.
    of_members["member__own_role"] = None
    # The organization, too: a row of another one would be a mistake, which must show nothing.
    of_organization = F("member__organization")
    own = Member.projects.through._default_manager.filter(project__organization=of_organization)
    by_group = GroupMember.objects.filter(
        group__organization=of_organization, group__projects__organization=of_organization
    )
    yield own.filter(**of_members), "project"
    yield by_group.filter(**of_members), "group__projects"


LIMITS = ("projects", "groups__projects")
"""What `limits_of` reads of members, for `prefetch_related`."""


def limits_of(membership: Member) -> dict[Project, list[Group]]:
    """Return the projects that `projects_of` returns, for lists of members: their own first, then those of
    groups only. Each comes with the groups that give it.
    """
    found: dict[Project, list[Group]] = {row: [] for row in membership.projects.all()}
    for group in membership.groups.all():
        for row in group.projects.all() if group.organization_id == membership.organization_id else ():
            found.setdefault(row, []).append(group)
    return {row: by for row, by in found.items() if row.organization_id == membership.organization_id}


def in_projects(project_ids: Collection[int], rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows that belong to these projects, for pages that have checked that the person sees these.

    Rows of the whole organization are left out, and all rows of models that belong to no project.
    """
    return rows.filter(_in_projects(list(project_ids), rows.model))


def without_others_admin_keys(user: Person, keys: QuerySet[APIKey]) -> QuerySet[APIKey]:
    """Return the keys without admin keys that the person may not change."""
    if is_operator(user):
        return keys
    own = Q(is_admin=False)
    for organization_id, role in roles_of(user).items():
        if role in roles.ADMINISTERS_KEYS:
            manageable = ["", *roles.givable(role)]
            own |= Q(project__organization=organization_id, manages_as__in=manageable)
    return keys.filter(own)


def may_change_admin_key(user: Person, key: APIKey) -> bool:
    """Return whether the person may change this admin key: its role is not above their own."""
    organization_id = key.project.organization_id
    return may_make_admin_keys(user, organization_id) and not (
        key.manages_as and roles.is_above(key.manages_as, role_in(user, organization_id))
    )


def may_make_admin_keys(user: Person, organization_id: int | None) -> bool:
    """Return whether the person may make admin keys of the organization; None: of any organization."""
    if is_operator(user):
        return True
    return any(
        role in roles.ADMINISTERS_KEYS
        for each, role in roles_of(user).items()
        if organization_id in (None, each)
    )


def is_tenants(model: type[Model]) -> bool:
    """Return whether rows of this model belong to organizations."""
    return model._meta.label in _BELONGING or hasattr(model, "organization_id") or hasattr(model, "scope_id")


# Where a row's organization is found, unless it has the column `organization_id` or names its owner by
# `scope`.
_BELONGING = {
    "accounts.Organization": ("pk",),
    "accounts.APIKey": ("project__organization",),
    "accounts.EndUser": ("project__organization",),
    "accounts.ServiceAccount": ("project__organization",),
    "accounts.FederationRule": ("provider__organization",),
    "accounts.RateLimit": (
        "organization", "project__organization", "api_key__project__organization",
        "end_user__project__organization",
    ),
}  # fmt: skip


# Where a row's project is found, unless it has the column `project_id` or names its owner by `scope`.
_IN_PROJECT = {
    "accounts.Project": ("pk",),
    "accounts.FederationRule": ("service_account__project",),
    "accounts.RateLimit": ("project", "api_key__project", "end_user__project"),
}


def _in_projects(ids: Collection[int], model: type[Model]) -> Q:
    if hasattr(model, "scope_id"):
        keys: QuerySet[Any] = APIKey.objects.filter(project__in=ids).order_by()
        end_users: QuerySet[Any] = EndUser.objects.filter(project__in=ids).order_by()
        return (
            Q(scope__in=["project", "project_user"], scope_id__in=ids)
            | Q(scope="key", scope_id__in=keys.values("pk"))
            | Q(scope="end_user", scope_id__in=end_users.values("pk"))
        )
    usual = ("project_id",) if hasattr(model, "project_id") else ()
    paths = _IN_PROJECT.get(model._meta.label, usual)
    return reduce(or_, (Q(**{f"{path}__in": ids}) for path in paths), Q(pk__in=[]))


def _belonging_to(organizations: Collection[int], model: type[Model]) -> Q:
    ids = list(organizations)
    if hasattr(model, "scope_id"):
        projects: QuerySet[Any] = Project.objects.filter(organization__in=ids).order_by()
        keys: QuerySet[Any] = APIKey.objects.filter(project__organization__in=ids).order_by()
        end_users: QuerySet[Any] = EndUser.objects.filter(project__organization__in=ids).order_by()
        return (
            Q(scope__in=["organization", "org_user"], scope_id__in=ids)
            | Q(scope__in=["project", "project_user"], scope_id__in=projects.values("pk"))
            | Q(scope="key", scope_id__in=keys.values("pk"))
            | Q(scope="end_user", scope_id__in=end_users.values("pk"))
        )
    paths = _BELONGING.get(model._meta.label, ("organization_id",))
    return reduce(or_, (Q(**{f"{path}__in": ids}) for path in paths))
