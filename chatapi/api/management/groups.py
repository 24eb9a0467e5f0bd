"""Groups of members, and the projects that they give to those who are limited to projects.

Nothing here runs in a transaction of its own: `accounts.groups` locks the organization before anything else.
"""

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, groups
from accounts.models import Group, GroupProject, Member
from chatapi import errors
from chatapi.api.management import bodies, group_objects, members, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import CursorPage, cursor_page_of, cursor_page_of_rows
from chatapi.api.management.project_roles import MEMBER, require_member_role
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import caller_of, respond

_PREFIX = "group_"


class Groups(ManagementRoute):
    path = "groups"
    operations = {
        "GET": ManagementOperation(
            "listGroups", "List the groups", "accounts.view_member", CursorPage[group_objects.Group],
            query=bodies.GroupListQuery,
        ),
        "POST": ManagementOperation(
            "createGroup", "Create a group", "accounts.change_member", group_objects.Group,
            body=bodies.GroupBody,
            description="Its name is unique in the organization.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        return respond(cursor_page_of_rows(_groups(request), self.query(request), group, public_id))

    def post(self, request: Request) -> Response:
        row = groups.create(caller_of(request).organization_id, self.body(request).name)
        return respond(group(row))


class OneGroup(ManagementRoute):
    path = "groups/<str:group_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveGroup", "Show a group", "accounts.view_member", group_objects.Group
        ),
        "POST": ManagementOperation(
            "modifyGroup", "Rename a group", "accounts.change_member", group_objects.Group,
            body=bodies.GroupBody,
        ),
        "DELETE": ManagementOperation(
            "deleteGroup", "Delete a group", "accounts.change_member", objects.Deleted,
            description="Its members stay members, and lose at once the projects that they saw by it only.",
        ),
    }  # fmt: skip

    def get(self, request: Request, group_id: str) -> Response:
        return respond(group(find_group(request, group_id)))

    def post(self, request: Request, group_id: str) -> Response:
        row = find_group(request, group_id)
        groups.rename(row, self.body(request).name)
        return respond(group(row))

    def delete(self, request: Request, group_id: str) -> Response:
        groups.remove(find_group(request, group_id))
        return respond(objects.Deleted(object="group.deleted", id=group_id))


class GroupUsers(ManagementRoute):
    path = "groups/<str:group_id>/users"
    operations = {
        "GET": ManagementOperation(
            "listGroupUsers", "List the members of a group", "accounts.view_member",
            CursorPage[group_objects.GroupUser],
            query=bodies.GroupUserListQuery,
            description="They are those who have accepted their invitation.",
        ),
        "POST": ManagementOperation(
            "addGroupUser", "Add a member to a group", "accounts.change_member", group_objects.AddedGroupUser,
            body=bodies.GroupUserBody,
            description="If the member is limited to projects, they see those of the group, too.",
        ),
    }  # fmt: skip

    def get(self, request: Request, group_id: str) -> Response:
        rows = members.accepted(request).filter(groups=find_group(request, group_id))
        page = cursor_page_of_rows(
            rows, self.query(request), _group_user, lambda row: str(row.user_id), "user_id"
        )
        return respond(page)

    def post(self, request: Request, group_id: str) -> Response:
        row = find_group(request, group_id)
        member = members.find_member(request, self.body(request).user_id)
        groups.add(row, members=[member])
        return respond(group_objects.AddedGroupUser(group_id=group_id, user_id=str(member.user_id)))


class OneGroupUser(ManagementRoute):
    path = "groups/<str:group_id>/users/<str:user_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveGroupUser", "Show a member of a group", "accounts.view_member", group_objects.GroupUser
        ),
        "DELETE": ManagementOperation(
            "removeGroupUser", "Remove a member from a group", "accounts.change_member", objects.Deleted,
            description="The member loses at once the projects that they saw by this group only.",
        ),
    }  # fmt: skip

    def get(self, request: Request, group_id: str, user_id: str) -> Response:
        inside = members.accepted(request).filter(groups=find_group(request, group_id))
        return respond(_group_user(members.find_member(request, user_id, inside)))

    def delete(self, request: Request, group_id: str, user_id: str) -> Response:
        row = find_group(request, group_id)
        inside = members.accepted(request).filter(groups=row)
        groups.take(row, members=[members.find_member(request, user_id, inside)])
        return respond(objects.Deleted(object="group.user.deleted"))


