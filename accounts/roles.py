"""What each role may do in its organization, as names of Django's permissions, and which roles it may give."""

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
    }
)
_MEMBER = _VIEWER | {"accounts.add_apikey", "accounts.change_apikey"}
_ADMIN = _MEMBER | {
    *(f"accounts.{act}_project" for act in ("add", "change")),
    *(f"accounts.{act}_{name}" for name in ("member", "ratelimit") for act in ("add", "change", "delete")),
    *(f"usage.{act}_budgetlimit" for act in ("add", "change", "delete")),
    "usage.change_generation",  # stop it
}

_OWNER = _ADMIN | {"audit.view_auditentry"}

PERMISSIONS: Mapping[str, frozenset[str]] = {
    Role.VIEWER: _VIEWER,
    Role.MEMBER: _MEMBER,
    Role.ADMIN: _ADMIN,
    Role.OWNER: _OWNER,
}
"""Besides, an owner makes, changes and removes owners too.

What is the installation's has no place here: models, deployments, prices, discounts, credit, corrections,
people's passwords, groups, and organizations themselves: their name, their time zone (which says when a day's
budget ends) and whether they are active.
"""

ADMINISTERS_KEYS = frozenset({Role.ADMIN, Role.OWNER})
"""The roles that make and change admin keys, which read what the whole organization used and spent."""

_FROM_LEAST = (Role.VIEWER, Role.MEMBER, Role.ADMIN, Role.OWNER)


def is_above(role: str, other: str | None) -> bool:
    """Whether the first role is above the other; each is above None, who has no role."""
    return other is None or _FROM_LEAST.index(Role(role)) > _FROM_LEAST.index(Role(other))


def givable(own: str) -> list[Role]:
    """The roles that someone of this role may give and take: none above it."""
    return [role for role in _FROM_LEAST if not is_above(role, own)]
