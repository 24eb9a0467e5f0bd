"""Who gets what on every page of the admin, and on the organization's usage and management routes: a page
that this file does not know fails it.

Each page has the least role that may read it, and the least that may send its form. Acme's pages are asked
for by everyone: operators, Acme's own people by role, Umbrella's owner, a person without organization, a
visitor and an API key.
"""

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from allauth.mfa.models import Authenticator
from django.contrib import admin
from django.contrib.auth.models import Group as PermissionGroup
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model
from django.template.response import SimpleTemplateResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from accounts import access, certificates, groups, roles
from accounts.models import (
    APIKey,
    Certificate,
    CertificateProject,
    Group,
    GroupMember,
    GroupProject,
    Member,
    Organization,
    Project,
    RateLimit,
    Role,
    ServiceAccount,
)
from accounts.pages.tenant_admin import TenantAdmin
from accounts.sign_in.models import EmailDomain, IdentityProvider
from chatapi import response_store
from chatapi.api.management import ROUTES as MANAGEMENT
from chatapi.api.management import member_roles
from chatapi.api.management.route import ManagementRoute
from chatapi.models import Deployment, ServedModel, StoredResponse
from chatapi.notifications import queue, webhooks
from chatapi.notifications.models import Delivery, WebhookEndpoint
from chatapi.notifications.queue import Attempt
from chatapi.response_store import Content
from tests.admin_pages import body, client_of
from tests.cast import Person, admit, join, run
from tests.chatapi.token_issuer import make_rule
from tests.client_certificates import make
from usage.database.clock import database_now
from usage.models import (
    Budget,
    BudgetLimit,
    Credit,
    Discount,
    Event,
    EventKind,
    HourlyUsage,
    LedgerEntry,
    Price,
    RefusedRequests,
    SpendAlert,
)
from usage.payment.models import Payment
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal

LEAST_FIRST = ["viewer", "member", "admin", "owner"]
OPERATOR, NOBODY, ANYONE = "operator", "nobody", "anyone"
INSIDE = ["operator", "clerk", *LEAST_FIRST, "stranger"]
"""A clerk is staff without permissions, a stranger owns another organization."""
OUTSIDE = ["nobody's member", "visitor", "API key"]

