"""What each role may do in its organization, as Django's permission names, and which roles it may assign."""

from collections.abc import Mapping

from accounts.models import Role

_VIEWER = frozenset(
    {
        *(f"accounts.view_{name}" for name in ("organization", "project", "member", "apikey", "ratelimit")),
        *(
            f"usage.view_{name}"
            for name in (
                "generation",
                "ledgerentry",
                "hourlyusage",
                "budget",
                "budgetlimit",
                "credit",
                "discount",
            )
        ),
        "usage.view_refusedrequests",
        "chatapi.view_storedresponse",
    }
)
_MEMBER = _VIEWER | {"accounts.add_apikey", "accounts.change_apikey"}
# To make, change and revoke admin keys; `ADMINISTERS_KEYS` has the roles.
ADMINISTER_KEYS = "accounts.administer_keys"

_ADMIN = _MEMBER | {
    ADMINISTER_KEYS,
    *(f"accounts.{act}_project" for act in ("add", "change")),
    *(f"accounts.{act}_{name}" for name in ("member", "ratelimit") for act in ("add", "change", "delete")),
    *(f"usage.{act}_budgetlimit" for act in ("add", "change", "delete")),
    "usage.change_generation",  # stop it
}

_OWNER = _ADMIN | {"audit.view_auditentry", "chatapi.read_storedresponse"}

# Owners may also add, change and remove owners.
#
# The installation's matters are not here: models, deployments, prices, discounts, credit, corrections,
# people's passwords, groups, and an organization's name, time zone (which says when a day's budget ends) and
# state.
PERMISSIONS: Mapping[str, frozenset[str]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.ADMIN: _ADMIN,
    Role.OWNER: _OWNER,
}

# The roles that make and change admin keys, which read the usage and costs of the whole organization.
ADMINISTERS_KEYS = frozenset({Role.ADMIN, Role.OWNER})

_FROM_LEAST = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)


def is_above(role: str, other: str | None) -> bool:
    """Return whether the first role is above the other; every role is above None, the absence of a role."""
    return other is None or _FROM_LEAST.index(Role(role)) > _FROM_LEAST.index(Role(other))


def givable(own: str) -> list[Role]:
    """Return the roles that a person with this role may assign and remove: none above it."""
    return [role for role in _FROM_LEAST if not is_above(role, own)]
