"""The organization's members, their places in its projects, and invitations.

A member has one role, for all projects of the organization or for those to which the membership is limited.
OpenAI's `reader` is our viewer. `member_roles.py` gives roles that the organization has made.
"""

from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import UNSET, UnsetType
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import acceptance, access, invitations, invitees, memberships
from accounts.models import LIMITABLE_ROLES, Member, Organization, OwnRole, Project, Role
from accounts.sign_in.form_limits import TooManyAttempts
from chatapi import errors
from chatapi.api.management import bodies, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, PageQuery, page_of_rows
from chatapi.api.management.route import ManagementRoute, find, refuse, refuse_more
from chatapi.api.views import caller_of, respond
from chatapi.wire.invalid_request import InvalidRequest

_READER = "reader"


class Users(ManagementRoute):
    """The members of the organization who have accepted."""

    path = "users"
    operations = {
        "GET": ManagementOperation(
            "listUsers", "List the members", "accounts.view_member", Page[objects.User],
            query=bodies.UserListQuery,
        )
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        query, rows = self.query(request), accepted(request)
        if query.emails is not None:
            rows = memberships.with_emails(rows, query.emails)
        return respond(
            page_of_rows(rows, query, lambda rows: [user(row) for row in rows], id_column="user_id")
        )


class User(ManagementRoute):
    path = "users/<str:user_id>"
    operations = {
        "GET": ManagementOperation("retrieveUser", "Show a member", "accounts.view_member", objects.User),
        "POST": ManagementOperation(
            "modifyUser", "Change a member's role", "accounts.change_member", objects.User,
            body=bodies.UserBody,
        ),
        "DELETE": ManagementOperation(
            "deleteUser", "Remove a member from the organization", "accounts.delete_member", objects.Deleted,
            description="The organization's last owner can't be removed. A member who is limited to projects "
            "and whom the identity provider may bring back stays listed without any, and sees nothing: then "
            "`deleted` is false.",
        ),
    }  # fmt: skip

    def get(self, request: Request, user_id: str) -> Response:
        return respond(user(find_member(request, user_id)))

    @transaction.atomic
    def post(self, request: Request, user_id: str) -> Response:
        """Change the role, if one is sent."""
        member, sent = find_member(request, user_id), self.body(request)
        role = role_of(member) if sent.role is None else _role(sent.role)
        if sent.role_id is not None:
            named = role_with_id(request, sent.role_id)
            if sent.role is not None and named != role:
                refuse("this is another role than 'role'.", "role_id")
            role = named
        change_role(request, member, role)
        return respond(user(member))

    @transaction.atomic
    def delete(self, request: Request, user_id: str) -> Response:
        """Remove the member, unless their role is above the caller's."""
        member = find_member(request, user_id)
        access.require_role(caller_of(request), access.rank(member))
        is_removed = memberships.remove(member)
        return respond(objects.Deleted(object="organization.user.deleted", deleted=is_removed, id=user_id))


class ProjectUsers(ManagementRoute):
    path = "projects/<str:project_id>/users"
    operations = {
        "GET": ManagementOperation(
            "listProjectUsers", "List the members who see a project", "accounts.view_member",
            Page[objects.ProjectUser],
            query=PageQuery,
            description="They are those who see all projects of the organization, and those who are limited "
            "to projects and see this one, by a group too.",
        ),
        "POST": ManagementOperation(
            "createProjectUser", "Add a member to a project", "accounts.change_member", objects.ProjectUser,
            body=bodies.ProjectUserBody,
            description="Adds the project to those of a member who is limited to projects; changes nothing "
            "for others, who see all. Another role than the member has in the organization is refused.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        query, rows = self.query(request), seeing(request, self.project(request, project_id))
        return respond(
            page_of_rows(rows, query, lambda rows: [_project_user(row) for row in rows], id_column="user_id")
        )

    # Not in a transaction, here and below: `memberships` locks the organization before anything else.
    def post(self, request: Request, project_id: str) -> Response:
        """Let the member see the project; refuse another role than the one that they have."""
        project, sent = self.project(request, project_id), self.body(request)
        if (sent.email is None) == (sent.user_id is None):
            raise InvalidRequest("Send either 'email' or 'user_id'.", "email")
        rows = accepted(request)
        if sent.user_id is not None:
            member = rows.filter(user=sent.user_id).first()
        else:
            member = memberships.with_emails(rows, [sent.email]).first()
        if member is None:
            raise errors.object_not_found("member", "user_id" if sent.user_id else "email")
        shown = _with_role(member, sent.role)
        add_to_project(request, member, project)
        return respond(shown)


class ProjectUser(ManagementRoute):
    path = "projects/<str:project_id>/users/<str:user_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectUser", "Show a member who sees a project", "accounts.view_member",
            objects.ProjectUser,
        ),
        "POST": ManagementOperation(
            "modifyProjectUser", "Change a member's role in a project", "accounts.change_member",
            objects.ProjectUser,
            body=bodies.ProjectUserChange,
            description="Another role than the member has in the organization is refused.",
        ),
        "DELETE": ManagementOperation(
            "deleteProjectUser", "Remove a member from a project", "accounts.delete_member", objects.Deleted,
            description="Takes the project from a member who is limited to projects; without any, the member "
            "sees nothing. Refused for a member who sees all projects, or sees this one by a group.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, user_id: str) -> Response:
        return respond(_project_user(self._member(request, project_id, user_id)))

    def post(self, request: Request, project_id: str, user_id: str) -> Response:
        """Return the member unchanged; refuse another role than the one that they have."""
        member = self._member(request, project_id, user_id)
        return respond(_with_role(member, self.body(request).role))

    def delete(self, request: Request, project_id: str, user_id: str) -> Response:
        """Take the project from a limited member; refuse others, who see all projects."""
        member = self._member(request, project_id, user_id)
        take_from_project(request, member, self.project(request, project_id))
        return respond(objects.Deleted(object="organization.project.user.deleted", id=user_id))

    def _member(self, request: Request, project_id: str, user_id: str) -> Member:
        """Return the member, if they see the project."""
        return find_member(request, user_id, seeing(request, self.project(request, project_id)))


class Invites(ManagementRoute):
    """The people who were invited and have not accepted."""

    path = "invites"
    operations = {
        "GET": ManagementOperation(
            "listInvites", "List the open invitations", "accounts.view_member", Page[objects.Invite],
            query=PageQuery,
        ),
        "POST": ManagementOperation(
            "inviteUser", "Invite a person", "accounts.add_member", objects.Invite,
            body=bodies.InviteBody,
            description="It is mailed, if there is a mail server and `CHATAPI_PUBLIC_URL`; `mailed` says so. "
            "The answer has the path at which the person chooses a password, too. A reader or member who is "
            "invited to `projects` sees only these, with an empty list none; without `projects`, all. Owners "
            "and admins see all in any case, as `owner`.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        rows = acceptance.pending(_members(request))
        return respond(page_of_rows(rows, self.query(request), lambda rows: [_invite(row) for row in rows]))

    def post(self, request: Request) -> Response:
        """Create the person and the membership, and mail the invitation, as the console's form does."""
        sent = self.body(request)
        projects = []
        for named in sent.projects or ():
            projects.append(self.project(request, named.id))
            if named.role != (own := role_in_projects(_role(sent.role))):
                refuse(f"a person with this role is '{own}' in all projects.", "projects")
        caller = caller_of(request)
        member = self._join(request, None if sent.projects is UNSET else projects)
        try:
            is_mailed = invitations.send(request._request, member, caller) is True
        except TooManyAttempts:
            is_mailed = False
        return respond(_invite(member, url=invitations.path(caller, member.user), mailed=is_mailed))

    @transaction.atomic
    def _join(self, request: Request, projects: list[Project] | None) -> Member:
        caller, sent = caller_of(request), self.body(request)
        role = _role(sent.role)
        access.require_role(caller, role)
        owner = Organization.objects.select_for_update(no_key=True).get(pk=caller.organization_id)
        refuse_more(owner.members.all(), "members")
        invitations.count(f"organization {owner.pk}")
        member = Member(organization=owner, user=invitees.person_with_email(owner.pk, sent.email), role=role)
        invitees.join(member, projects if role in LIMITABLE_ROLES else None)
        return member


class Invite(ManagementRoute):
    """One invitation, whose id is that of the membership."""

    path = "invites/<str:invite_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveInvite", "Show an invitation", "accounts.view_member", objects.Invite
        ),
        "DELETE": ManagementOperation(
            "deleteInvite", "Withdraw an invitation", "accounts.delete_member", objects.Deleted,
            description="An accepted one can't be withdrawn: remove the member.",
        ),
    }  # fmt: skip

    def get(self, request: Request, invite_id: str) -> Response:
        return respond(_invite(find(caller_of(request), _MEMBERS, invite_id, "invite")))

    def delete(self, request: Request, invite_id: str) -> Response:
        """Remove the pending membership. It is not locked here, because `withdraw` locks its person first."""
        member = find(caller_of(request), _MEMBERS, invite_id, "invite")
        access.require_role(caller_of(request), access.rank(member))
        acceptance.withdraw(member)
        return respond(objects.Deleted(object="organization.invite.deleted", id=invite_id))


routes: list[type[ManagementRoute]] = [Users, User, ProjectUsers, ProjectUser, Invites, Invite]

_MEMBERS: QuerySet[Member] = Member.objects.select_related(
    "user", "organization", "own_role"
).prefetch_related(*access.LIMITS)


def _members(request: Request) -> QuerySet[Member]:
    return access.managed_by(caller_of(request), _MEMBERS)


def accepted(request: Request) -> QuerySet[Member]:
    return _members(request).exclude(pk__in=acceptance.pending(_members(request)).values("pk"))


def seeing(request: Request, project: Project) -> QuerySet[Member]:
    """Return the members who see the project."""
    return access.members_seeing(project, accepted(request))


def add_to_project(request: Request, member: Member, project: Project) -> None:
    """Add the project to those of a limited member; others see it already."""
    if member.sees_single_projects:
        access.require_role(caller_of(request), access.rank(member))
        memberships.add_project(member, project)


def take_from_project(request: Request, member: Member, project: Project) -> None:
    """Take the project from a limited member. Raises `InvalidRequest` for one who would still see it."""
    if not member.sees_single_projects:
        refuse(
            "this member sees all projects. Limit the member to projects in the console, or remove "
            "them from the organization: DELETE /v1/organization/users/{user_id}.",
            "user_id",
        )
    access.require_role(caller_of(request), access.rank(member))
    memberships.take_project(member, project)


def find_member(request: Request, user_id: str, among: QuerySet[Member] | None = None) -> Member:
    """Return the member with this person's id, of these members if they are given, or raise a 404."""
    is_id = user_id.isascii() and user_id.isdecimal() and len(user_id) <= 18
    rows = accepted(request) if among is None else among
    member = rows.filter(user=int(user_id)).first() if is_id else None
    if member is None:
        raise errors.object_not_found("user", "user_id")
    return member


def role_of(member: Member) -> str | OwnRole:
    """Return the member's one role."""
    return member.own_role or member.role


def change_role(request: Request, member: Member, role: str | OwnRole) -> None:
    """Change the member's role. Raises `PermissionDenied` if the old or new one is above the caller's."""
    wanted = access.rank_of(role) if isinstance(role, OwnRole) else role
    for each in (access.rank(member), wanted):
        access.require_role(caller_of(request), each)
    if role != role_of(member):
        try:
            memberships.change_role(member, role)
        except ValidationError as error:
            refuse(error.messages[0], "role")


def role_name(role: str | OwnRole) -> str:
    """Return the role's name in this API."""
    if isinstance(role, OwnRole):
        return role.name
    return _READER if role == Role.VIEWER else str(role)


def role_id(role: str | OwnRole) -> str:
    return f"role_{role.pk if isinstance(role, OwnRole) else role_name(role)}"


def role_with_id(request: Request, wanted: str) -> Role | OwnRole:
    """Return the role with this id, one of the four or of the organization, or raise a 404."""
    for role in Role:
        if role_id(role) == wanted:
            return role
    if not wanted.startswith("role_"):
        raise errors.object_not_found("role", "role_id")
    return find(caller_of(request), OwnRole.objects.all(), wanted.removeprefix("role_"), "role")


def _role(name: str) -> str:
    return Role.VIEWER if name == _READER else name


def user(row: Member) -> objects.User:
    named = [
        objects.UserProject(id=str(project.pk), name=project.name, role="member")
        for project in (access.limits_of(row) if row.sees_single_projects else ())
    ]
    projects = objects.UserProjects(data=named) if row.sees_single_projects else None
    return objects.User(**_person(row), role=role_name(role_of(row)), projects=projects)


def _project_user(row: Member) -> objects.ProjectUser:
    return objects.ProjectUser(**_person(row), role=role_in_projects(row.role))


def role_in_projects(role: str) -> Literal["owner", "member"]:
    return "owner" if role in (Role.OWNER, Role.ADMIN) else "member"


def _person(row: Member) -> dict[str, Any]:
    return {
        "id": str(row.user_id),
        "name": row.user.get_username(),
        "email": row.user.email,
        "added_at": int(row.created_at.timestamp()),
    }


def _with_role(member: Member, role: str | None) -> objects.ProjectUser:
    """Return the member; raises `InvalidRequest` for another role than the one in the organization."""
    shown = _project_user(member)
    if role not in (None, shown.role):
        refuse(
            "a member has one role for all of their projects. Change it with POST "
            "/v1/organization/users/{user_id}.",
            "role",
        )
    return shown


def _invite(row: Member, url: str | UnsetType = UNSET, mailed: bool | UnsetType = UNSET) -> objects.Invite:
    expires_at = acceptance.expires_at(row)
    is_open = acceptance.is_invited(row.user)
    return objects.Invite(
        id=str(row.pk),
        email=row.user.email,
        role=role_name(role_of(row)),
        status="accepted" if not is_open else "pending" if timezone.now() < expires_at else "expired",
        created_at=int(row.created_at.timestamp()),
        expires_at=int(expires_at.timestamp()),
        projects=[
            objects.InvitedProject(id=str(project.pk), role="member")
            for project in (access.limits_of(row) if row.sees_single_projects else ())
        ],
        url=url,
        mailed=mailed,
    )
