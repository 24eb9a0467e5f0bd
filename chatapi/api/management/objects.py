"""The resources of the management API, with OpenAI's members. Times are Unix seconds, ids are text."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


class Project(Struct, frozen=True, kw_only=True):
    """A part of the organization with its own keys and limits. An archived one refuses requests."""

    object: Literal["organization.project"] = "organization.project"
    id: str
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]


class ModelPermissions(Struct, frozen=True, kw_only=True):
    """The models that the keys of a project can use; a key's own list can narrow them."""

    object: Literal["project.model_permissions"] = "project.model_permissions"
    mode: Literal["allow_list", "deny_list"]
    model_ids: list[str]


class ServiceAccountOwner(Struct, frozen=True, kw_only=True):
    """The service account that a key belongs to."""

    id: str
    name: str
    created_at: int
    role: Literal["member"] = "member"


class KeyOwner(Struct, frozen=True, kw_only=True):
    """The owner of a key. A key that a person made belongs to its project, and has none."""

    type: Literal["service_account"] | None = None
    service_account: ServiceAccountOwner | None = None


class ProjectKey(Struct, frozen=True, kw_only=True):
    """An API key of a project. `last_used_at` is the time of the newest request that is kept."""

    object: Literal["organization.project.api_key"] = "organization.project.api_key"
    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    allowed_ips: list[str]
    owner: KeyOwner
    owner_project_access: Literal["active", "inactive"]


class NewKey(Struct, frozen=True, kw_only=True):
    """A key of a service account with its secret, which is shown only now."""

    object: Literal["organization.project.service_account.api_key"] = (
        "organization.project.service_account.api_key"
    )
    id: str
    name: str
    created_at: int
    expires_at: int | None
    allowed_ips: list[str]
    value: str


class ServiceAccount(Struct, frozen=True, kw_only=True):
    """A program that has keys of a project."""

    object: Literal["organization.project.service_account"] = "organization.project.service_account"
    id: str
    name: str
    created_at: int
    role: Literal["member"] = "member"


class NewServiceAccount(ServiceAccount, frozen=True, kw_only=True):
    """A service account with its first key; null if none was requested."""

    api_key: NewKey | None


class AdminKeyOwner(Struct, frozen=True, kw_only=True):
    """The role with which an admin key manages the organization; null: it reads usage and costs only."""

    object: Literal["organization.user"] = "organization.user"
    type: Literal["user"] = "user"
    role: str | None


class AdminKey(Struct, frozen=True, kw_only=True):
    """An admin key. `value`, its secret, is present only in the answer to its creation."""

    object: Literal["organization.admin_api_key"] = "organization.admin_api_key"
    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    allowed_ips: list[str]
    owner: AdminKeyOwner
    value: str | UnsetType = UNSET


class UserProject(Struct, frozen=True, kw_only=True):
    """A project to which a member is limited."""

    id: str
    name: str
    role: Literal["member"]


class UserProjects(Struct, frozen=True, kw_only=True):
    """The projects to which a member is limited; without any, the member sees nothing."""

    object: Literal["list"] = "list"
    data: list[UserProject]


class User(Struct, frozen=True, kw_only=True):
    """A member of the organization. `role` is owner, admin, member, reader, or the name of a role that the
    organization has made; `projects` is null for a member who sees all.
    """

    object: Literal["organization.user"] = "organization.user"
    id: str
    name: str
    email: str
    role: str
    added_at: int
    projects: UserProjects | None


class Role(Struct, frozen=True, kw_only=True):
    """The rights of a member; `permissions` are this service's own names. `predefined_role` is false for a
    role that the organization has made.
    """

    object: Literal["role"] = "role"
    id: str
    name: str
    description: str
    permissions: list[str]
    predefined_role: bool = True
    resource_type: Literal["api.organization", "api.project"] = "api.organization"


class AssignmentSource(Struct, frozen=True, kw_only=True):
    """A group that gives its members a project."""

    principal_id: str
    principal_type: Literal["group"] = "group"


class ProjectRole(Role, frozen=True, kw_only=True):
    """The role of a member or of a group in a project. `assignment_sources` are the groups by which a member
    has it; null if they need none.
    """

    resource_type: Literal["api.organization", "api.project"] = "api.project"
    assignment_sources: list[AssignmentSource] | None = None


class MemberRole(Struct, frozen=True, kw_only=True):
    """The role of a member."""

    object: Literal["user.role"] = "user.role"
    user: User
    role: Role


class ProjectUser(Struct, frozen=True, kw_only=True):
    """A member's place in a project: `owner` for the organization's owners and admins, else `member`."""

    object: Literal["organization.project.user"] = "organization.project.user"
    id: str
    name: str
    email: str
    role: Literal["owner", "member"]
    added_at: int


class InvitedProject(Struct, frozen=True, kw_only=True):
    """A project to which an invited person is limited."""

    id: str
    role: Literal["member"]


