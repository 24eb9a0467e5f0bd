"""Groups of an organization's members: those who are limited to projects see their groups' projects, too.

Each change locks the organization, as changes of members do, so that bounds hold and a form that is older
than another change is refused.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from accounts.models import Group, Member, Organization, Project

MAX_GROUPS = 100
MAX_MEMBERS = 1_000
MAX_PROJECTS = 100
_CHANGED = "This group was changed or removed just now. Look again."


def create(
    organization_id: int, name: str, members: Collection[Member] = (), projects: Collection[Project] = ()
) -> Group:
    """Return a new group of these members and projects. Raises `ValidationError`."""
    group = Group(organization_id=organization_id, name=name)
    with _locked(organization_id):
        if Group.objects.filter(organization=organization_id).count() >= MAX_GROUPS:
            raise ValidationError(f"An organization has at most {MAX_GROUPS} groups.")
        _save(group)
        _put_in(group, members, projects)
    return group


def change(
    group: Group,
    name: str,
    members: Collection[Member],
    projects: Collection[Project],
    known: str | None = None,
) -> None:
    """Give the group this name, and these members and projects only. Raises `ValidationError`, also if its
    `state` is not `known` any more.
    """
    with _locked_group(group):
        if known is not None and known != state(group):
            raise ValidationError(_CHANGED)
        rename(group, name)
        group.members.remove(*set(group.members.all()).difference(members))
        group.projects.remove(*set(group.projects.all()).difference(projects))
        _put_in(group, members, projects)


def rename(group: Group, name: str) -> None:
    """Give the group another name. Raises `ValidationError`."""
    with _locked_group(group):
        if group.name != name:
            group.name = name
            _save(group)


def add(group: Group, members: Collection[Member] = (), projects: Collection[Project] = ()) -> None:
    """Add members and projects, some of which may be in the group. Raises `ValidationError`."""
    with _locked_group(group):
        _put_in(group, members, projects)


def take(group: Group, members: Iterable[Member] = (), projects: Iterable[Project] = ()) -> None:
    """Take members and projects from the group. Raises `ValidationError` if the group was removed."""
    with _locked_group(group):
        group.members.remove(*members)
        group.projects.remove(*projects)


def remove(group: Group) -> None:
    """Remove the group; its members stay members. Raises `ValidationError` if it was removed before."""
    with _locked_group(group):
        group.delete()


def set_groups(member: Member, groups: Collection[Group]) -> None:
    """Put the member into these groups of the organization, and take them from all others. Raises
    `ValidationError`.
    """
    with _locked(member.organization_id):
        before = set(member.groups.all())
        for group in before.difference(groups):
            take(group, members=[member])
        for group in set(groups) - before:
            add(group, members=[member])


def state(group: Group) -> str:
    """Return a digest of the group as the database has it, to be compared."""
    parts: list[Any] = [Group.objects.get(pk=group.pk).name]
    for rows in (group.members, group.projects):
        parts.append(sorted(rows.values_list("pk", flat=True)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@contextmanager
def _locked(organization_id: int) -> Iterator[None]:
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
        yield


@contextmanager
def _locked_group(group: Group) -> Iterator[None]:
    with _locked(group.organization_id):
        if not Group.objects.filter(pk=group.pk, organization=group.organization_id).exists():
            raise ValidationError(_CHANGED)
        yield


def _save(group: Group) -> None:
    same = Group.objects.filter(organization=group.organization_id, name=group.name).exclude(pk=group.pk)
    if same.exists():
        raise ValidationError({"name": "A group of the organization has this name already."})
    group.full_clean()
    group.save()


def _put_in(group: Group, members: Collection[Member], projects: Collection[Project]) -> None:
    """Add members and projects, within the bounds; those of another organization are refused."""
    wanted: tuple[tuple[str, Any, Collection[Any], int], ...] = (
        ("members", group.members, members, MAX_MEMBERS),
        ("projects", group.projects, projects, MAX_PROJECTS),
    )
    for noun, rows, new, most in wanted:
        if any(each.organization_id != group.organization_id for each in new):
            raise ValidationError(f"Not all of these {noun} are of the group's organization.")
        if new:
            rows.add(*new)
            if rows.count() > most:
                raise ValidationError(f"A group has at most {most:,} {noun}.")