MODELS = {
    # Of each: the list, the form of a new one, one's page, its form, and its deletion.
    "accounts_organization": ("viewer", OPERATOR, "viewer", "owner", NOBODY),
    "accounts_project": ("viewer", "admin", "viewer", "admin", NOBODY),
    "accounts_member": ("viewer", "admin", "viewer", "admin", "admin"),
    "accounts_apikey": ("viewer", "member", "viewer", "member", NOBODY),
    "accounts_ratelimit": ("viewer", "admin", "viewer", "admin", "admin"),
    "usage_generation": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "usage_ledgerentry": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "usage_hourlyusage": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "usage_refusedrequests": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "usage_budget": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "usage_budgetlimit": ("viewer", "admin", "viewer", "admin", "admin"),
    "usage_credit": ("viewer", NOBODY, "viewer", OPERATOR, NOBODY),
    "payment_payment": ("admin", NOBODY, "admin", NOBODY, NOBODY),
    "usage_event": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "usage_discount": ("viewer", OPERATOR, "viewer", NOBODY, NOBODY),
    "usage_price": (OPERATOR, OPERATOR, OPERATOR, NOBODY, NOBODY),
    "chatapi_servedmodel": (OPERATOR, OPERATOR, OPERATOR, OPERATOR, OPERATOR),
    "chatapi_deployment": (OPERATOR, OPERATOR, OPERATOR, OPERATOR, OPERATOR),
    "chatapi_storedresponse": ("viewer", NOBODY, "viewer", NOBODY, NOBODY),
    "chatapi_webhookendpoint": (OPERATOR, OPERATOR, OPERATOR, OPERATOR, OPERATOR),
    "sign_in_emaildomain": (OPERATOR, OPERATOR, OPERATOR, OPERATOR, OPERATOR),
    "sign_in_identityprovider": (OPERATOR, NOBODY, OPERATOR, OPERATOR, OPERATOR),
    "mfa_authenticator": (OPERATOR, NOBODY, OPERATOR, NOBODY, OPERATOR),
    "auth_user": (OPERATOR, OPERATOR, OPERATOR, OPERATOR, NOBODY),
    "auth_group": (OPERATOR, OPERATOR, OPERATOR, OPERATOR, OPERATOR),
}
PAGES = {
    # To be read, to be sent.
    "index": (ANYONE, None),
    "stored_response_content": ("owner", None),
    "live": ("viewer", None),
    "live_feed": (ANYONE, ANYONE),  # only says that it is a WebSocket
    "live_stop": (None, "admin"),
    "live_stop_key": (None, "admin"),
    "live_stop_end_user": (None, "admin"),
    "requests": ("viewer", None),
    "request": ("viewer", None),
    "requests_export": ("viewer", None),
    "overview_export": ("viewer", None),
    "usage_budget_export": ("viewer", "viewer"),
    "usage_ledgerentry_export": ("viewer", "viewer"),
    "organization": ("viewer", None),
    "budgets": ("viewer", None),
    "budget": ("viewer", None),
    "statements": ("viewer", None),
    "statement": ("viewer", None),
    "statement_file": ("viewer", None),
    "audit": ("owner", None),
    "history": (ANYONE, None),  # leads to the audit log, and reads nothing
    "accounts_member_invitation": ("admin", "admin"),
    "accounts_organization_invite": ("admin", "admin"),
    "accounts_apikey_rotate": ("member", "member"),
    "accounts_apikey_end_previous": ("member", "member"),
    "accounts_apikey_disable": ("member", "member"),
    "accounts_apikey_enable": ("member", "member"),
    "accounts_apikey_revoke_one": ("member", "member"),
    "autocomplete": ("viewer", None),
    # the installation's
    "ledger_correct": (OPERATOR, OPERATOR),
    "credit_grant": (OPERATOR, OPERATOR),
    "credit_refund": (OPERATOR, OPERATOR),
    "usage_credit_grant_any": (OPERATOR, OPERATOR),
    "usage_credit_grant": (OPERATOR, OPERATOR),
    "accounts_organization_grant_credit": (OPERATOR, OPERATOR),
    "usage_credit_refund": (OPERATOR, OPERATOR),
    "usage_ledgerentry_correct": (OPERATOR, OPERATOR),
    "payment_payment_ask": (None, OPERATOR),
    "prices": (OPERATOR, None),
    "mail": (OPERATOR, OPERATOR),
    "webhook_rotate": (None, OPERATOR),
    "webhook_test": (None, OPERATOR),
    "webhook_replay": (None, OPERATOR),
    "price_withdraw": (None, OPERATOR),
    "catalog_import": (OPERATOR, OPERATOR),
    "catalog_export": (OPERATOR, None),
    "deployment_test": (OPERATOR, OPERATOR),
    "upstream_models": (None, OPERATOR),
    "chatapi_servedmodel_import_file": (OPERATOR, OPERATOR),
    "chatapi_servedmodel_export_file": (OPERATOR, OPERATOR),
    "chatapi_servedmodel_show_prices": (OPERATOR, OPERATOR),
    "chatapi_deployment_test_one": (OPERATOR, OPERATOR),
    "usage_price_show_timeline": (OPERATOR, OPERATOR),
    "auth_user_password_change": (OPERATOR, OPERATOR),
    "auth_user_new_password": (OPERATOR, OPERATOR),
    # the site's own
    "search": (ANYONE, ANYONE),
    "password_change": (ANYONE, ANYONE),
    "password_change_done": (ANYONE, None),
    "jsi18n": (ANYONE, None),
    "view_on_site": (NOBODY, NOBODY),
}
OPEN = {"login", "logout", "invitation"}
"""Those that are for anyone at all; their tests are in tests/accounts."""


def _by_model() -> Iterator[tuple[str, tuple[str | None, str | None]]]:
    for model, (seen, added, read, changed, deleted) in MODELS.items():
        yield f"{model}_changelist", (seen, seen)
        yield f"{model}_add", (added, added)
        yield f"{model}_change", (read, changed)
        yield f"{model}_delete", (deleted, deleted)


