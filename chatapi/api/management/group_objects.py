"""The objects of the management API about groups of members, as OpenAI's reference has them."""

from typing import Literal

from msgspec import Struct

from chatapi.api.management import objects


class Group(Struct, frozen=True, kw_only=True):
    """A group of members: those who are limited to projects see the group's projects, too. No identity
    provider manages it.
    """

    id: str
    name: str
    created_at: int
    group_type: Literal["group"] = "group"
    is_scim_managed: Literal[False] = False


class GroupUser(Struct, frozen=True, kw_only=True):
    """A member of a group."""

    id: str
    name: str
    email: str
    user_type: Literal["user"] = "user"
    is_service_account: Literal[False] = False


class AddedGroupUser(Struct, frozen=True, kw_only=True):
    """A member who is in the group now."""

    object: Literal["group.user"] = "group.user"
    group_id: str
    user_id: str


class ProjectGroup(Struct, frozen=True, kw_only=True):
    """A project that a group gives to its members, since `created_at`."""

    object: Literal["project.group"] = "project.group"
    project_id: str
    group_id: str
    group_name: str
    group_type: Literal["group"] = "group"
    created_at: int


class GroupSummary(Struct, frozen=True, kw_only=True):
    """A group, in the answer about its role."""

    object: Literal["group"] = "group"
    id: str
    name: str
    created_at: int
    scim_managed: Literal[False] = False


class GroupRole(Struct, frozen=True, kw_only=True):
    """The role of a group in a project."""

    object: Literal["group.role"] = "group.role"
    group: GroupSummary
    role: objects.Role
