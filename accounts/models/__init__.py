"""Tenants: organizations, projects, members, groups, API keys, rate limits and workload identity."""

from accounts.model_lists import validate_model_names
from accounts.models.certificates import Certificate, CertificateProject
from accounts.models.keys import APIKey, KeyScope, validate_scopes
from accounts.models.organizations import (
    LIMITABLE_ROLES,
    MAX_DESCRIPTION_CHARS,
    MAX_END_USER_CHARS,
    EndUser,
    Group,
    GroupMember,
    GroupProject,
    Member,
    Organization,
    OwnRole,
    Project,
    Role,
    ServiceAccount,
    validate_time_zone,
)
from accounts.models.placeholders import (
    IS_PLACEHOLDER,
    SHOWN_NAME,
    is_placeholder,
    placeholder_name,
    shown_name,
)
from accounts.models.rate_limits import RateLimit
from accounts.models.workload_identity import FederationRule, WorkloadIdentityProvider

__all__ = [
    "IS_PLACEHOLDER", "LIMITABLE_ROLES", "MAX_DESCRIPTION_CHARS", "MAX_END_USER_CHARS", "SHOWN_NAME",
    "APIKey", "Certificate", "CertificateProject", "EndUser", "FederationRule", "Group", "GroupMember",
    "GroupProject", "KeyScope", "Member", "Organization", "OwnRole", "Project", "RateLimit", "Role",
    "ServiceAccount", "WorkloadIdentityProvider", "is_placeholder", "placeholder_name",
    "shown_name", "validate_model_names", "validate_scopes", "validate_time_zone",
]  # fmt: skip
