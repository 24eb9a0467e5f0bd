"""Workload identity providers and their federation rules: programs that have no stored keys."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, roles
from accounts.errors import PermissionDenied
from accounts.models import APIKey, FederationRule, ServiceAccount, WorkloadIdentityProvider
from accounts.workload_identity import federation, jwks
from chatapi.api.management import objects
from chatapi.api.management import workload_identity_objects as shapes
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, page_of_rows
from chatapi.api.management.route import ManagementRoute, find, refuse
from chatapi.api.views import caller_of, respond

_READ, _CHANGE = "accounts.view_apikey", roles.ADMINISTER_KEYS
_ENDS_TOKENS = "Access tokens that were issued before end within a second if {}."


class Providers(ManagementRoute):
    path = "workload_identity_providers"
    operations = {
        "GET": ManagementOperation(
            "listWorkloadIdentityProviders", "List the workload identity providers", _READ,
            Page[shapes.Provider],
            query=shapes.ListQuery,
        ),
        "POST": ManagementOperation(
            "createWorkloadIdentityProvider", "Create a workload identity provider", _CHANGE, shapes.Provider,
            body=shapes.ProviderBody,
            description="Its tokens can't be exchanged until it has a federation rule.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        query = self.query(request)
        rows = access.managed_by(caller_of(request), WorkloadIdentityProvider.objects.all())
        return respond(page_of_rows(rows, query, _providers, newest_first=query.order == "desc"))

    def post(self, request: Request) -> Response:
        sent = self.body(request)
        row = federation.create(caller_of(request).organization_id, **_provider_columns(sent))
        return respond(_provider(row))


class OneProvider(ManagementRoute):
    path = "workload_identity_providers/<str:workload_identity_provider_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveWorkloadIdentityProvider", "Show a workload identity provider", _READ, shapes.Provider
        ),
        "POST": ManagementOperation(
            "modifyWorkloadIdentityProvider", "Change a workload identity provider", _CHANGE, shapes.Provider,
            body=shapes.ProviderChange,
            description=_ENDS_TOKENS.format(
                "`issuer`, `audience` or `verification` changes, or the provider is disabled or enabled"
            ),
        ),
        "DELETE": ManagementOperation(
            "deleteWorkloadIdentityProvider", "Delete a workload identity provider", _CHANGE, objects.Deleted,
            description="Refused until its federation rules are deleted.",
        ),
    }  # fmt: skip

    def get(self, request: Request, workload_identity_provider_id: str) -> Response:
        return respond(_provider(_find_provider(request, workload_identity_provider_id)))

    @transaction.atomic
    def post(self, request: Request, workload_identity_provider_id: str) -> Response:
        row, sent = _find_provider(request, workload_identity_provider_id), self.body(request)
        _require_models(request, _rules(row))
        federation.change(row, **_provider_columns(sent))
        return respond(_provider(row))

    @transaction.atomic
    def delete(self, request: Request, workload_identity_provider_id: str) -> Response:
        federation.remove(_find_provider(request, workload_identity_provider_id))
        deleted = "organization.workload_identity_provider.deleted"
        return respond(objects.Deleted(object=deleted, id=workload_identity_provider_id))


class FederationRules(ManagementRoute):
    path = f"{OneProvider.path}/federation_rules"
    operations = {
        "GET": ManagementOperation(
            "listFederationRules", "List the federation rules of a provider", _READ,
            Page[shapes.FederationRule],
            query=shapes.RuleListQuery,
        ),
        "POST": ManagementOperation(
            "createFederationRule", "Give a service account to programs of a provider", _CHANGE,
            shapes.FederationRule,
            body=shapes.RuleBody,
            description="Of several rules for a service account, the oldest that matches counts. The access "
            "tokens may use no other models than the calling key.",
        ),
    }  # fmt: skip

    def get(self, request: Request, workload_identity_provider_id: str) -> Response:
        query = self.query(request)
        rows = _rules(_find_provider(request, workload_identity_provider_id))
        if query.service_account_id is not None:
            rows = rows.filter(service_account=query.service_account_id)
        return respond(page_of_rows(rows, query, _shown_rules, newest_first=query.order == "desc"))

    @transaction.atomic
    def post(self, request: Request, workload_identity_provider_id: str) -> Response:
        provider, sent = _find_provider(request, workload_identity_provider_id), self.body(request)
        caller = caller_of(request)
        accounts = ServiceAccount.objects.filter(project=self.project(request, sent.project_id))
        account = find(caller, accounts, sent.service_account_id, "service account")
        key = APIKey(allowed_models=sorted(caller.allowed_models), **_key_columns(sent))
        rule = federation.create_rule(provider, account, key=key, **_rule_columns(sent))
        return respond(_rule(rule))


class OneFederationRule(ManagementRoute):
    path = f"{FederationRules.path}/<str:workload_identity_federation_rule_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveFederationRule", "Show a federation rule", _READ, shapes.FederationRule
        ),
        "POST": ManagementOperation(
            "modifyFederationRule", "Change a federation rule", _CHANGE, shapes.FederationRule,
            body=shapes.RuleChange,
            description=_ENDS_TOKENS.format("`attribute_matchers` changes, or the rule is disabled"),
        ),
        "DELETE": ManagementOperation(
            "deleteFederationRule", "Delete a federation rule", _CHANGE, objects.Deleted,
            description="Access tokens that were issued by it end within a second.",
        ),
    }  # fmt: skip

    def get(
        self,
        request: Request,
        workload_identity_provider_id: str,
        workload_identity_federation_rule_id: str,
    ) -> Response:
        row = _find_rule(request, workload_identity_provider_id, workload_identity_federation_rule_id)
        return respond(_rule(row))

    @transaction.atomic
    def post(
        self,
        request: Request,
        workload_identity_provider_id: str,
        workload_identity_federation_rule_id: str,
    ) -> Response:
        row = _find_rule(request, workload_identity_provider_id, workload_identity_federation_rule_id)
        sent = self.body(request)
        _require_models(request, [row])
        federation.change_rule(row, of_key=_key_columns(sent), **_rule_columns(sent))
        return respond(_rule(row))

    @transaction.atomic
    def delete(
        self,
        request: Request,
        workload_identity_provider_id: str,
        workload_identity_federation_rule_id: str,
    ) -> Response:
        row = _find_rule(request, workload_identity_provider_id, workload_identity_federation_rule_id)
        deleted_id = str(row.pk)
        federation.remove_rule(row)
        deleted = "organization.workload_identity_federation_rule.deleted"
        return respond(objects.Deleted(object=deleted, id=deleted_id))


routes: list[type[ManagementRoute]] = [Providers, OneProvider, FederationRules, OneFederationRule]


def _find_provider(request: Request, provider_id: str) -> WorkloadIdentityProvider:
    rows = WorkloadIdentityProvider.objects.all()
    return find(caller_of(request), rows, provider_id, "workload identity provider")


def _rules(provider: WorkloadIdentityProvider) -> QuerySet[FederationRule]:
    return FederationRule.objects.filter(provider=provider).select_related("api_key", "service_account")


def _find_rule(request: Request, provider_id: str, rule_id: str) -> FederationRule:
    rows = _rules(_find_provider(request, provider_id))
    return find(caller_of(request), rows, rule_id, "workload identity federation rule")


def _require_models(request: Request, rules: Iterable[FederationRule]) -> None:
    """Raise `PermissionDenied` if access tokens by these rules may use more models than the calling key."""
    own = caller_of(request).allowed_models
    if own and not all(
        rule.api_key.allowed_models and own.issuperset(rule.api_key.allowed_models) for rule in rules
    ):
        raise PermissionDenied(
            "Access tokens by this rule, or by a rule of this provider, may use models that the calling key "
            "may not use. Send the request with a key that may use them."
        )


def _sent(sent: Any, **names: str) -> dict[str, Any]:
    """Return the sent members by the names of their columns, without those that were left out."""
    members = {column: getattr(sent, name) for name, column in names.items()}
    return {column: value for column, value in members.items() if value is not None}


def _provider_columns(sent: Any) -> dict[str, Any]:
    """Return the columns of the body. Raises `InvalidRequest` for a wrong set of keys."""
    columns = _sent(
        sent,
        name="name",
        description="description",
        issuer="issuer",
        audience="audience",
        enabled="is_enabled",
    )
    match sent.verification:
        case shapes.DiscoveryVerification(discovery_url=url):
            columns |= {"discovery_url": url or "", "jwks": None}
        case shapes.UploadedVerification(jwks=uploaded):
            try:
                columns |= {"discovery_url": "", "jwks": jwks.checked(uploaded)}
            except jwks.WrongKeys as error:
                refuse(str(error), "verification.jwks")
    return columns


def _rule_columns(sent: Any) -> dict[str, Any]:
    return _sent(sent, name="name", description="description", attribute_matchers="attribute_matchers")


def _key_columns(sent: Any) -> dict[str, Any]:
    columns = _sent(sent, enabled="is_active")
    match sent.permissions:
        case shapes.DefaultPermissions():
            columns["scopes"] = []
        case shapes.RestrictedPermissions(scopes=scopes):
            columns["scopes"] = list(dict.fromkeys(scopes))
    return columns


def _providers(rows: list[WorkloadIdentityProvider]) -> list[shapes.Provider]:
    return [_provider(row) for row in rows]


def _provider(row: WorkloadIdentityProvider) -> shapes.Provider:
    verification: shapes.DiscoveryVerification | shapes.UploadedVerification
    verification = shapes.DiscoveryVerification(discovery_url=row.discovery_url or None)
    if row.jwks is not None:
        verification = shapes.UploadedVerification(jwks=row.jwks)
    return shapes.Provider(
        id=str(row.pk),
        name=row.name,
        description=row.description or None,
        issuer=row.issuer,
        audience=row.audience,
        enabled=row.is_enabled,
        verification=verification,
        attribute_transformations=[],
        created_at=int(row.created_at.timestamp()),
        updated_at=int(row.updated_at.timestamp()),
    )


def _shown_rules(rows: list[FederationRule]) -> list[shapes.FederationRule]:
    return [_rule(row) for row in rows]


def _rule(row: FederationRule) -> shapes.FederationRule:
    scopes = row.api_key.scopes
    return shapes.FederationRule(
        id=str(row.pk),
        workload_identity_provider_id=str(row.provider_id),
        name=row.name or None,
        description=row.description or None,
        attribute_matchers=row.attribute_matchers,
        project_id=str(row.api_key.project_id),
        service_account_id=str(row.service_account_id),
        permissions=shapes.RestrictedPermissions(scopes=scopes) if scopes else shapes.DefaultPermissions(),
        enabled=row.is_enabled,
        api_key_id=str(row.api_key_id),
        created_at=int(row.created_at.timestamp()),
        updated_at=int(row.updated_at.timestamp()),
    )