TABLE: dict[str, tuple[str | None, str | None]] = PAGES | dict(_by_model())


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and path of each page, except Django's redirects from old URLs and its route for unknown
    ones.
    """
    for each in resolver.url_patterns:
        path = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from routes(each, path)
        elif (
            isinstance(each, URLPattern)
            and each.name
            and path.startswith("admin/")
            and not re.search("_history$|app_list", each.name)
        ):
            yield each.name, path


ROUTES = dict(routes(get_resolver()))


def is_about_a_row(name: str) -> bool:
    """Return whether the URL names a row."""
    return "<" in ROUTES[name].replace("<str:file_format>", "")


def delivery_of_the_service() -> Delivery:
    """Return a delivery to a new endpoint of the service."""
    endpoint = WebhookEndpoint(url="https://hooks.example.com/" + "a-long-path/" * 20)
    webhooks.add(endpoint)
    now = database_now()
    queue.send_test(now, endpoint)
    [delivery] = queue.take(now, 1)
    queue.record(now, delivery, Attempt(120, 503, "<html>" + "busy" * 100, "status 503"))
    return delivery


class House:
    """One row of every kind: Acme's, and what all share."""

    def __init__(self, acme: Organization, alice: Person, bob: Person, model: ServedModel) -> None:
        generation = run(alice)
        RateLimit.objects.create(project=alice.project, requests_per_minute=60)
        BudgetLimit.objects.create(
            scope="project", scope_id=alice.project.pk, period="day", limit_nanodollars=10**12
        )
        Credit.objects.create(organization=acme)
        Discount.objects.create(organization=acme, effective_from=generation.admitted_at, basis_points=100)
        Event.objects.create(
            organization=acme,
            kind=EventKind.MODEL,
            subject="small",
            period="2026-11-26",
            data={"model": "small"},
            created_at=generation.admitted_at,
        )
        Payment.objects.create(organization=acme, amount_cents=1_000, requested_by="alice")
        refused_requests.add(
            generation.admitted_at, [{Refusal(alice.api_key.pk, 429, "rate_limit_exceeded"): 1}]
        )
        APIKey.objects.filter(pk=alice.api_key.pk).update(
            previous_public="x" * 12, previous_expires_at="2099-01-01T00:00:00Z"
        )
        self.of: dict[str, Model] = {
            "accounts_organization": acme,
            "accounts_project": alice.project,
            "accounts_member": Member.objects.get(user=bob.user),
            "accounts_apikey": alice.api_key,
            "usage_generation": generation,
            "chatapi_servedmodel": model,
            "auth_user": bob.user,
            "auth_group": PermissionGroup.objects.create(name="clerks"),
            "sign_in_emaildomain": EmailDomain.objects.create(organization=acme, domain="acme.example"),
            "sign_in_identityprovider": IdentityProvider.objects.create(organization=acme),
            "mfa_authenticator": Authenticator.objects.create(user=bob.user, type="totp", data={}),
        }
        StoredResponse.objects.create(
            id=generation.pk,
            organization=acme,
            project=alice.project,
            is_test=False,
            model=generation.model,
            ended_at=generation.admitted_at,
            size_bytes=1,
            content=response_store.encrypt(generation.pk, Content(b'{"items":[],"context":{}}', [])),
        )
        for shown in (
            StoredResponse,
            RateLimit,
            BudgetLimit,
            Credit,
            Discount,
            Price,
            LedgerEntry,
            HourlyUsage,
            RefusedRequests,
            Budget,
            Deployment,
            Event,
            Payment,
        ):
            row = shown._default_manager.first()
            assert row is not None
            self.of[f"{shown._meta.app_label}_{shown._meta.model_name}"] = row
        self.open = admit(alice)
        self.delivery = delivery_of_the_service()
        assert self.delivery.endpoint is not None
        self.of["chatapi_webhookendpoint"] = self.delivery.endpoint

    def path(self, name: str, unknown: bool = False) -> str:
        """Return the path of the page about Acme's row, or about one that does not exist."""
        model = next((each for each in self.of if name.startswith(f"{each}_")), "usage_generation")
        row_id = str(self.of[model].pk)
        never = (
            "0" * 32
            if model in {"usage_generation", "usage_event", "chatapi_storedresponse", "payment_payment"}
            else "999999999"
        )
        names = {
            "generation_id": str(self.open),
            "response_id": str(self.of["chatapi_storedresponse"].pk),
            "object_id": row_id,
            "id": row_id,
            "entry_id": str(self.of["usage_ledgerentry"].pk),
            "price_id": str(self.of["usage_price"].pk),
            "limit_id": str(self.of["usage_budgetlimit"].pk),
            "deployment_id": str(self.of["chatapi_deployment"].pk),
            "endpoint_id": str(self.delivery.endpoint_id),
            "delivery_id": str(self.delivery.pk),
            "content_type_id": "1",
            "organization_id": str(self.of["accounts_organization"].pk),
        }
        if unknown:
            names = {
                "generation_id": "chatcmpl-" + "0" * 12 + "7" + "0" * 3 + "8" + "0" * 15
            } | dict.fromkeys(list(names)[1:], never)
            names["response_id"] = str(UUID(int=7))
        names |= {
            "period": f"{self.open.admitted_at:%Y-%m}",
            "file_format": "csv",
            "app_label": "accounts",
            "model_name": "project",
        }
        path = re.sub(r"<(?:\w+:)?(\w+)>", lambda part: names[part[1]], ROUTES[name])
        query = "?app_label=accounts&model_name=apikey&field_name=project" if name == "autocomplete" else ""
        return f"/{path}{query}"


