"""The roles in projects, which are the same two for all, and the one role of each member in a project.

They follow from the role in the organization, so that nobody has two. OpenAI's routes about them are below
`/v1/projects`. As in `groups.py`, `accounts` locks the organization before anything else.
"""

from typing import Any

from msgspec import structs
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, roles
from accounts.models import Member, Project, Role
from chatapi import errors
from chatapi.api.management import bodies, members, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import CursorPage, cursor_page_of
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import respond

OWNER = objects.ProjectRole(
    id="role_project_owner",
    name="owner",
    description="The organization's owners and admins, who see and manage all projects.",
    permissions=sorted(roles.PERMISSIONS[Role.ADMIN]),
)
MEMBER = objects.ProjectRole(
    id="role_project_member",
    name="member",
    description="The organization's members and readers. Readers see the project, and make no keys.",
    permissions=sorted(roles.LIMITED_PERMISSIONS[Role.MEMBER]),
)
_ROLES = {"owner": OWNER, "member": MEMBER}


class ProjectRoles(ManagementRoute):
    below = ""
    path = "projects/<str:project_id>/roles"
    operations = {
        "GET": ManagementOperation(
            "listProjectRoles", "List the roles in a project", "accounts.view_member",
            CursorPage[objects.ProjectRole],
            query=bodies.RoleListQuery,
            description="They are the same two for all projects, and can't be changed.",
        )
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        self.project(request, project_id)
        query = self.query(request)
        return respond(cursor_page_of([MEMBER, OWNER] if query.order == "desc" else [OWNER, MEMBER], query))


class OneProjectRole(ManagementRoute):
    below = ""
    path = "projects/<str:project_id>/roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectRole", "Show a role in a project", "accounts.view_member", objects.ProjectRole
        )
    }  # fmt: skip

    def get(self, request: Request, project_id: str, role_id: str) -> Response:
        self.project(request, project_id)
        return respond(_role_with_id(role_id))


class ProjectUserRoles(ManagementRoute):
    below = ""
    path = "projects/<str:project_id>/users/<str:user_id>/roles"
    operations = {
        "GET": ManagementOperation(
            "listProjectUserRoles", "List the one role of a member in a project", "accounts.view_member",
            CursorPage[objects.ProjectRole],
            query=bodies.RoleListQuery,
        ),
        "POST": ManagementOperation(
            "createProjectUserRole", "Add a member to a project by their role", "accounts.change_member",
            objects.MemberRole,
            body=bodies.MemberRoleBody,
            description="With the role that the member has, as `POST "
            "/v1/organization/projects/{project_id}/users`; another one is refused.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, user_id: str) -> Response:
        _, role = _seen(self, request, project_id, user_id)
        return respond(cursor_page_of([role], self.query(request)))

    def post(self, request: Request, project_id: str, user_id: str) -> Response:
        project, member = self.project(request, project_id), members.find_member(request, user_id)
        own, wanted = _role_of(member), _role_with_id(self.body(request).role_id)
        if wanted.id != own.id:
            refuse(
                f"this member is '{own.name}' in all of their projects. Change their one role with POST "
                "/v1/organization/users/{user_id}.",
                "role_id",
            )
        members.add_to_project(request, member, project)
        shown = members.user(members.find_member(request, user_id))
        return respond(objects.MemberRole(user=shown, role=own))


class ProjectUserRole(ManagementRoute):
    below = ""
    path = "projects/<str:project_id>/users/<str:user_id>/roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectUserRole", "Show the role of a member in a project", "accounts.view_member",
            objects.ProjectRole,
        ),
        "DELETE": ManagementOperation(
            "deleteProjectUserRole", "Remove a member from a project by their role", "accounts.delete_member",
            objects.Deleted,
            description="As `DELETE /v1/organization/projects/{project_id}/users/{user_id}`.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, user_id: str, role_id: str) -> Response:
        return respond(self._seen(request, project_id, user_id, role_id)[1])

    def delete(self, request: Request, project_id: str, user_id: str, role_id: str) -> Response:
        member, _ = self._seen(request, project_id, user_id, role_id)
        members.take_from_project(request, member, self.project(request, project_id))
        return respond(objects.Deleted(object="user.role.deleted"))

    def _seen(
        self, request: Request, project_id: str, user_id: str, role_id: str
    ) -> tuple[Member, objects.ProjectRole]:
        """Return the member who sees the project and their role, or raise a 404 for another role."""
        member, role = _seen(self, request, project_id, user_id)
        if role_id != role.id:
            raise errors.object_not_found("role of this member", "role_id")
        return member, role


routes: list[type[ManagementRoute]] = [ProjectRoles, OneProjectRole, ProjectUserRoles, ProjectUserRole]


def require_member_role(named: str, param: str) -> None:
    """Raise `InvalidRequest` for another role of a group in a project than `member`, by its name or id."""
    if named not in (MEMBER.name, MEMBER.id):
        refuse(
            f"a group gives the project to its members, each with their own role. Send '{MEMBER.id}', and "
            "change the role of a member with POST /v1/organization/users/{user_id}.",
            param,
        )


def _role_with_id(wanted: str) -> objects.ProjectRole:
    """Return the role in projects with this id, or raise a 404."""
    found = next((role for role in _ROLES.values() if role.id == wanted), None)
    if found is None:
        raise errors.object_not_found("role", "role_id")
    return found


def _role_of(member: Member) -> objects.ProjectRole:
    return _ROLES[members.role_in_projects(member.role)]


def _seen(
    route: ManagementRoute, request: Request, project_id: str, user_id: str
) -> tuple[Member, objects.ProjectRole]:
    """Return the member who sees the project and their role, with the groups by which they have it, or raise
    a 404.
    """
    project = route.project(request, project_id)
    member = members.find_member(request, user_id, members.seeing(request, project))
    return member, _by_groups(member, project)


def _by_groups(member: Member, project: Project) -> objects.ProjectRole:
    role = _role_of(member)
    groups: list[Any] = access.limits_of(member).get(project, []) if member.sees_single_projects else []
    if not groups:
        return role
    sources = [objects.AssignmentSource(principal_id=f"group_{group.pk}") for group in groups]
    return structs.replace(role, assignment_sources=sources)
