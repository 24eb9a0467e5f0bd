"""The one door to what belongs to a tenant: whatever is read for a caller, or for a person of the admin, is
read through here.

What is not theirs does not exist for them: the answer is the same 404 as for an id that was never given out.

A *caller* is who an API key stands for. A person is an *operator* (a superuser, or staff that belongs to no
organization: Django's permissions say what they may do, in all of the installation) or belongs to
organizations, where their role says it (`roles.py`).
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser
from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Now

from accounts import roles
from accounts.authentication import Caller
from accounts.models import APIKey, Member, Project, Role

Row = TypeVar("Row", bound=Model)
Person = AbstractBaseUser | AnonymousUser


# ---- for a caller


def visible_to(caller: Caller, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those rows that belong to the caller's project and are, as the caller, of test keys or not.

    Their model has `organization_id`, `project_id` and `is_test`. Test and live keys see nothing of each
    other, admin keys neither.
    """
    return rows.filter(
        organization_id=caller.organization_id, project_id=caller.project_id, is_test=caller.is_test
    )


def usable_keys() -> QuerySet[APIKey]:
    """The keys that may be used at this moment: not revoked, active, not expired, of a project and an
    organization that are active.
    """
    is_current = Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
    has_active_owners = Q(project__is_active=True, project__organization__is_active=True)
    return APIKey.objects.filter(is_current, has_active_owners, is_active=True, revoked_at__isnull=True)


def own_key(caller: Caller) -> APIKey:
    """The key that calls, with its project and organization."""
    return APIKey.objects.select_related("project__organization").get(
        pk=caller.api_key_id, project_id=caller.project_id
    )


# ---- for a person of the admin


def roles_of(user: Person) -> Mapping[int, str]:
    """The person's role in each of their organizations, by the organization's id. Read once for each request."""
    if not user.is_authenticated:
        return {}
    known: Mapping[int, str] | None = getattr(user, "_roles", None)
    if known is None:
        known = dict(Member.objects.filter(user_id=user.pk).values_list("organization_id", "role"))
        remember_roles(user, known)
    return known


def remember_roles(user: Person, known: Mapping[int, str]) -> None:
    """Spare this user object the query: they were read for many together."""
    user._roles = known  # type: ignore[union-attr]  # beside `_perm_cache`, where Django keeps what it has read


def role_in(user: Person, organization_id: int) -> str | None:
    """The person's role there, None if they have none; an operator is as good as an owner."""
    return Role.OWNER if is_operator(user) else roles_of(user).get(organization_id)


def is_operator(user: Person) -> bool:
    """Whether no organization bounds what the person sees."""
    if not user.is_active:
        return False
    return bool(
        getattr(user, "is_superuser", False) or (getattr(user, "is_staff", False) and not roles_of(user))
    )


def organizations_of(user: Person) -> tuple[int, ...] | None:
    """The ids of the organizations that bound what the person sees; None: nothing does, they are an operator."""
    return None if is_operator(user) else tuple(sorted(roles_of(user)))


def may_enter(user: Person) -> bool:
    """Whether the person may sign in to the admin: staff, and whoever belongs to an organization."""
    return bool(user.is_active and (getattr(user, "is_staff", False) or roles_of(user)))


def seen_by(user: Person, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those of the rows that belong to the person's organizations; an operator sees all."""
    return rows if is_operator(user) else rows.filter(_belonging_to(roles_of(user), rows.model))


def where_may(user: Person, permission: str, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those of the rows with which the person may do this, such as "accounts.change_apikey"."""
    if is_operator(user):
        return rows if _has(user, permission) else rows.none()
    allowing = [
        organization_id
        for organization_id, role in roles_of(user).items()
        if permission in roles.PERMISSIONS[role]
    ]
    return rows.filter(_belonging_to(allowing, rows.model))


def may(user: Person, permission: str, row: Model) -> bool:
    """Whether the person may do this with this row, as the database has it."""
    return where_may(user, permission, type(row)._default_manager.filter(pk=row.pk)).exists()


def without_others_admin_keys(user: Person, keys: QuerySet[APIKey]) -> QuerySet[APIKey]:
    """The keys without the admin keys of organizations in which the person's role does not make admin keys."""
    if is_operator(user):
        return keys
    administered = [
        organization_id for organization_id, role in roles_of(user).items() if role in roles.ADMINISTERS_KEYS
    ]
    return keys.filter(Q(is_admin=False) | Q(project__organization__in=administered))


def may_make_admin_keys(user: Person, organization_id: int | None) -> bool:
    """Whether the person may make admin keys of that organization; None: of any."""
    if is_operator(user):
        return True
    return any(
        role in roles.ADMINISTERS_KEYS
        for each, role in roles_of(user).items()
        if organization_id in (None, each)
    )


def is_tenants(model: type[Model]) -> bool:
    """Whether rows of this kind belong to organizations."""
    return model._meta.label in _BELONGING or any(
        hasattr(model, name) for name in ("organization_id", "scope_id")
    )


def _has(user: Person, permission: str) -> bool:
    return bool(getattr(user, "has_perm")(permission))  # noqa: B009  AbstractBaseUser knows nothing of permissions


_BELONGING = {
    "accounts.Organization": ("pk",),
    "accounts.APIKey": ("project__organization",),
    "accounts.RateLimit": ("organization", "project__organization", "api_key__project__organization"),
}
"""Where a row's organization is found, if not in its column `organization_id` or, as a budget's, by what it
is for.
"""


def _belonging_to(organizations: Collection[int], model: type[Model]) -> Q:
    ids = list(organizations)
    if hasattr(model, "scope_id"):
        return _scopes_of(ids)
    paths = _BELONGING.get(model._meta.label, ("organization_id",))
    found = Q()
    for path in paths:
        found |= Q(**{f"{path}__in": ids})
    return found


def _scopes_of(organizations: list[int]) -> Q:
    """Rows that name what they are for by its kind and id."""
    projects: QuerySet[Any] = Project.objects.filter(organization__in=organizations).order_by()
    keys: QuerySet[Any] = APIKey.objects.filter(project__organization__in=organizations).order_by()
    return (
        Q(scope="organization", scope_id__in=organizations)
        | Q(scope="project", scope_id__in=projects.values("pk"))
        | Q(scope="key", scope_id__in=keys.values("pk"))
    )