class GroupRoles(ManagementRoute):
    path = "groups/<str:group_id>/roles"
    operations = {
        "GET": ManagementOperation(
            "listGroupRoles", "List the roles of a group", "accounts.view_member", CursorPage[objects.Role],
            query=bodies.RoleListQuery,
            description="There are none: each member keeps their own role.",
        ),
        "POST": ManagementOperation(
            "createGroupRole", "Give a group a role", "accounts.change_member", group_objects.GroupRole,
            body=bodies.GroupRoleBody,
            description="Always refused: a group gives projects, and no role.",
        ),
    }  # fmt: skip

    def get(self, request: Request, group_id: str) -> Response:
        find_group(request, group_id)
        none: list[objects.Role] = []
        return respond(cursor_page_of(none, self.query(request)))

    def post(self, request: Request, group_id: str) -> Response:
        """Refuse, because a member's own role is the only one."""
        find_group(request, group_id)
        self.body(request)
        refuse(_NO_ROLE, "role_id")


class OneGroupRole(ManagementRoute):
    path = "groups/<str:group_id>/roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveGroupRole", "Show a role of a group", "accounts.view_member", objects.Role,
            description="Always a 404: a group has no role.",
        ),
        "DELETE": ManagementOperation(
            "deleteGroupRole", "Take a role from a group", "accounts.change_member", objects.Deleted,
            description="Always refused: a group has no role.",
        ),
    }  # fmt: skip

    def get(self, request: Request, group_id: str, role_id: str) -> Response:
        find_group(request, group_id)
        raise errors.object_not_found("role of this group", "role_id")

    def delete(self, request: Request, group_id: str, role_id: str) -> Response:
        find_group(request, group_id)
        refuse(_NO_ROLE, "role_id")


