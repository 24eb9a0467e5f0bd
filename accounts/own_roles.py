"""Roles that organizations make: what these can permit, and making, changing and removing them.

An own role is for the console, and for all projects of its organization. It has some of the permissions of
the four roles, in whole choices: a page shows a person nothing that another choice would permit. What would
let its members give rights to themselves or to others, or decide from which clients keys are accepted, is no
choice.

Each change locks the organization, as changes of members do, so that bounds hold and a form that is older
than another change is refused.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db import transaction

from accounts import roles
from accounts.models import Member, Organization, OwnRole, Role

MAX_ROLES = 20
BASE = frozenset({"accounts.view_organization", "accounts.view_project"})
"""What every own role permits: the pages Start, Models, Settings and Search, and the names of projects."""
NEVER = frozenset(
    {
        # They give rights: roles, admin keys, and the provider's roles.
        "accounts.add_member",
        "accounts.change_member",
        "accounts.delete_member",
        roles.ADMINISTER_KEYS,
        roles.ADMINISTER_SIGN_IN,
        # They decide which clients may send requests with the organization's keys.
        "accounts.view_certificate",
        "accounts.add_certificate",
        "accounts.change_certificate",
        "accounts.delete_certificate",
        # Their pages are in the admin, which is closed to members with an own role.
        "chatapi.view_storedresponse",
        "chatapi.read_storedresponse",
    }
)
"""The permissions of the four roles that no own role has."""
_CHANGED = "This role was changed or removed just now. Look again."
_NOTHING_MORE = "read the models and settings"
_RESERVED = {*Role.values, "reader"}


@dataclass(frozen=True, slots=True)
class Choice:
    """Permissions that belong together, in the words of the console, and the choices that they need."""

    text: str
    permissions: frozenset[str]
    needs: tuple[str, ...] = ()


_USAGE = frozenset(
    {
        "usage.view_hourlyusage",
        "usage.view_refusedrequests",
        "usage.view_generation",
        "usage.view_ledgerentry",
    }
)
_BUDGETS = frozenset({"usage.view_budget", "usage.view_budgetlimit", "accounts.view_ratelimit"})
_SET_BUDGETS = frozenset(
    {
        "usage.add_budgetlimit",
        "usage.change_budgetlimit",
        "usage.delete_budgetlimit",
        "accounts.add_ratelimit",
        "accounts.change_ratelimit",
        "accounts.delete_ratelimit",
    }
)
_SET_WEBHOOKS = frozenset(
    {
        "chatapi.add_webhookendpoint",
        "chatapi.change_webhookendpoint",
        "chatapi.delete_webhookendpoint",
    }
)
CHOICES: Mapping[str, Choice] = {
    "usage": Choice("Read spend, usage and requests, also while they run", _USAGE),
    "stop": Choice("Stop running requests", frozenset({"usage.change_generation"}), ("usage",)),
    "budgets": Choice("Read budgets and limits", _BUDGETS, ("usage",)),
    "set_budgets": Choice(
        "Set budgets and limits; also spend alerts, if it reads members, and when credit is low, if it reads "
        "notifications",
        _SET_BUDGETS,
        ("budgets",),
    ),
    "keys": Choice(
        "Read API keys, their use and limits", frozenset({"accounts.view_apikey"}), ("usage", "budgets")
    ),
    "set_keys": Choice(
        "Create, change and revoke API keys, use the playground",
        frozenset({"accounts.add_apikey", "accounts.change_apikey"}),
        ("keys",),
    ),
    "statements": Choice(
        "Read statements and discounts", frozenset({"usage.view_statement", "usage.view_discount"})
    ),
    "credit": Choice("Read credit and payments", frozenset({"usage.view_credit", "payment.view_payment"})),
    "pay": Choice("Pay", frozenset({"payment.add_payment"}), ("credit",)),
    "events": Choice("Read notifications, and choose mail of them", frozenset({"usage.view_event"})),
    "webhooks": Choice("Read webhooks", frozenset({"chatapi.view_webhookendpoint"}), ("events",)),
    "set_webhooks": Choice("Set up webhooks", _SET_WEBHOOKS, ("webhooks",)),
    "members": Choice("Read members, their roles and groups", frozenset({"accounts.view_member"})),
    "audit": Choice("Read the audit log", frozenset({"audit.view_auditentry"})),
    "projects": Choice(
        "Create and change projects", frozenset({"accounts.add_project", "accounts.change_project"})
    ),
    "settings": Choice(
        "Change the organization's name, time zone, dialect, and whether responses may be stored",
        frozenset({"accounts.change_organization"}),
    ),
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Usage": ("usage", "stop"),
    "Budgets and limits": ("budgets", "set_budgets"),
    "API keys": ("keys", "set_keys"),
    "Money": ("statements", "credit", "pay"),
    "Notifications and webhooks": ("events", "webhooks", "set_webhooks"),
    "Organization": ("members", "audit", "projects", "settings"),
}
"""The choices by the headings under which the console shows them."""
ALLOWED = BASE.union(*(each.permissions for each in CHOICES.values()))


def permissions_of(names: Collection[str]) -> frozenset[str]:
    """Return those of the stored names that an own role can have."""
    return ALLOWED.intersection(names)


def chosen(permissions: Set[str]) -> list[str]:
    """Return the names of the choices that these permissions have."""
    return [name for name, choice in CHOICES.items() if choice.permissions <= permissions]


def words(names: Collection[str]) -> str:
    """Return what these permissions permit, in lower case, as `roles.MEANINGS` does."""
    texts = [CHOICES[name].text for name in chosen(permissions_of(names))]
    return "; ".join(text[0].lower() + text[1:] for text in texts) or _NOTHING_MORE


def with_choices(names: Collection[str]) -> frozenset[str]:
    """Return the permissions of these choices, with those of every own role."""
    return BASE.union(*(CHOICES[name].permissions for name in names))


def missing(permissions: Set[str]) -> list[str]:
    """Return the permissions without which these do not work: the rest of each choice, and what it needs."""
    needed = set(BASE)
    # A choice needs only earlier ones.
    for choice in reversed([*CHOICES.values()]):
        if choice.permissions & (permissions | needed):
            needed |= choice.permissions.union(*(CHOICES[name].permissions for name in choice.needs))
    return sorted(needed - permissions)


def create(organization_id: int, name: str, description: str, permissions: Collection[str]) -> OwnRole:
    """Return a new role. Raises `ValidationError`."""
    row = OwnRole(organization_id=organization_id)
    with _locked(organization_id):
        if OwnRole.objects.filter(organization=organization_id).count() >= MAX_ROLES:
            raise ValidationError(f"An organization has at most {MAX_ROLES} roles of its own.")
        _save(row, name, description, permissions)
    return row


def change(
    row: OwnRole, name: str, description: str, permissions: Collection[str], known: str | None = None
) -> None:
    """Change the role, which holds for its members at once. Raises `ValidationError`, also if its `state` is
    not `known` any more.
    """
    with _locked(row.organization_id):
        _check_same(row, known or state(row))
        _save(row, name, description, permissions)


def remove(row: OwnRole) -> None:
    """Remove the role. Raises `ValidationError` if members or invited people have it."""
    with _locked(row.organization_id):
        _check_same(row, state(row))
        if count := Member.objects.filter(own_role=row).count():
            has = f"{count:,} members have" if count > 1 else "1 member has"
            raise ValidationError(f"{has} this role: give another one first.")
        row.delete()


def state(row: OwnRole) -> str:
    """Return a digest of what was read of the role, to be compared."""
    parts = [row.name, row.description, sorted(row.permissions)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@contextmanager
def _locked(organization_id: int) -> Iterator[None]:
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
        yield


def _check_same(row: OwnRole, known: str) -> None:
    """Raise `ValidationError` unless the role is as it is known: the caller has decided on that."""
    now = OwnRole.objects.filter(pk=row.pk).first()
    if now is None or state(now) != known:
        raise ValidationError(_CHANGED)


def _save(row: OwnRole, name: str, description: str, permissions: Collection[str]) -> None:
    name = name.strip()  # a page shows no space at the end, so it tells no name from another
    if name.lower() in _RESERVED:
        raise ValidationError({"name": f"“{name}” is the name of a role of all organizations."})
    same = OwnRole.objects.filter(organization=row.organization_id, name__iexact=name).exclude(pk=row.pk)
    if same.exists():
        raise ValidationError({"name": "A role of the organization has this name already."})
    wanted = frozenset(permissions)
    if unknown := sorted(wanted - ALLOWED):
        allowed = ", ".join(sorted(ALLOWED))
        raise ValidationError({"permissions": f"{unknown[0][:100]!r} is not one of {allowed}."})
    if lacking := missing(wanted):
        raise ValidationError({"permissions": f"these need {', '.join(lacking)}, too."})
    row.name, row.description, row.permissions = name, description, sorted(wanted)
    row.full_clean()
    row.save()
