"""The bodies and queries of the management API. Unknown members are refused, not ignored."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from accounts.allowed_ips import MOST_ENTRIES
from accounts.client_certificates import MAX_BYTES
from accounts.limits import HIGHEST
from accounts.models import MAX_DESCRIPTION_CHARS
from chatapi.api.management.pages import Limit, PageQuery, RowId
from usage.models.spend_alerts import MAX_PREFIX_CHARS
from usage.pricing import MAX_USD, NANODOLLARS

NANODOLLARS_PER_CENT = NANODOLLARS // 100
_TEN_YEARS_S = 315_360_000

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}\Z")]
Email = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.@!#$%&'*+/=?^_`{|}~-]{3,150}\Z")]
Seconds = Annotated[int, Meta(ge=1, le=_TEN_YEARS_S)]
Scopes = Annotated[list[Literal["completions", "models", "generations"]], Meta(max_length=3)]
AllowedIPs = Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=MOST_ENTRIES)]
ModelId = Annotated[str, Meta(min_length=1, max_length=128)]
RateLimitId = Annotated[str, Meta(min_length=1, max_length=131)]  # "rl-" and a model's id
Maximum = Annotated[int, Meta(ge=0, le=HIGHEST)]
OrganizationRole = Literal["owner", "admin", "member", "reader"]
RetentionType = Literal["zero_data_retention", "modified_abuse_monitoring"]
# Without control characters: a line break would end the mail's header.
SubjectPrefix = Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f-\x9f]{{0,{MAX_PREFIX_CHARS}}}\Z")]
RoleId = Annotated[str, Meta(min_length=1, max_length=100)]
RoleDescription = Annotated[str, Meta(pattern=rf"^[^\x00-\x1f\x7f-\x9f]{{0,{MAX_DESCRIPTION_CHARS}}}\Z")]
Permissions = Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)]
CertificateId = Annotated[str, Meta(pattern=r"^cert_[0-9]{1,18}\Z")]
GroupId = Annotated[str, Meta(pattern=r"^group_[0-9]{1,18}\Z")]
LongLimit = Annotated[int, Meta(ge=1, le=1_000)]
ProjectRole = Literal["owner", "member"]


class ProjectListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of projects."""

    include_archived: bool = False


class ProjectBody(Struct, frozen=True, kw_only=True):
    """A new project."""

    name: Name


class ProjectChange(Struct, frozen=True, kw_only=True):
    """The new name of a project; without it, nothing changes."""

    name: Name | None = None


class ModelPermissionsBody(Struct, frozen=True, kw_only=True):
    """The models of a project."""

    mode: Literal["allow_list", "deny_list"]
    model_ids: Annotated[list[ModelId], Meta(max_length=200)]


class ProjectKeyListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of keys; `active` are those that are accepted now."""

    owner_project_access: Literal["active", "inactive", "any"] = "any"


class ProjectKeyBody(Struct, frozen=True, kw_only=True):
    """The new scopes, expiry and IP addresses of a key. An empty list of scopes or addresses allows all."""

    expires_in_seconds: Seconds | None = None
    scopes: Scopes | None = None
    allowed_ips: AllowedIPs | None = None


class ServiceAccountBody(Struct, frozen=True, kw_only=True):
    """A new service account, by default with a key."""

    name: Name
    create_service_account_only: bool = False
    expires_in_seconds: Seconds | None = None
    allowed_ips: AllowedIPs | None = None


class ServiceAccountChange(Struct, frozen=True, kw_only=True):
    """The new name of a service account."""

    name: Name | None = None
    role: Literal["member"] | None = None


class ServiceAccountKeyBody(Struct, frozen=True, kw_only=True):
    """A new key of a service account."""

    name: Name = "default"
    expires_in_seconds: Seconds | None = None
    scopes: Scopes = []
    allowed_ips: AllowedIPs = []


class AdminKeyListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of admin keys."""

    order: Literal["asc", "desc"] = "asc"


