"""The API keys of projects, service accounts with their keys, and admin keys. A deleted key is revoked."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from msgspec import UNSET, UnsetType
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, allowed_ips, keys, roles
from accounts.models import APIKey, Project, ServiceAccount
from chatapi.api.management import bodies, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, PageQuery, page_of_rows
from chatapi.api.management.route import ManagementRoute, expiry, find, refuse, refuse_more
from chatapi.api.views import caller_of, respond
from chatapi.wire.invalid_request import InvalidRequest
from usage.insights.keys import newest_requests


class ProjectKeys(ManagementRoute):
    """The keys of a project, without admin keys and revoked ones."""

    path = "projects/<str:project_id>/api_keys"
    operations = {
        "GET": ManagementOperation(
            "listProjectKeys", "List a project's API keys", "accounts.view_apikey", Page[objects.ProjectKey],
            query=bodies.ProjectKeyListQuery,
            description="Without admin keys, which have a list of their own.",
        )
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        query = self.query(request)
        rows = _project_keys(self.project(request, project_id))
        usable = Q(pk__in=access.usable_keys().values("pk"))
        if query.owner_project_access != "any":
            rows = rows.filter(usable if query.owner_project_access == "active" else ~usable)
        return respond(page_of_rows(rows, query, _shown))


class ProjectKey(ManagementRoute):
    path = "projects/<str:project_id>/api_keys/<str:api_key_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectKey", "Show a project's API key", "accounts.view_apikey", objects.ProjectKey
        ),
        "POST": ManagementOperation(
            "modifyProjectKey", "Change the scopes, the expiry and the IP addresses of a project's API key",
            "accounts.change_apikey", objects.ProjectKey,
            body=bodies.ProjectKeyBody,
        ),
        "DELETE": ManagementOperation(
            "deleteProjectKey", "Revoke a project's API key", "accounts.change_apikey", objects.Deleted
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, api_key_id: str) -> Response:
        return respond(_shown([self._key(request, project_id, api_key_id)])[0])

    @transaction.atomic
    def post(self, request: Request, project_id: str, api_key_id: str) -> Response:
        """Change what was sent of scopes, expiry and IP addresses; refuse an expired key."""
        row, sent = self._key(request, project_id, api_key_id), self.body(request)
        if row.expires_at is not None and row.expires_at <= timezone.now():
            raise InvalidRequest("This key has expired, so it can't be changed.", "api_key_id")
        if sent.expires_in_seconds is None and sent.scopes is None and sent.allowed_ips is None:
            message = "Missing required parameter: 'scopes', 'expires_in_seconds' or 'allowed_ips'."
            raise InvalidRequest(message, "scopes", "missing_required_parameter")
        row.expires_at = expiry(sent.expires_in_seconds) or row.expires_at
        row.scopes = row.scopes if sent.scopes is None else list(dict.fromkeys(sent.scopes))
        row.allowed_ips = row.allowed_ips if sent.allowed_ips is None else sent.allowed_ips
        row.full_clean()
        row.save(update_fields=["expires_at", "scopes", "allowed_ips"])
        return respond(_shown([row])[0])

    @transaction.atomic
    def delete(self, request: Request, project_id: str, api_key_id: str) -> Response:
        row = self._key(request, project_id, api_key_id)
        keys.revoke(APIKey.objects.filter(pk=row.pk))
        return respond(objects.Deleted(object="organization.project.api_key.deleted", id=str(row.pk)))

    def _key(self, request: Request, project_id: str, api_key_id: str) -> APIKey:
        rows = _project_keys(self.project(request, project_id))
        return find(caller_of(request), rows, api_key_id, "api key")


class ServiceAccounts(ManagementRoute):
    path = "projects/<str:project_id>/service_accounts"
    operations = {
        "GET": ManagementOperation(
            "listServiceAccounts", "List a project's service accounts", "accounts.view_apikey",
            Page[objects.ServiceAccount],
            query=PageQuery,
        ),
        "POST": ManagementOperation(
            "createServiceAccount", "Create a service account, with a key", "accounts.add_apikey",
            objects.NewServiceAccount,
            body=bodies.ServiceAccountBody,
            description="The secret of the key is shown only now.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        rows = ServiceAccount.objects.filter(project=self.project(request, project_id))
        return respond(page_of_rows(rows, self.query(request), lambda rows: [_account(row) for row in rows]))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        project, sent = self.project(request, project_id), self.body(request)
        if sent.create_service_account_only:
            if sent.expires_in_seconds is not None:
                refuse("there is no key to expire.", "expires_in_seconds")
            if sent.allowed_ips is not None:
                refuse("there is no key that may be used from there.", "allowed_ips")
        refuse_more(ServiceAccount.objects.filter(project=project), "service accounts in a project")
        account = ServiceAccount(project=project, name=sent.name)
        account.full_clean()
        account.save()
        key = None
        if not sent.create_service_account_only:
            row = APIKey(
                project=project, service_account=account, name=sent.name, allowed_ips=sent.allowed_ips or []
            )
            key = _issue(request, row, sent.expires_in_seconds)
        return respond(objects.NewServiceAccount(**_account_members(account), api_key=key))


class OneServiceAccount(ManagementRoute):
    path = "projects/<str:project_id>/service_accounts/<str:service_account_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveServiceAccount", "Show a service account", "accounts.view_apikey", objects.ServiceAccount
        ),
        "POST": ManagementOperation(
            "modifyServiceAccount", "Rename a service account", "accounts.change_apikey",
            objects.ServiceAccount,
            body=bodies.ServiceAccountChange,
            description="Its role is always `member`: admin keys manage the organization.",
        ),
        "DELETE": ManagementOperation(
            "deleteServiceAccount", "Delete a service account and revoke its keys", "accounts.change_apikey",
            objects.Deleted,
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str, service_account_id: str) -> Response:
        return respond(_account(_find_account(self, request, project_id, service_account_id)))

    @transaction.atomic
    def post(self, request: Request, project_id: str, service_account_id: str) -> Response:
        row, sent = _find_account(self, request, project_id, service_account_id), self.body(request)
        row.name = row.name if sent.name is None else sent.name
        row.full_clean()
        row.save()
        return respond(_account(row))

    @transaction.atomic
    def delete(self, request: Request, project_id: str, service_account_id: str) -> Response:
        """Delete the account, if the caller may revoke each admin key among its keys."""
        row = _find_account(self, request, project_id, service_account_id)
        for role in row.api_keys.filter(is_admin=True, revoked_at=None).values_list("manages_as", flat=True):
            access.require(caller_of(request), roles.ADMINISTER_KEYS)
            access.require_role(caller_of(request), role)
        deleted_id = str(row.pk)
        keys.revoke(APIKey.objects.filter(service_account=row))
        row.delete()
        return respond(objects.Deleted(object="organization.project.service_account.deleted", id=deleted_id))


class ServiceAccountKeys(ManagementRoute):
    """The keys of a service account, which are listed among those of its project."""

    path = "projects/<str:project_id>/service_accounts/<str:service_account_id>/api_keys"
    operations = {
        "POST": ManagementOperation(
            "createServiceAccountKey", "Create a key of a service account", "accounts.add_apikey",
            objects.NewKey,
            body=bodies.ServiceAccountKeyBody,
            description="Its secret is shown only now.",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request, project_id: str, service_account_id: str) -> Response:
        account, sent = _find_account(self, request, project_id, service_account_id), self.body(request)
        refuse_more(_unexpired(account.api_keys.filter(revoked_at=None)), "keys of a service account")
        scopes = list(dict.fromkeys(sent.scopes))
        row = APIKey(
            project=account.project,
            service_account=account,
            name=sent.name,
            scopes=scopes,
            allowed_ips=sent.allowed_ips,
        )
        return respond(_issue(request, row, sent.expires_in_seconds))


class AdminKeys(ManagementRoute):
    """The admin keys of the organization that are not revoked."""

    path = "admin_api_keys"
    operations = {
        "GET": ManagementOperation(
            "listAdminKeys", "List the admin keys", "accounts.view_apikey", Page[objects.AdminKey],
            query=bodies.AdminKeyListQuery,
        ),
        "POST": ManagementOperation(
            "createAdminKey", "Create an admin key", roles.ADMINISTER_KEYS, objects.AdminKey,
            body=bodies.AdminKeyBody,
            description="It has the project, role, scopes and models of the calling key, its IP addresses or "
            "those of them that `allowed_ips` names, and ends with it at the latest. `value`, its secret, is "
            "shown only now.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        """Return a page, the oldest first unless `order` is `desc`."""
        query = self.query(request)
        rows = access.managed_by(caller_of(request), _admin_keys())
        page = page_of_rows(rows, query, _shown_admin, newest_first=query.order == "desc")
        return respond(page)

    @transaction.atomic
    def post(self, request: Request) -> Response:
        """Create an admin key with no more rights than the calling one."""
        caller, sent = caller_of(request), self.body(request)
        own_ips = caller.allowed_ips
        refuse_more(_unexpired(access.managed_by(caller, _admin_keys())), "admin keys")
        own_end, wanted_end = access.own_key(caller).expires_at, expiry(sent.expires_in_seconds)
        # Else a key that was lent for a day could lend itself for ever.
        if own_end is not None and wanted_end is not None and wanted_end > own_end:
            refuse("an admin key can't outlive the key that makes it.", "expires_in_seconds")
        row = APIKey(
            project_id=caller.project_id,
            name=sent.name,
            is_admin=True,
            manages_as=caller.manages_as,
            scopes=sorted(caller.scopes),
            allowed_models=sorted(caller.allowed_models),
            allowed_ips=[str(each) for each in own_ips] if sent.allowed_ips is None else sent.allowed_ips,
            expires_at=wanted_end or own_end,
        )
        row.clean()  # normalizes the addresses
        new_ips = allowed_ips.networks(row.allowed_ips)
        if own_ips and not (new_ips and all(allowed_ips.covers(own_ips, each) for each in new_ips)):
            refuse("the calling key may not be used from all of these addresses itself.", "allowed_ips")
        secret = keys.issue(row)
        return respond(_admin_key(row, None, value=secret))


class AdminKey(ManagementRoute):
    path = "admin_api_keys/<str:key_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveAdminKey", "Show an admin key", "accounts.view_apikey", objects.AdminKey
        ),
        "DELETE": ManagementOperation(
            "deleteAdminKey", "Revoke an admin key", roles.ADMINISTER_KEYS, objects.Deleted
        ),
    }

    def get(self, request: Request, key_id: str) -> Response:
        row = find(caller_of(request), _admin_keys(), key_id, "key")
        return respond(_shown_admin([row])[0])

    @transaction.atomic
    def delete(self, request: Request, key_id: str) -> Response:
        """Revoke the key, unless its role is above that of the calling one."""
        row = find(caller_of(request), _admin_keys(), key_id, "key")
        access.require_role(caller_of(request), row.manages_as)
        keys.revoke(APIKey.objects.filter(pk=row.pk))
        return respond(objects.Deleted(object="organization.admin_api_key.deleted", id=str(row.pk)))


routes: list[type[ManagementRoute]] = [
    ProjectKeys, ProjectKey, ServiceAccounts, OneServiceAccount, ServiceAccountKeys, AdminKeys, AdminKey,
]  # fmt: skip


def _project_keys(project: Project) -> QuerySet[APIKey]:
    rows = APIKey.objects.filter(project=project, is_admin=False, revoked_at=None)
    return rows.select_related("project", "service_account")


def _admin_keys() -> QuerySet[APIKey]:
    return APIKey.objects.filter(is_admin=True, revoked_at=None)


def _unexpired(rows: QuerySet[APIKey]) -> QuerySet[APIKey]:
    return rows.exclude(expires_at__lte=timezone.now())


def _find_account(
    route: ManagementRoute, request: Request, project_id: str, service_account_id: str
) -> ServiceAccount:
    rows = ServiceAccount.objects.filter(project=route.project(request, project_id)).select_related("project")
    return find(caller_of(request), rows, service_account_id, "service account")


def _issue(request: Request, row: APIKey, expires_in_seconds: int | None) -> objects.NewKey:
    """Save the key, which may use no other models than the calling one, and return it with its secret."""
    row.allowed_models = sorted(caller_of(request).allowed_models)
    row.expires_at = expiry(expires_in_seconds)
    secret = keys.issue(row)
    return objects.NewKey(
        id=str(row.pk),
        name=row.name,
        created_at=int(row.created_at.timestamp()),
        expires_at=_seconds(row.expires_at),
        allowed_ips=row.allowed_ips,
        value=secret,
    )


def _account_members(row: ServiceAccount) -> dict[str, Any]:
    return {"id": str(row.pk), "name": row.name, "created_at": int(row.created_at.timestamp())}


def _account(row: ServiceAccount) -> objects.ServiceAccount:
    return objects.ServiceAccount(**_account_members(row))


def _shown(rows: Sequence[APIKey]) -> list[objects.ProjectKey]:
    """Return the keys as clients see them; two queries for all of them."""
    newest = newest_requests(rows)
    usable = set(access.usable_keys().filter(pk__in=newest).values_list("pk", flat=True))
    return [
        objects.ProjectKey(
            **_key_members(row, newest[row.pk]),
            owner=_owner(row.service_account),
            owner_project_access="active" if row.pk in usable else "inactive",
        )
        for row in rows
    ]


def _shown_admin(rows: Sequence[APIKey]) -> list[objects.AdminKey]:
    newest = newest_requests(rows)
    return [_admin_key(row, newest[row.pk]) for row in rows]


def _admin_key(
    row: APIKey, last_used_at: datetime | None, value: str | UnsetType = UNSET
) -> objects.AdminKey:
    owner = objects.AdminKeyOwner(role=row.manages_as or None)
    return objects.AdminKey(**_key_members(row, last_used_at), owner=owner, value=value)


def _key_members(row: APIKey, last_used_at: datetime | None) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "name": row.name,
        "redacted_value": row.redacted,
        "created_at": int(row.created_at.timestamp()),
        "expires_at": _seconds(row.expires_at),
        "last_used_at": _seconds(last_used_at),
        "allowed_ips": row.allowed_ips,
    }


def _owner(account: ServiceAccount | None) -> objects.KeyOwner:
    if account is None:
        return objects.KeyOwner()
    return objects.KeyOwner(
        type="service_account", service_account=objects.ServiceAccountOwner(**_account_members(account))
    )


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
