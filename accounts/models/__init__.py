"""Tenants: organizations, projects, members, groups, API keys and rate limits."""

from accounts.model_lists import validate_model_names
from accounts.models.keys import APIKey, KeyScope, validate_scopes
from accounts.models.organizations import (
    LIMITABLE_ROLES,
    MAX_END_USER_CHARS,
    EndUser,
    Group,
    GroupMember,
    GroupProject,
    Member,
    Organization,
    Project,
    Role,
    ServiceAccount,
    validate_time_zone,
)
from accounts.models.rate_limits import RateLimit

__all__ = [
    "LIMITABLE_ROLES", "MAX_END_USER_CHARS", "APIKey", "EndUser", "Group", "GroupMember", "GroupProject",
    "KeyScope", "Member", "Organization", "Project", "RateLimit", "Role", "ServiceAccount",
    "validate_model_names", "validate_scopes", "validate_time_zone",
]  # fmt: skip
