"""The organization's roles, the four of all organizations and its own, and the one role of each member."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.text import capfirst
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, own_roles, roles
from accounts.authentication import Caller
from accounts.errors import PermissionDenied
from accounts.models import OwnRole, Role
from chatapi import errors
from chatapi.api.management import bodies, members, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import CursorPage, cursor_page_of
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import caller_of, respond


class Roles(ManagementRoute):
    path = "roles"
    operations = {
        "GET": ManagementOperation(
            "listRoles", "List the roles", "accounts.view_member", CursorPage[objects.Role],
            query=bodies.RoleListQuery,
            description="They are the four of all organizations, which can't be changed, and then those that "
            "the organization has made.",
        ),
        "POST": ManagementOperation(
            "createRole", "Make a role", "accounts.change_member", objects.Role,
            body=bodies.NewRoleBody,
            description="It has permissions that the calling key has, for the console. "
            f"An organization has {own_roles.MAX_ROLES} at most.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        """Return a page, from the most to the least rights, and the organization's own ones by their names;
        the other way round if `order` is `desc`.
        """
        query = self.query(request)
        own = access.managed_by(caller_of(request), OwnRole.objects.all())
        found = [_role(each) for each in (*Role, *own)]
        return respond(cursor_page_of(found[::-1] if query.order == "desc" else found, query))

    def post(self, request: Request) -> Response:
        caller, sent = caller_of(request), self.body(request)
        _require(caller, sent.permissions)
        with _named():
            row = own_roles.create(caller.organization_id, sent.role_name, sent.description, sent.permissions)
        return respond(_role(row))


class OneRole(ManagementRoute):
    path = "roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation("retrieveRole", "Show a role", "accounts.view_member", objects.Role),
        "POST": ManagementOperation(
            "updateRole", "Change a role of the organization", "accounts.change_member", objects.Role,
            body=bodies.RoleChange,
            description="It holds for its members at once.",
        ),
        "DELETE": ManagementOperation(
            "deleteRole", "Remove a role of the organization", "accounts.change_member", objects.Deleted,
            description="Refused while members or invited people have it.",
        ),
    }  # fmt: skip

    def get(self, request: Request, role_id: str) -> Response:
        return respond(_role(members.role_with_id(request, role_id)))

    def post(self, request: Request, role_id: str) -> Response:
        """Change what is sent."""
        row, sent = self._own(request, role_id), self.body(request)
        permissions = row.permissions if sent.permissions is None else sent.permissions
        _require(caller_of(request), permissions)
        description = row.description if sent.description is None else sent.description
        with _named():
            own_roles.change(row, sent.role_name or row.name, description, permissions)
        return respond(_role(row))

    def delete(self, request: Request, role_id: str) -> Response:
        row = self._own(request, role_id)
        with _named():
            own_roles.remove(row)
        return respond(objects.Deleted(object="role.deleted", id=role_id))

    def _own(self, request: Request, role_id: str) -> OwnRole:
        """Return the organization's own role. Raises `InvalidRequest` for one of the four, and
        `PermissionDenied` for one with more permissions than the caller has.
        """
        row = members.role_with_id(request, role_id)
        if not isinstance(row, OwnRole):
            refuse("the four roles of all organizations can't be changed or deleted.", "role_id")
        _require(caller_of(request), row.permissions)
        return row


class MemberRoles(ManagementRoute):
    path = "users/<str:user_id>/roles"
    operations = {
        "GET": ManagementOperation(
            "listMemberRoles", "List the one role of a member", "accounts.view_member",
            CursorPage[objects.Role],
            query=bodies.RoleListQuery,
        ),
        "POST": ManagementOperation(
            "createMemberRole", "Give a member another role", "accounts.change_member", objects.MemberRole,
            body=bodies.MemberRoleBody,
            description="The new role replaces the current one.",
        ),
    }  # fmt: skip

    def get(self, request: Request, user_id: str) -> Response:
        member = members.find_member(request, user_id)
        return respond(cursor_page_of([_role(members.role_of(member))], self.query(request)))

    @transaction.atomic
    def post(self, request: Request, user_id: str) -> Response:
        member = members.find_member(request, user_id)
        role = members.role_with_id(request, self.body(request).role_id)
        members.change_role(request, member, role)
        return respond(objects.MemberRole(user=members.user(member), role=_role(role)))


class MemberRole(ManagementRoute):
    path = "users/<str:user_id>/roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveMemberRole", "Show the role of a member", "accounts.view_member", objects.Role
        ),
        "DELETE": ManagementOperation(
            "deleteMemberRole", "Take a role from a member", "accounts.change_member", objects.Deleted,
            description="Always refused: a member has one role. Give another one, or remove the member.",
        ),
    }  # fmt: skip

    def get(self, request: Request, user_id: str, role_id: str) -> Response:
        return respond(self._role(request, user_id, role_id))

    def delete(self, request: Request, user_id: str, role_id: str) -> Response:
        """Refuse, because a member always has one role."""
        self._role(request, user_id, role_id)
        refuse(
            "a member always has one role. Give another one with POST "
            "/v1/organization/users/{user_id}/roles, or remove the member.",
            "role_id",
        )

    def _role(self, request: Request, user_id: str, role_id: str) -> objects.Role:
        """Return the role if it is the member's, or raise a 404."""
        member = members.find_member(request, user_id)
        role = members.role_of(member)
        if role_id != members.role_id(role):
            raise errors.object_not_found("role of this member", "role_id")
        return _role(role)


routes: list[type[ManagementRoute]] = [Roles, OneRole, MemberRoles, MemberRole]


def _require(caller: Caller, permissions: Collection[str]) -> None:
    """Raise `PermissionDenied` if the caller has not all of those permissions that an own role can have."""
    above = own_roles.permissions_of(permissions) - roles.PERMISSIONS[caller.manages_as]
    if above:
        raise PermissionDenied(
            f"An API key with the role '{caller.manages_as}' has no permission {min(above)}."
        )


@contextmanager
def _named() -> Iterator[None]:
    """Name the parameters in a `ValidationError` as this API does."""
    try:
        yield
    except ValidationError as error:
        if not hasattr(error, "error_dict"):
            refuse(error.messages[0], "role_id")
        field, texts = next(iter(error.message_dict.items()))
        refuse(texts[0], "role_name" if field == "name" else field)


def _role(role: Any) -> objects.Role:
    if isinstance(role, OwnRole):
        return objects.Role(
            id=members.role_id(role),
            name=role.name,
            description=role.description,
            permissions=sorted(own_roles.permissions_of(role.permissions)),
            predefined_role=False,
        )
    return objects.Role(
        id=members.role_id(role),
        name=members.role_name(role),
        description=f"{capfirst(roles.MEANINGS[role])}.",
        permissions=sorted(roles.PERMISSIONS[role]),
    )