class ProjectGroups(ManagementRoute):
    path = "projects/<str:project_id>/groups"
    operations = {
        "GET": ManagementOperation(
            "listProjectGroups", "List the groups that give a project", "accounts.view_member",
            CursorPage[group_objects.ProjectGroup],
            query=bodies.ProjectGroupListQuery,
        ),
        "POST": ManagementOperation(
            "addProjectGroup", "Add a project to a group", "accounts.change_member",
            group_objects.ProjectGroup,
            body=bodies.ProjectGroupBody,
            description="The group's members who are limited to projects see it, each with their own role. "
            "`role` is `member` or the id of this role; another one is refused.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        rows = _project_groups(request).filter(project=self.project(request, project_id))
        page = cursor_page_of_rows(
            rows, self.query(request), _project_group, lambda row: public_id(row.group), "group_id"
        )
        return respond(page)

    def post(self, request: Request, project_id: str) -> Response:
        project, sent = self.project(request, project_id), self.body(request)
        require_member_role(sent.role, "role")
        row = find_group(request, sent.group_id)
        groups.add(row, projects=[project])
        return respond(_project_group(_project_groups(request).get(group=row, project=project)))


class OneProjectGroup(ManagementRoute):
    path = "projects/<str:project_id>/groups/<str:group_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectGroup", "Show a group that gives a project", "accounts.view_member",
            group_objects.ProjectGroup,
            query=bodies.ProjectGroupQuery,
        ),
        "DELETE": ManagementOperation(
            "removeProjectGroup", "Take a project from a group", "accounts.change_member", objects.Deleted,
            description="Members who saw the project by this group only lose it at once.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, group_id: str) -> Response:
        row = _given(self, request, project_id, group_id)
        self.query(request)
        return respond(_project_group(row))

    def delete(self, request: Request, project_id: str, group_id: str) -> Response:
        row = _given(self, request, project_id, group_id)
        groups.take(row.group, projects=[row.project])
        return respond(objects.Deleted(object="project.group.deleted"))


class ProjectGroupRoles(ManagementRoute):
    below = ""
    path = "projects/<str:project_id>/groups/<str:group_id>/roles"
    operations = {
        "GET": ManagementOperation(
            "listProjectGroupRoles", "List the one role of a group in a project", "accounts.view_member",
            CursorPage[objects.ProjectRole],
            query=bodies.RoleListQuery,
        ),
        "POST": ManagementOperation(
            "createProjectGroupRole", "Add a project to a group by its role", "accounts.change_member",
            group_objects.GroupRole,
            body=bodies.GroupRoleBody,
            description="With the role `role_project_member` as `POST "
            "/v1/organization/projects/{project_id}/groups`; another one is refused.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, group_id: str) -> Response:
        _given(self, request, project_id, group_id)
        return respond(cursor_page_of([MEMBER], self.query(request)))

    def post(self, request: Request, project_id: str, group_id: str) -> Response:
        project, row = self.project(request, project_id), find_group(request, group_id)
        require_member_role(self.body(request).role_id, "role_id")
        groups.add(row, projects=[project])
        summary = group_objects.GroupSummary(
            id=public_id(row), name=row.name, created_at=int(row.created_at.timestamp())
        )
        return respond(group_objects.GroupRole(group=summary, role=MEMBER))


class ProjectGroupRole(ManagementRoute):
    below = ""
    path = "projects/<str:project_id>/groups/<str:group_id>/roles/<str:role_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectGroupRole", "Show the role of a group in a project", "accounts.view_member",
            objects.ProjectRole,
        ),
        "DELETE": ManagementOperation(
            "deleteProjectGroupRole", "Take a project from a group by its role", "accounts.change_member",
            objects.Deleted,
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, group_id: str, role_id: str) -> Response:
        self._given(request, project_id, group_id, role_id)
        return respond(MEMBER)

    def delete(self, request: Request, project_id: str, group_id: str, role_id: str) -> Response:
        row = self._given(request, project_id, group_id, role_id)
        groups.take(row.group, projects=[row.project])
        return respond(objects.Deleted(object="group.role.deleted"))

    def _given(self, request: Request, project_id: str, group_id: str, role_id: str) -> GroupProject:
        """Return the row, if the role is that of a group in a project, or raise a 404."""
        row = _given(self, request, project_id, group_id)
        if role_id != MEMBER.id:
            raise errors.object_not_found("role of this group", "role_id")
        return row


routes: list[type[ManagementRoute]] = [
    Groups, OneGroup, GroupUsers, OneGroupUser, GroupRoles, OneGroupRole, ProjectGroups, OneProjectGroup,
    ProjectGroupRoles, ProjectGroupRole,
]  # fmt: skip

_NO_ROLE = (
    "a group gives its members projects, and no role: each has one role in the organization. Change it with "
    "POST /v1/organization/users/{user_id}."
)


def public_id(row: Group) -> str:
    return f"{_PREFIX}{row.pk}"


def find_group(request: Request, group_id: str) -> Group:
    """Return the group of the caller's organization with this id, or raise a 404."""
    number = group_id.removeprefix(_PREFIX)
    is_id = group_id.startswith(_PREFIX) and number.isascii() and number.isdecimal() and len(number) <= 18
    row = _groups(request).filter(pk=int(number)).first() if is_id else None
    if row is None:
        raise errors.object_not_found("group", "group_id")
    return row


def group(row: Group) -> group_objects.Group:
    return group_objects.Group(id=public_id(row), name=row.name, created_at=int(row.created_at.timestamp()))


def _groups(request: Request) -> QuerySet[Group]:
    return access.managed_by(caller_of(request), Group.objects.all())


def _project_groups(request: Request) -> QuerySet[GroupProject]:
    """Return the projects of the organization's groups."""
    return GroupProject.objects.filter(group__in=_groups(request).order_by()).select_related(
        "group", "project"
    )


def _given(route: ManagementRoute, request: Request, project_id: str, group_id: str) -> GroupProject:
    """Return the group's row of this project, or raise a 404."""
    project, row = route.project(request, project_id), find_group(request, group_id)
    found = _project_groups(request).filter(project=project, group=row).first()
    if found is None:
        raise errors.object_not_found("group", "group_id")
    return found


def _group_user(row: Member) -> group_objects.GroupUser:
    return group_objects.GroupUser(id=str(row.user_id), name=row.user.get_username(), email=row.user.email)


def _project_group(row: GroupProject) -> group_objects.ProjectGroup:
    return group_objects.ProjectGroup(
        project_id=str(row.project_id),
        group_id=public_id(row.group),
        group_name=row.group.name,
        created_at=int(row.created_at.timestamp()),
    )
