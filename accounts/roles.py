"""What each role may do in its organization, as Django's permission names, and which roles it may assign."""

from collections.abc import Mapping, Set

from accounts.models import Role

# Each role has the permissions of the one before it.
#
# What concerns the whole installation is in none of them: models, deployments, prices, discounts, credit,
# corrections, people's passwords, groups of operators, and an organization's state.
_VIEWER = frozenset(
    {
        "accounts.view_organization",
        "accounts.view_project",
        "accounts.view_member",
        "accounts.view_apikey",
        "accounts.view_ratelimit",
        "usage.view_generation",
        "usage.view_ledgerentry",
        "usage.view_hourlyusage",
        "usage.view_refusedrequests",
        "usage.view_budget",
        "usage.view_budgetlimit",
        "usage.view_credit",
        "usage.view_event",
        "usage.view_discount",
        "usage.view_statement",
        "chatapi.view_storedresponse",
    }
)
_MEMBER = _VIEWER | {"accounts.add_apikey", "accounts.change_apikey"}
# To make, change and revoke admin keys; `ADMINISTERS_KEYS` has the roles.
ADMINISTER_KEYS = "accounts.administer_keys"
# The identity provider and the domains, in the console. The admin's pages about them, where a domain is
# approved, ask for Django's own permissions, which no role has.
ADMINISTER_SIGN_IN = "accounts.administer_sign_in"

_ADMIN = _MEMBER | {
    ADMINISTER_KEYS,
    "accounts.add_project",
    "accounts.change_project",
    "accounts.add_member",
    "accounts.change_member",
    "accounts.delete_member",
    "accounts.add_ratelimit",
    "accounts.change_ratelimit",
    "accounts.delete_ratelimit",
    "accounts.view_certificate",
    "accounts.add_certificate",
    "accounts.change_certificate",  # its name, and for which keys it is active
    "accounts.delete_certificate",
    "usage.add_budgetlimit",
    "usage.change_budgetlimit",
    "usage.delete_budgetlimit",
    "usage.change_generation",  # stop it
    "payment.view_payment",
    "payment.add_payment",
    "chatapi.view_webhookendpoint",
    "chatapi.add_webhookendpoint",
    "chatapi.change_webhookendpoint",
    "chatapi.delete_webhookendpoint",
}
# Only owners may give and take the role of an owner: `givable` decides that, not a permission.
_OWNER = _ADMIN | {
    "accounts.change_organization",  # its name, time zone, default dialect and data retention
    ADMINISTER_SIGN_IN,
    "audit.view_auditentry",
    "chatapi.read_storedresponse",
}

PERMISSIONS: Mapping[str, frozenset[str]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.ADMIN: _ADMIN,
    Role.OWNER: _OWNER,
}

# What a membership that is limited to single projects permits in these projects: nothing that concerns the
# whole organization, such as its members, credit, statements, events, settings, budgets and limits.
_LIMITED_VIEWER = frozenset(
    {
        "accounts.view_organization",  # its name and time zone
        "accounts.view_project",
        "accounts.view_apikey",
        "accounts.view_ratelimit",
        "usage.view_generation",
        "usage.view_hourlyusage",
        "usage.view_refusedrequests",
        "usage.view_budget",
        "usage.view_budgetlimit",
    }
)
LIMITED_PERMISSIONS: Mapping[str, frozenset[str]] = {
    Role.VIEWER: _LIMITED_VIEWER,
    Role.MEMBER: _LIMITED_VIEWER | {"accounts.add_apikey", "accounts.change_apikey"},
}
"""The permissions of the only roles that can be limited to single projects."""

MEANINGS: Mapping[Role, str] = {
    Role.OWNER: "everything, also settings, single sign-on, the audit log, stored responses and other owners",
    Role.ADMIN: "projects, keys, admin keys, client certificates, budgets, limits, webhooks, payments, "
    "members of no higher role",
    Role.MEMBER: "read usage and requests, create and revoke keys, use the playground",
    Role.VIEWER: "read usage, requests, receipts, budgets, limits, statements, members and keys",
}
"""What each role may do, in the words of the console and of the management API."""

# The roles that make and change admin keys, which read the usage and costs of the whole organization.
ADMINISTERS_KEYS = frozenset({Role.ADMIN, Role.OWNER})

_FROM_LEAST = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)


def is_above(role: str, other: str | None) -> bool:
    """Return whether the first role is above the other; every role is above None, the absence of a role."""
    return other is None or _FROM_LEAST.index(Role(role)) > _FROM_LEAST.index(Role(other))


def least_with(permissions: Set[str]) -> Role:
    """Return the least role that has all of these permissions, which some role has."""
    return next(role for role in _FROM_LEAST if permissions <= PERMISSIONS[role])


def givable(own: str) -> list[Role]:
    """Return the roles that a person with this role may assign and remove: none above it."""
    return [role for role in _FROM_LEAST if not is_above(role, own)]