@pytest.fixture
def house(acme: Organization, alice: Person, bob: Person, small: ServedModel) -> House:
    """Make rows of Acme of every kind."""
    return House(acme, alice, bob, small)


def person(who: str, acme: Organization, charlie: Person) -> User:
    """Return a person that can sign in."""
    match who:
        case "operator":
            return User.objects.create_superuser("root")
        case "clerk":
            return User.objects.create_user("clerk", is_staff=True)
        case "stranger":
            return charlie.user
        case "nobody's member":
            return User.objects.create_user("nobody")
        case role:
            return join(f"some {role}", Role(role), acme, "default").user


def outcome(response: Any) -> str:
    """Return the outcome of a request: let in, or the way it was refused."""
    if response.status_code == 302 and response.headers["location"].startswith("/admin/login/"):
        return "sign in"
    return {403: "forbidden", 404: "not found", 405: "no such method"}.get(response.status_code, "let in")


def expected(who: str, least: str | None, *, about_a_row: bool) -> set[str]:
    """Return the outcomes that are allowed."""
    if who in OUTSIDE:
        return {"sign in"}
    if least is None:
        return {"no such method", "forbidden"}
    if least == ANYONE:
        return {"let in"}
    if who == "stranger" and about_a_row:
        return {"forbidden", "not found"}
    role = "owner" if who == "stranger" else who
    may = role == "operator" or (role in LEAST_FIRST and least in LEAST_FIRST[: LEAST_FIRST.index(role) + 1])
    return (
        {"let in"}
        if may and least != NOBODY
        else {"forbidden", "not found"}
        if least == NOBODY
        else {"forbidden"}
    )


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave templates unrendered: access is decided before, and rendering takes most of the time."""
    monkeypatch.setattr(SimpleTemplateResponse, "rendered_content", property(lambda response: ""))


def test_every_page_is_known() -> None:
    assert ROUTES.keys() - OPEN == TABLE.keys()


def test_pages_of_tenants_rows_are_bounded_by_roles() -> None:
    pages = admin.site._registry.values()
    shown: list[tuple[type[Any], Any]] = [(type(page), page.model) for page in pages]
    shown += [(inline, inline.model) for page in pages for inline in page.inlines]
    assert [
        page for page, model in shown if access.is_tenants(model) and not issubclass(page, TenantAdmin)
    ] == []


@pytest.mark.parametrize("who", INSIDE + OUTSIDE)
@pytest.mark.usefixtures("unrendered")
def test_everyone_gets_exactly_what_they_may(
    house: House, acme: Organization, charlie: Person, alice: Person, who: str
) -> None:
    wrong = []
    client = Client()
    if who not in {"visitor", "API key"}:
        client.force_login(person(who, acme, charlie))
    headers = {"authorization": f"Bearer {alice.key}"} if who == "API key" else {}
    for name, leasts in TABLE.items():
        path = house.path(name)
        for method, least in zip(("get", "post"), leasts, strict=True):
            found = outcome(getattr(client, method)(path, headers=headers))
            if found not in (wanted := expected(who, least, about_a_row=is_about_a_row(name))):
                wrong.append(f"{method} {path}: {found} instead of {' or '.join(sorted(wanted))}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_stranger_sees_nothing_and_learns_nothing(house: House, alice: Person, charlie: Person) -> None:
    """Acme's rows look like rows that do not exist, and no page names Acme, its people or its keys."""
    client = client_of(charlie.user)
    for name in TABLE:
        shown = _without_ids(house, name, client.get(house.path(name)))
        assert not re.search(rf"Acme|alice|bob|{alice.api_key.public[:4]}", shown), name
        if is_about_a_row(name):
            assert shown == _without_ids(house, name, client.get(house.path(name, unknown=True))), name


