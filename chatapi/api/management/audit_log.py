"""`/v1/organization/audit_logs`: the organization's audit log, newest first, in OpenAI's words."""

from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from msgspec import UNSET
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, memberships
from accounts.audit.models import AuditEntry
from accounts.models import APIKey, Member, Project, ServiceAccount
from chatapi.api.management import bodies, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, page_of_rows
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import caller_of
from usage.database.time_limit import time_limit

# OpenAI's words for our kinds of objects; others keep the name of their model.
_KINDS = {
    "accounts.apikey": "api_key",
    "accounts.certificate": "certificate",
    "accounts.federationrule": "workload_identity_federation_rule",
    "accounts.group": "group",
    "accounts.member": "user",
    "accounts.organization": "organization",
    "accounts.ownrole": "role",
    "accounts.project": "project",
    "accounts.ratelimit": "rate_limit",
    "accounts.serviceaccount": "service_account",
    "accounts.workloadidentityprovider": "workload_identity_provider",
    "usage.budgetlimit": "spend_limit",
    "usage.spendalert": "spend_alert",
}
# What the ids of these objects begin with in the management API.
_PREFIXES = {
    "accounts.certificate": "cert_",
    "accounts.group": "group_",
    "accounts.ownrole": "role_",
}
_OBJECT_TYPES = {kind: object_type for object_type, kind in _KINDS.items()}
_ACTIONS = {"created": "created", "changed": "updated", "deleted": "deleted"}
_ACTION_OF = {word: action for action, word in _ACTIONS.items()}
# The events that OpenAI names by another verb than their action.
_ADDED, _REVOKED, _ARCHIVED = "user.added", "api_key.deleted", "project.archived"
_IS_REVOCATION = Q(object_type="accounts.apikey", action="changed", changes__has_key="revoked_at")
# `has_key`, because for changes without `is_active` the comparison, and so its negation, would be NULL.
_IS_ARCHIVING = Q(
    object_type="accounts.project",
    action="changed",
    changes__has_key="is_active",
    changes__is_active=[True, False],
)
# Without the "s", as their action makes them, no entry is shown.
_ACTIVATIONS = {f"certificate.{act}": f"certificates.{act}" for act in ("activated", "deactivated")}
_SPECIAL = {
    _ADDED: Q(object_type="accounts.member", action="created"),
    _REVOKED: _IS_REVOCATION,
    _ARCHIVED: _IS_ARCHIVING,
    **{
        shown: Q(object_type="accounts.certificate", action=found.partition(".")[2])
        for found, shown in _ACTIVATIONS.items()
    },
}
# Entries show whole seconds, so `gt=10` means `at >= 11`: the lookup, and the seconds to add.
_BOUNDS = {"gt": ("gte", 1), "gte": ("gte", 0), "lt": ("lt", 0), "lte": ("lt", 1)}


class AuditLogs(ManagementRoute):
    """The acts of people, API keys and commands on what belongs to the organization."""

    path = "audit_logs"
    operations = {
        "GET": ManagementOperation(
            "listAuditLogs", "List the audit log", "audit.view_auditentry", Page[objects.AuditLog],
            query=bodies.AuditLogQuery,
            description="For keys with the role `owner`. The newest act is the first one.",
        )
    }  # fmt: skip

    @time_limit()
    def get(self, request: Request) -> Response:
        query = self.query(request)
        members = access.managed_by(caller_of(request), Member.objects.all())
        own_projects = access.managed_by(caller_of(request), Project.objects.select_related("organization"))
        entries = access.managed_by(caller_of(request), AuditEntry.objects.all())
        rows = entries.filter(_matching(query, members))
        found: list[AuditEntry] = []

        def logs_of(entries: list[AuditEntry]) -> list[objects.AuditLog]:
            found.extend(entries)
            actors = members.filter(user__in={entry.actor_id for entry in entries} - {None})
            emails = dict(actors.values_list("user", "user__email"))
            projects = own_projects.in_bulk({entry.project_id for entry in entries} - {None})
            return [_log(entry, emails, projects) for entry in entries]

        page = msgspec.to_builtins(page_of_rows(rows, query, logs_of, newest_first=True))
        # In OpenAI's object, the member with the details has the name of the event's type.
        for log, entry in zip(page["data"], found, strict=True):
            log[log["type"]] = _details(entry)
        return Response(page)


routes: list[type[ManagementRoute]] = [AuditLogs]


