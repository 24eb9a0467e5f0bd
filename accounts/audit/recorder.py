"""The one door to the audit log: changes by an actor are recorded in the same transaction.

- `acting` sets the actor (the middleware and `commands.acting_command` call it).
- `watch` records every save and deletion of a model's rows.
- `update` replaces a queryset's `update()`, which sends no signals.
- `record` writes an act that no row's change shows, such as an export.
- `write` takes the actor as an argument, where there is no current one: signing in, Stripe.

Without an actor, as in the worker, all this costs one look at a context variable and writes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Field, Model, QuerySet
from django.db.models.signals import m2m_changed, post_save, pre_delete, pre_save

from accounts.audit import changes as states
from accounts.audit.changes import Changes
from accounts.audit.models import AuditEntry
from accounts.models import APIKey, EndUser, Organization, Project

_BEFORE = "_audit_before"
# Of a many-to-many field, in one entry.
_MAX_NAMES = 100


@dataclass(frozen=True, slots=True)
class Actor:
    """The person, key or command that acts, and its IP."""

    id: int | None
    name: str
    ip: str | None = None
    key_id: int | None = None
    """The API key that acts; None for a person or a command."""


_find_actor: ContextVar[Callable[[], Actor | None] | None] = ContextVar("find_actor", default=None)
# Budgets and limits (`Scope` in usage/models/budget_keys.py) name their owner by kind and id.
_OWNERS: Mapping[str, type[Any]] = {
    "organization": Organization,
    "org_user": Organization,
    "project": Project,
    "project_user": Project,
    "key": APIKey,
    "end_user": EndUser,
}


@contextmanager
def acting(find_actor: Callable[[], Actor | None]) -> Iterator[None]:
    """Record what happens inside, unless `find_actor`, which is called for each act, returns None."""
    token = _find_actor.set(find_actor)
    try:
        yield
    finally:
        _find_actor.reset(token)


def current_actor() -> Actor | None:
    find_actor = _find_actor.get()
    return find_actor() if find_actor is not None else None


def record(action: str, row: Model, changes: Changes | None = None, reason: str = "") -> None:
    """Write an entry of the current actor, if there is one."""
    actor = current_actor()
    if actor is not None:
        write(actor, action, row, changes, reason)


def write(actor: Actor, action: str, row: Model, changes: Changes | None = None, reason: str = "") -> None:
    organization_id, project_id = _owner_ids(row)
    AuditEntry.objects.create(
        actor_id=actor.id,
        actor_key_id=actor.key_id,
        actor=actor.name,
        address=actor.ip,
        action=action,
        object_type=row._meta.label_lower,
        object_id=str(row.pk or ""),
        object_name=str(row)[:300],
        organization_id=organization_id,
        project_id=project_id,
        changes=changes or {},
        reason=reason,
    )


def update(rows: "QuerySet[Any]", **values: Any) -> int:
    """Update the rows as their `update()` does, record it, and return the number of rows."""
    if current_actor() is None:
        return rows.update(**values)
    model = rows.model
    with transaction.atomic():
        # Locked in id order, so that two updates can't block each other, and read under these locks, so that
        # the entry has the values that were replaced.
        before = states.values_of(
            model._base_manager.filter(pk__in=rows.values("pk")).order_by("pk").select_for_update()
        )
        # Rows that match only since then are left out: their old values were not read.
        count = rows.filter(pk__in=before).update(**values)
        for row in model._base_manager.filter(pk__in=before).order_by("pk"):
            _record_change(row, before[row.pk])
    return count


def watch(models: Iterable[type[Model]]) -> None:
    """Record changes of these models' rows from now on."""
    for model in models:
        pre_save.connect(_before_save, sender=model, dispatch_uid=_BEFORE)
        post_save.connect(_after_save, sender=model, dispatch_uid=_BEFORE)
        pre_delete.connect(_before_delete, sender=model, dispatch_uid=_BEFORE)
        for field in model._meta.many_to_many:
            m2m_changed.connect(_relation_changes, sender=field.remote_field.through, dispatch_uid=_BEFORE)


def _before_save(sender: type[Model], instance: Model, raw: bool, **_: Any) -> None:
    if not raw and not instance._state.adding and current_actor() is not None:
        instance.__dict__[_BEFORE] = states.values(sender, instance.pk)


def _after_save(sender: type[Model], instance: Model, created: bool, raw: bool, **_: Any) -> None:
    before = instance.__dict__.pop(_BEFORE, {})
    if raw or current_actor() is None:
        return
    if created:
        record("created", instance, states.between(sender, {}, states.values(sender, instance.pk)))
    else:
        _record_change(instance, before)


def _record_change(row: Model, before: states.Values) -> None:
    model = type(row)
    found = states.between(model, before, states.values(model, row.pk))
    if found:
        record("changed", row, found)


def _before_delete(sender: type[Model], instance: Model, **_: Any) -> None:
    """Record the deletion. If it fails, its transaction takes the entry with it."""
    if current_actor() is not None:
        record("deleted", instance, states.between(sender, states.values(sender, instance.pk), {}))


def _relation_changes(sender: type[Model], instance: Model, action: str, **_: Any) -> None:
    """Record changes of many-to-many fields, such as groups, with all names before and after, or with those
    that differ if there are very many.
    """
    if current_actor() is None:
        return
    name = _relation(instance, sender)
    # With the rows that are in their names, such as a project's organization.
    now = sorted(str(row) for row in getattr(instance, name).select_related())
    if action.startswith("pre_"):
        instance.__dict__[_BEFORE + name] = now
        return
    before = instance.__dict__.pop(_BEFORE + name, [])
    if before != now:
        record("changed", instance, {name: [_names(before, now), _names(now, before)]})


def _names(names: list[str], others: list[str]) -> list[str]:
    """Return the names; if either list has very many, those that the other one has not, and how many more."""
    if max(len(names), len(others)) <= _MAX_NAMES:
        return names
    differing = sorted(set(names) - set(others))
    return [*differing, f"and {len(names) - len(differing)} more"]


def _relation(instance: Model, through: type[Model]) -> str:
    """Return the name of this side of the relation."""
    for field in instance._meta.get_fields():
        remote: Any = getattr(field, "remote_field", None)
        if field.many_to_many and isinstance(field, Field) and remote.through is through:
            return field.name
        if field.many_to_many and getattr(field, "through", None) is through:
            return str(field.get_accessor_name())  # type: ignore[union-attr]
    raise AssertionError(f"{through} belongs to a relation of {instance}")


def _owner_ids(row: Model) -> tuple[int | None, int | None]:
    """Return the ids of the organization and the project that the row is or belongs to."""
    if isinstance(row, Organization):
        return row.pk, None
    if isinstance(row, Project):
        return row.organization_id, row.pk
    if (organization_id := getattr(row, "organization_id", None)) is not None:
        return int(organization_id), getattr(row, "project_id", None)
    owners = [getattr(row, name, None) for name in ("project", "api_key", "end_user")]
    scope, scope_id = getattr(row, "scope", None), getattr(row, "scope_id", None)
    if scope is not None and scope_id is not None:
        owners.append(_OWNERS[scope].objects.filter(pk=scope_id).first())
    return next((_owner_ids(owner) for owner in owners if isinstance(owner, Model)), (None, None))