@pytest.mark.parametrize("page", ["budgets", "statements", "requests", "index"])
def test_a_filter_names_no_organization_of_others(alice: Person, charlie: Person, page: str) -> None:
    client, path = client_of(alice.user), f"/{ROUTES[page]}"
    others_id = str(charlie.project.organization_id)
    others, unknown = (client.get(path, {"organization": each}) for each in (others_id, "999999999"))
    assert others.status_code == unknown.status_code
    assert "Umbrella" in str(charlie.project.organization)
    assert "Umbrella" not in others.content.decode()


def _without_ids(house: House, name: str, response: Any) -> str:
    """Return status, redirect and body, without the ids of the request."""
    shown = f"{response.status_code} {response.headers.get('location', '')} {body(response)}"
    for unknown in (False, True):
        for part in house.path(name, unknown).split("/"):
            shown = shown.replace(part, "?") if re.search(r"\d", part) else shown
    return re.sub(r'csrfmiddlewaretoken" value="\w+"|"CSRFToken": "\w+"', "", shown)


# ---- the organization's usage, which is for admin keys


@pytest.mark.parametrize("path", ["/v1/organization/usage/completions", "/v1/organization/costs"])
def test_the_organizations_usage_is_for_its_admin_keys(
    house: House, alice: Person, charlie: Person, path: str
) -> None:
    asked = f"{path}?start_time=1700000000&group_by=project_id&limit=1"
    viewer = client_of(alice.user)
    assert (Client().get(asked).status_code, viewer.get(asked).status_code, alice.get(asked).status_code) == (
        401,
        401,
        403,
    )
    APIKey.objects.filter(pk__in=[alice.api_key.pk, charlie.api_key.pk]).update(is_admin=True)
    assert (alice.get(asked).status_code, charlie.get(asked).status_code) == (200, 200)
    others = [
        charlie.get(f"{asked}&project_ids={project}").content for project in (alice.project.pk, 999_999_999)
    ]
    assert others[0] == others[1]


# ---- the management API, which is for keys with a role

OPERATIONS = [(route, method) for route in MANAGEMENT for method in route.operations]
ALWAYS_REFUSED = {("spend_limit", "POST"), ("spend_limit", "DELETE")}
"""The organization's limits are the operator's."""


class Managed:
    """One row of Acme's of each kind that a management route names."""

    def __init__(self, alice: Person, bob: Person) -> None:
        alert = SpendAlert.objects.create(
            organization=bob.project.organization,
            project=bob.project,
            threshold_nanodollars=1,
            recipients=[alice.user.pk],
        )
        account = ServiceAccount.objects.create(project=bob.project, name="backend")
        invited = User.objects.create(username="dora@example.com", password="!")
        invite = Member.objects.create(organization=bob.project.organization, user=invited, role=Role.VIEWER)
        group = groups.create(bob.project.organization_id, "backend-group", projects=[bob.project])
        rule = make_rule(account)
        certificate = certificates.create(bob.project.organization_id, make("backend").pem)
        self.ids = {
            "certificate_id": f"cert_{certificate.pk}",
            "project_id": str(bob.project.pk),
            "api_key_id": str(bob.api_key.pk),
            "service_account_id": str(account.pk),
            "user_id": str(bob.user.pk),
            "invite_id": str(invite.pk),
            "key_id": str(alice.api_key.pk),
            "group_id": f"group_{group.pk}",
            "rate_limit_id": "rl-*",
            "role_id": "role_member",
            "spend_alert_id": str(alert.pk),
            "workload_identity_provider_id": str(rule.provider.pk),
            "workload_identity_federation_rule_id": str(rule.pk),
        }

    def path(self, route: type[ManagementRoute], *, unknown: bool = False) -> str:
        """The path of the route about Acme's rows, or about some that there never were."""
        ids = self.ids if not unknown else dict.fromkeys(self.ids, "999999999")
        return f"/v1/{route.below}{re.sub('<[a-z]+:([a-z_]+)>', lambda part: ids[part[1]], route.path)}"


