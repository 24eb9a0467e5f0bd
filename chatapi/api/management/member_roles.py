"""The organization's roles, which are the same four for all, and the one role of each member."""

from typing import Any

from django.db import transaction
from django.utils.text import capfirst
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import roles
from accounts.models import Role
from chatapi import errors
from chatapi.api.management import bodies, members, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import CursorPage, cursor_page_of
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import respond


class Roles(ManagementRoute):
    path = "roles"
    operations = {
        "GET": ManagementOperation(
            "listRoles", "List the roles", "accounts.view_member", CursorPage[objects.Role],
            query=bodies.RoleListQuery,
            description="They are the same four for all organizations, and can't be changed.",
        )
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        """Return a page, from the most to the least rights unless `order` is `desc`."""
        query = self.query(request)
        found = [_role(each) for each in Role]
        return respond(cursor_page_of(found[::-1] if query.order == "desc" else found, query))


class OneRole(ManagementRoute):
    path = "roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation("retrieveRole", "Show a role", "accounts.view_member", objects.Role)
    }

    def get(self, request: Request, role_id: str) -> Response:
        return respond(_role(members.role_with_id(role_id)))


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
        return respond(cursor_page_of([_role(member.role)], self.query(request)))

    @transaction.atomic
    def post(self, request: Request, user_id: str) -> Response:
        member = members.find_member(request, user_id)
        role = members.role_with_id(self.body(request).role_id)
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
        if role_id != members.role_id(member.role):
            raise errors.object_not_found("role of this member", "role_id")
        return _role(member.role)


routes: list[type[ManagementRoute]] = [Roles, OneRole, MemberRoles, MemberRole]


def _role(role: Any) -> objects.Role:
    return objects.Role(
        id=members.role_id(role),
        name=members.role_name(role),
        description=f"{capfirst(roles.MEANINGS[role])}.",
        permissions=sorted(roles.PERMISSIONS[role]),
    )