def _matching(query: Any, members: QuerySet[Member]) -> Q:
    """Return the condition of the query's filters; e-mail addresses match members only."""
    found = Q(pk__in=[]) if query.tenant_only else Q()
    for name, (lookup, more_s) in _BOUNDS.items():
        seconds = getattr(query, f"effective_{name}")
        if seconds is not UNSET:
            found &= Q(**{f"at__{lookup}": datetime.fromtimestamp(seconds + more_s, UTC)})
    if query.event_types is not None:
        found &= reduce(or_, map(_of_type, query.event_types), Q(pk__in=[]))
    if query.actor_ids is not None:
        found &= Q(actor_id__in=query.actor_ids) | Q(actor_key_id__in=query.actor_ids)
    if query.actor_emails is not None:
        acting = memberships.with_emails(members, query.actor_emails)
        found &= Q(actor_id__in=acting.values("user"))
    if query.resource_ids is not None:
        named = Q(object_id__in=query.resource_ids)
        for object_type, prefix in _PREFIXES.items():
            ids = [each.removeprefix(prefix) for each in query.resource_ids if each.startswith(prefix)]
            named |= Q(object_type=object_type, object_id__in=ids)
        found &= named
    return found if query.project_ids is None else found & _of_projects(query.project_ids)


def _of_type(event_type: str) -> Q:
    """Return the condition of an event's type. Raises `InvalidRequest` for text that is no type."""
    if event_type in _SPECIAL:
        return _SPECIAL[event_type]
    kind, _, act = event_type.rpartition(".")
    if not kind:
        refuse("expected types such as 'project.created'.", "event_types")
    # No entry is shown with these: `changed` is shown as "updated", a label of `_KINDS` as OpenAI's word, and
    # `user.created` as `user.added`.
    if act == "changed" or kind in _KINDS or event_type in {"user.created", *_ACTIVATIONS}:
        return Q(pk__in=[])
    action = _ACTION_OF.get(act, act.replace("_", " "))
    same = Q(object_type=_OBJECT_TYPES.get(kind, kind), action=action)
    return same & ~_IS_REVOCATION & ~_IS_ARCHIVING if act == "updated" else same


def _of_projects(ids: list[str]) -> Q:
    """Match acts on these projects and on what belongs to them.

    Entries of earlier releases store no project. They match by their object: one of the projects, or one of
    their keys and service accounts that still exist.
    """
    projects = [int(each) for each in ids]
    found = Q(project_id__in=projects) | Q(object_type="accounts.project", object_id__in=ids)
    rows: dict[str, QuerySet[Any]] = {
        "accounts.apikey": APIKey.objects.filter(project__in=projects).order_by(),
        "accounts.serviceaccount": ServiceAccount.objects.filter(project__in=projects).order_by(),
    }
    for object_type, own in rows.items():
        texts = own.values_list(Cast("pk", CharField()), flat=True)
        found |= Q(object_type=object_type, object_id__in=texts)
    return found


def _log(entry: AuditEntry, emails: dict[int, str], projects: dict[int, Project]) -> objects.AuditLog:
    project = None
    if entry.object_type == Project._meta.label_lower:
        project = objects.AuditedProject(id=entry.object_id, name=entry.object_name)
    elif entry.project_id in projects:
        project = objects.AuditedProject(id=str(entry.project_id), name=str(projects[entry.project_id]))
    return objects.AuditLog(
        id=str(entry.pk),
        type=_type(entry),
        effective_at=int(entry.at.timestamp()),
        actor=_actor(entry, emails),
        project=project,
    )


def _type(entry: AuditEntry) -> str:
    kind = _KINDS.get(entry.object_type, entry.object_type)
    act = _ACTIONS.get(entry.action, entry.action.replace(" ", "_"))
    found = f"{kind}.{act}"
    if found == "api_key.updated" and "revoked_at" in entry.changes:
        return _REVOKED
    if found == "project.updated" and entry.changes.get("is_active") == [True, False]:
        return _ARCHIVED
    return _ADDED if found == "user.created" else _ACTIVATIONS.get(found, found)


def _actor(entry: AuditEntry, emails: dict[int, str]) -> objects.Actor:
    """Return the person, key or command that acted; a command is a session without a user."""
    if entry.actor_key_id is not None:
        key = objects.ActingKey(id=str(entry.actor_key_id))
        return objects.Actor(type="api_key", name=entry.actor, api_key=key)
    user = None
    if entry.actor_id is not None:
        user = objects.ActingUser(id=str(entry.actor_id), email=emails.get(entry.actor_id))
    return objects.Actor(type="session", name=entry.actor, session=objects.Session(user=user))


def _details(entry: AuditEntry) -> dict[str, Any]:
    """Return the object's id, and its new values if it was created or changed."""
    row_id = f"{_PREFIXES.get(entry.object_type, '')}{entry.object_id}"
    found: dict[str, Any] = {"id": row_id, "name": entry.object_name}
    new_values = {name: after for name, (_, after) in entry.changes.items()}
    match entry.action:
        case "created":
            found["data"] = new_values
        case "changed":
            found["changes_requested"] = new_values
    return found