def operation_name(operation: tuple[type[ManagementRoute], str]) -> str:
    return f"{operation[1]} {operation[0].below}{operation[0].path}"


@pytest.fixture
def managed(alice: Person, bob: Person) -> Managed:
    """Acme's rows."""
    return Managed(alice, bob)


@pytest.mark.parametrize("operation", OPERATIONS, ids=operation_name)
def test_a_management_route_is_for_roles_that_permit_it(
    managed: Managed, alice: Person, operation: tuple[type[ManagementRoute], str]
) -> None:
    route, method = operation
    path = managed.path(route)
    needed = route.operations[method].permission
    assert Client().generic(method, path).status_code == 401
    assert client_of(alice.user).generic(method, path).status_code == 401
    assert alice.send(method, path).status_code == 403
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True)
    assert alice.send(method, path).status_code == 403
    for role in LEAST_FIRST:
        with transaction.atomic():
            response = alice.manage_as(role).send(method, path, b"no JSON")
            transaction.set_rollback(True)
        may = needed in roles.PERMISSIONS[role] and (route.path, method) not in ALWAYS_REFUSED
        assert (response.status_code != 403) == may, (role, response.content)
    APIKey.objects.filter(pk=alice.api_key.pk).update(manages_as="owner", scopes=["usage"])
    assert alice.send(method, path).status_code == 403
    APIKey.objects.filter(pk=alice.api_key.pk).update(scopes=["management"], is_test=True)
    assert alice.send(method, path).status_code == 403


@pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if "<" in each[0].path and each[0] is not member_roles.OneRole],
    ids=operation_name,
)
def test_others_rows_are_unknown_to_a_management_route(
    managed: Managed, alice: Person, charlie: Person, operation: tuple[type[ManagementRoute], str]
) -> None:
    alice.manage_as("owner")
    charlie.manage_as("owner")
    route, method = operation
    before = everything()
    own, unknown = (charlie.send(method, managed.path(route, unknown=each), b"{}") for each in (False, True))
    assert (own.status_code, own.content) == (404, unknown.content), own.content
    inside = managed.path(route).replace(f"/{managed.ids['project_id']}", f"/{charlie.project.pk}")
    if "project_id" in route.path and route.path.count("<") > 1 and "rate_limit" not in route.path:
        assert charlie.send(method, inside, b"{}").status_code == 404
    assert everything() == before


def everything() -> list[Any]:
    """All rows that the management API can change."""
    models: list[type[Model]] = [
        Organization,
        Project,
        APIKey,
        ServiceAccount,
        Member,
        Group,
        GroupMember,
        GroupProject,
        RateLimit,
        BudgetLimit,
        SpendAlert,
        Certificate,
        CertificateProject,
    ]
    return [list(model._default_manager.order_by("pk").values()) for model in models]


@pytest.mark.parametrize("route", [each for each in MANAGEMENT if "GET" in each.operations], ids=str)
def test_lists_of_the_management_api_show_nothing_of_others(
    managed: Managed, alice: Person, charlie: Person, route: type[ManagementRoute]
) -> None:
    alice.manage_as("owner")
    shown = charlie.manage_as("owner").send("GET", managed.path(route)).content.decode()
    assert not re.search(rf"Acme|alice|bob|dora|backend|{alice.api_key.public[:4]}", shown)