class Invite(Struct, frozen=True, kw_only=True):
    """An invitation; `projects` are those to which it is limited, if it is. Only the answer to its creation
    has `url` and `mailed`. `url` is the path at which the person chooses a password, or signs in to the
    account that has the address: anyone who has it can sign in as a new person. `mailed` tells whether a mail
    server accepted the invitation. With the status `expired`, the first link has expired; a newer link from
    the console may still work.
    """

    object: Literal["organization.invite"] = "organization.invite"
    id: str
    email: str
    role: str
    status: Literal["accepted", "expired", "pending"]
    created_at: int
    expires_at: int
    accepted_at: int | None = None
    projects: list[InvitedProject]
    url: str | UnsetType = UNSET
    mailed: bool | UnsetType = UNSET


Maximum = Annotated[int, Meta(description="9007199254740992 stands for no limit.")]


class ProjectRateLimit(Struct, frozen=True, kw_only=True):
    """The limits of a project for one model or, if `model` is `*`, for all models together.
    `max_tokens_per_1_day` and `max_concurrent_requests` are not OpenAI's.
    """

    object: Literal["project.rate_limit"] = "project.rate_limit"
    id: str
    model: str
    max_requests_per_1_minute: Maximum
    max_tokens_per_1_minute: Maximum
    max_requests_per_1_day: int | None
    max_tokens_per_1_day: int | None
    max_concurrent_requests: int | None


class Enforcement(Struct, frozen=True, kw_only=True):
    """Whether the limit is reached, so that requests are refused."""

    status: Literal["inactive", "enforcing"]


class ProjectSpendLimit(Struct, frozen=True, kw_only=True):
    """The most that a project may spend in a month, in cents."""

    object: Literal["project.spend_limit"] = "project.spend_limit"
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"
    threshold_amount: int
    enforcement: Enforcement


class OrganizationSpendLimit(Struct, frozen=True, kw_only=True):
    """The most that the organization may spend in a month, in cents."""

    object: Literal["organization.spend_limit"] = "organization.spend_limit"
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"
    threshold_amount: int
    enforcement: Enforcement


class NotificationChannel(Struct, frozen=True, kw_only=True):
    """The e-mail addresses of the members who get the mail of a spend alert."""

    type: Literal["email"] = "email"
    recipients: list[str]
    subject_prefix: str | None


class OrganizationSpendAlert(Struct, frozen=True, kw_only=True):
    """An amount in cents: members get mail when the organization's spend in a month reaches it."""

    object: Literal["organization.spend_alert"] = "organization.spend_alert"
    id: str
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"
    threshold_amount: int
    notification_channel: NotificationChannel


class ProjectSpendAlert(Struct, frozen=True, kw_only=True):
    """An amount in cents: members get mail when the project's spend in a month reaches it."""

    object: Literal["project.spend_alert"] = "project.spend_alert"
    id: str
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"
    threshold_amount: int
    notification_channel: NotificationChannel


class OrganizationDataRetention(Struct, frozen=True, kw_only=True):
    """Whether projects of the organization may store responses."""

    object: Literal["organization.data_retention"] = "organization.data_retention"
    type: Literal["zero_data_retention", "modified_abuse_monitoring"]


class ProjectDataRetention(Struct, frozen=True, kw_only=True):
    """Whether a project stores the responses that its clients ask to store."""

    object: Literal["project.data_retention"] = "project.data_retention"
    type: Literal["zero_data_retention", "modified_abuse_monitoring"]


class HostedToolPermission(Struct, frozen=True, kw_only=True):
    """That a project can't use the tool."""

    enabled: Literal[False] = False


class HostedToolPermissions(Struct, frozen=True, kw_only=True):
    """The tools of OpenAI's servers, which no project can use here."""

    code_interpreter: HostedToolPermission = HostedToolPermission()
    file_search: HostedToolPermission = HostedToolPermission()
    image_generation: HostedToolPermission = HostedToolPermission()
    mcp: HostedToolPermission = HostedToolPermission()
    web_search: HostedToolPermission = HostedToolPermission()


class Deleted(Struct, frozen=True, kw_only=True):
    """A deleted object; its `object` ends with `.deleted`."""

    object: str
    deleted: bool = True
    id: str | UnsetType = UNSET


class ActingKey(Struct, frozen=True, kw_only=True):
    """The API key that acted."""

    id: str
    type: Literal["service_account"] = "service_account"


class ActingUser(Struct, frozen=True, kw_only=True):
    """The person who acted. `email` is null if the person is not a member of the organization."""

    id: str
    email: str | None


class Session(Struct, frozen=True, kw_only=True):
    """The session of the person who acted."""

    user: ActingUser | None


class Actor(Struct, frozen=True, kw_only=True):
    """The person, API key or command that acted. `name` is its name at that time; OpenAI's object does not
    have it.
    """

    type: Literal["session", "api_key"]
    name: str
    session: Session | None = None
    api_key: ActingKey | None = None


class AuditedProject(Struct, frozen=True, kw_only=True):
    """The project that the object is or belongs to."""

    id: str
    name: str


class AuditLog(Struct, frozen=True, kw_only=True):
    """One act. The member named by `type` has the object's id and its new values; secrets are hidden."""

    object: Literal["organization.audit_log"] = "organization.audit_log"
    id: str
    type: str
    effective_at: int
    actor: Actor
    project: AuditedProject | None