class AdminKeyBody(Struct, frozen=True, kw_only=True):
    """A new admin key, with the role and scopes of the calling one, and its IP addresses or some of them."""

    name: Name
    expires_in_seconds: Seconds | None = None
    allowed_ips: AllowedIPs | None = None


class UserListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of members."""

    emails: Annotated[list[Email], Meta(max_length=100)] | None = None


class UserBody(Struct, frozen=True, kw_only=True):
    """The new role of a member, by its name or its id; without both, nothing changes."""

    role: OrganizationRole | None = None
    role_id: RoleId | None = None


class NewRoleBody(Struct, frozen=True, kw_only=True):
    """A new role of the organization."""

    role_name: Name
    permissions: Permissions
    description: RoleDescription = ""


class RoleChange(Struct, frozen=True, kw_only=True):
    """The new name, permissions and description of a role; what is not sent stays as it is."""

    role_name: Name | None = None
    permissions: Permissions | None = None
    description: RoleDescription | None = None


class RoleListQuery(Struct, frozen=True, kw_only=True):
    """A page of roles."""

    after: RoleId | None = None
    limit: Limit = 20
    order: Literal["asc", "desc"] = "asc"


class GroupListQuery(Struct, frozen=True, kw_only=True):
    """A page of groups, in the order of their creation."""

    after: GroupId | None = None
    limit: LongLimit = 100
    order: Literal["asc", "desc"] = "asc"


class GroupUserListQuery(Struct, frozen=True, kw_only=True):
    """A page of the members of a group."""

    after: RowId | None = None
    limit: LongLimit = 100
    order: Literal["asc", "desc"] = "asc"


class ProjectGroupListQuery(Struct, frozen=True, kw_only=True):
    """A page of the groups of a project."""

    after: GroupId | None = None
    limit: LongLimit = 20
    order: Literal["asc", "desc"] = "asc"


class ProjectGroupQuery(Struct, frozen=True, kw_only=True):
    """The type of a group; there is one."""

    group_type: Literal["group"] = "group"


class GroupBody(Struct, frozen=True, kw_only=True):
    """The name of a group."""

    name: Name


class GroupUserBody(Struct, frozen=True, kw_only=True):
    """A member of the organization."""

    user_id: RowId


class ProjectGroupBody(Struct, frozen=True, kw_only=True):
    """A group, and the role of its members in the project: `member`, or the id of this role."""

    group_id: GroupId
    role: RoleId


class GroupRoleBody(Struct, frozen=True, kw_only=True):
    """A role for a group."""

    role_id: RoleId


class MemberRoleBody(Struct, frozen=True, kw_only=True):
    """The new role of a member."""

    role_id: RoleId


class ProjectUserBody(Struct, frozen=True, kw_only=True):
    """A member of the organization, named by `user_id` or `email`."""

    role: ProjectRole
    email: Email | None = None
    user_id: RowId | None = None


class ProjectUserChange(Struct, frozen=True, kw_only=True):
    """The role of a member in a project."""

    role: ProjectRole | None = None


class InvitedProject(Struct, frozen=True, kw_only=True):
    """A project that the invited person will see."""

    id: RowId
    role: ProjectRole


class InviteBody(Struct, frozen=True, kw_only=True):
    """A person to invite. The user name of a new person will be the e-mail address. Without `projects`, they
    see all; with an empty list, none.
    """

    email: Email
    role: OrganizationRole
    projects: Annotated[list[InvitedProject], Meta(max_length=100)] | UnsetType = UNSET


class DataRetentionBody(Struct, frozen=True, kw_only=True):
    """Whether a project stores responses, or whether projects may."""

    retention_type: RetentionType


class HostedToolPermission(Struct, frozen=True, kw_only=True):
    """Whether a project can use a tool; only false is accepted."""

    enabled: bool


class HostedToolPermissionsBody(Struct, frozen=True, kw_only=True):
    """Which tools a project can use; each may be left out."""

    code_interpreter: HostedToolPermission | None = None
    file_search: HostedToolPermission | None = None
    image_generation: HostedToolPermission | None = None
    mcp: HostedToolPermission | None = None
    web_search: HostedToolPermission | None = None


class CertificateListQuery(Struct, frozen=True, kw_only=True):
    """A page of certificates, the newest first."""

    after: CertificateId | None = None
    limit: Limit = 20
    order: Literal["asc", "desc"] = "desc"


class CertificateQuery(Struct, frozen=True, kw_only=True):
    """What to add to a certificate: `content`, its PEM."""

    include: list[Literal["content"]] = []


class CertificateBody(Struct, frozen=True, kw_only=True):
    """A new certificate as PEM."""

    certificate: Annotated[str, Meta(max_length=MAX_BYTES)]
    name: Name | None = None


class CertificateChange(Struct, frozen=True, kw_only=True):
    """The new name of a certificate; without it, nothing changes."""

    name: Name | None = None


class CertificatesBody(Struct, frozen=True, kw_only=True):
    """Certificates to activate, or to deactivate."""

    certificate_ids: Annotated[list[CertificateId], Meta(min_length=1, max_length=10)]


class RateLimitListQuery(Struct, frozen=True, kw_only=True):
    """A page of rate limits."""

    after: RateLimitId | None = None
    before: RateLimitId | None = None
    limit: LongLimit = 100


class RateLimitBody(Struct, frozen=True, kw_only=True):
    """The new numbers of a rate limit; 0 blocks everything."""

    max_requests_per_1_minute: Maximum | None = None
    max_tokens_per_1_minute: Maximum | None = None
    max_requests_per_1_day: Maximum | None = None
    max_tokens_per_1_day: Maximum | None = None
    max_concurrent_requests: Maximum | None = None


class SpendLimitBody(Struct, frozen=True, kw_only=True):
    """The most that may be spent in a month, in cents."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: Annotated[int, Meta(ge=0, le=MAX_USD * 100)]


class SpendAlertListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of spend alerts."""

    before: RowId | None = None
    order: Literal["asc", "desc"] = "asc"


class AlertChannel(Struct, frozen=True, kw_only=True):
    """The members who get the mail of a spend alert, and how its subject begins."""

    type: Literal["email"]
    recipients: Annotated[list[Email], Meta(min_length=1, max_length=100)]
    subject_prefix: SubjectPrefix | None = None


class SpendAlertBody(Struct, frozen=True, kw_only=True):
    """A monthly amount, in cents, and the members who get mail when it is reached."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: Annotated[int, Meta(ge=1, le=MAX_USD * 100)]
    notification_channel: AlertChannel


# One second before the end of Python's dates (the year 9999), because `gt` adds a second.
_Times = Annotated[int, Meta(ge=0, le=253_402_300_798)]
# A database takes no NUL character.
_Text = Annotated[str, Meta(pattern=r"^[^\x00]{1,150}\Z")]
_Texts = Annotated[list[_Text], Meta(max_length=100)]


class AuditLogQuery(
    PageQuery,
    frozen=True,
    kw_only=True,
    rename={f"effective_{name}": f"effective_at[{name}]" for name in ("gt", "gte", "lt", "lte")},
):
    """A page of the audit log, newest first."""

    before: RowId | None = None
    # `UNSET`, not None: for `int | None`, msgspec would read the text "null" of a query as None.
    effective_gt: _Times | UnsetType = UNSET
    effective_gte: _Times | UnsetType = UNSET
    effective_lt: _Times | UnsetType = UNSET
    effective_lte: _Times | UnsetType = UNSET
    event_types: _Texts | None = None
    actor_ids: Annotated[list[RowId], Meta(max_length=100)] | None = None
    actor_emails: _Texts | None = None
    project_ids: Annotated[list[RowId], Meta(max_length=100)] | None = None
    resource_ids: _Texts | None = None
    tenant_only: bool = False
    """Whether to list only acts on objects of several organizations, of which there are none."""
