"""What belongs to another tenant does not exist, on every route: a route that this file does not know fails
it.

For each route and method an admin key of Acme names an object of Umbrella's, and then one that there never
was: status, headers and body are the same, and Umbrella's rows are as before. What lists never shows any of
it.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from pytest_django.fixtures import Settings

from accounts import certificates, groups
from accounts.keys import create_key
from accounts.models import (
    APIKey,
    Certificate,
    FederationRule,
    Group,
    Member,
    Organization,
    RateLimit,
    Role,
    ServiceAccount,
)
from chatapi import identity
from chatapi.asgi import application
from chatapi.models import ServedModel
from chatapi.wire.dialects import DIALECTS
from tests.cast import Person, join, run
from tests.chatapi.token_issuer import make_rule
from tests.client_certificates import make
from usage.models import BudgetLimit, Generation, SpendAlert

CANARY = "Canary"
"""In every name of Umbrella's."""
PUBLIC = {"", "docs", "docs/sandbox.md", "openapi.json", "metrics", "oauth/token", "stripe/webhook"}
"""Routes about nobody; `metrics` adds up over all tenants, for callers with its own token, the webhook
shows nothing (tests/usage/test_payment.py), nor does the exchange of tokens (test_workload_identity.py)."""
PAGES = {"admin/", "console/"}
"""Pages for people, with tests of their own: test_access_matrix.py, test_console_access.py."""
SHARED = {
    "model": "small",
    "rate_limit_id": "rl-*",
    "role_id": "role_member",
    "period": f"{datetime.now(UTC):%Y-%m}",
}
"""Parts of a path that name what all tenants share, and the month of each one's statement."""
METHODS = ("get", "head", "post", "put", "patch", "delete")
REFUSED = {403, 404, 405}


class Umbrella(NamedTuple):
    """Another tenant's objects, one of each kind."""

    person: Person
    member: Member
    invite: Member
    service_account: ServiceAccount
    admin_key: APIKey
    generation: Generation
    rate_limit: RateLimit
    budget_limit: BudgetLimit
    spend_alert: SpendAlert
    group: Group
    federation_rule: FederationRule
    certificate: Certificate

    @property
    def rows(self) -> list[Model]:
        return [self.person.project.organization, self.person.project, self.person.api_key, *self[1:]]

    @property
    def traces(self) -> list[str]:
        """Return values that would reveal one of them."""
        return [CANARY, self.person.api_key.public, self.person.api_key.redacted, self.generation.pk.hex]


NEVER = "999999999"
NAMES: dict[str, Callable[[Umbrella], tuple[str, str]]] = {
    "generation_id": lambda umbrella: (str(umbrella.generation), f"chatcmpl-{identity.new_id().hex}"),
    "project_id": lambda umbrella: (str(umbrella.person.project.pk), NEVER),
    "api_key_id": lambda umbrella: (str(umbrella.person.api_key.pk), NEVER),
    "service_account_id": lambda umbrella: (str(umbrella.service_account.pk), NEVER),
    "user_id": lambda umbrella: (str(umbrella.member.user_id), NEVER),
    "invite_id": lambda umbrella: (str(umbrella.invite.pk), NEVER),
    "key_id": lambda umbrella: (str(umbrella.admin_key.pk), NEVER),
    "group_id": lambda umbrella: (f"group_{umbrella.group.pk}", f"group_{NEVER}"),
    "certificate_id": lambda umbrella: (f"cert_{umbrella.certificate.pk}", f"cert_{NEVER}"),
    "spend_alert_id": lambda umbrella: (str(umbrella.spend_alert.pk), NEVER),
    "workload_identity_provider_id": lambda umbrella: (str(umbrella.federation_rule.provider_id), NEVER),
    "workload_identity_federation_rule_id": lambda umbrella: (str(umbrella.federation_rule.pk), NEVER),
}
"""For each name of a part of a path: Umbrella's, and one that there never was."""


@pytest.fixture
def umbrella(db: None, small: ServedModel) -> Umbrella:
    """Have Umbrella use the service and set limits."""
    organization = Organization.objects.create(name=f"{CANARY} Umbrella")
    person = join(f"{CANARY}.charlie", Role.OWNER, organization, f"{CANARY} project")
    APIKey.objects.filter(pk=person.api_key.pk).update(name=f"{CANARY} key")
    member = Member.objects.get(user=person.user)
    invited = User.objects.create(username=f"{CANARY}.dora", password="!")
    invite = Member.objects.create(organization=organization, user=invited, role=Role.VIEWER)
    account = ServiceAccount.objects.create(project=person.project, name=f"{CANARY} account")
    admin_key, _ = create_key(person.project, name=f"{CANARY} admin", is_admin=True)
    limit = RateLimit.objects.create(project=person.project, requests_per_day=98_765)
    budget = BudgetLimit.objects.create(
        scope="project", scope_id=person.project.pk, period="day", limit_nanodollars=10**12
    )
    alert = SpendAlert.objects.create(
        organization=organization, threshold_nanodollars=1, recipients=[], subject_prefix=CANARY
    )
    group = groups.create(organization.pk, f"{CANARY} group", [member], [person.project])
    rule = make_rule(account, CANARY)
    certificate = certificates.create(organization.pk, make(CANARY).pem, f"{CANARY} authority")
    rows = (run(person), limit, budget, alert, group, rule, certificate)
    return Umbrella(person, member, invite, account, admin_key, *rows)


@pytest.fixture
def boss(alice: Person) -> Person:
    """Return alice's client, with a key that has all rights."""
    return alice.manage_as("owner")


def patterns(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    """Yield every route below, with its whole path."""
    for each in resolver.url_patterns:
        path = prefix + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from patterns(each, path)
        else:
            yield path, each


ROUTES = [(path, pattern) for path, pattern in patterns(get_resolver()) if path.startswith("v1/")]
NAMED = [path for path, pattern in ROUTES if pattern.pattern.converters.keys() - SHARED.keys()]
LISTING = [path for path, pattern in ROUTES if path not in NAMED]


def put_in(path: str, names: dict[str, str]) -> str:
    """Return the path with these values for its parameters, such as `<str:generation_id>`."""
    for part, name in (SHARED | names).items():
        path = re.sub(rf"<\w+:{part}>", name, path)
    return f"/{path}"


def ask(person: Person, method: str, path: str) -> Any:
    headers = {"authorization": f"Bearer {person.key}", "x-request-id": "same"}
    return getattr(Client(), method)(
        path, **({} if method in {"get", "head"} else {"content_type": "application/json"}), headers=headers
    )


def seen(response: Any, name: str) -> tuple[int, bytes, dict[str, str]]:
    """Return the answer without the requested name and the time that it took."""
    headers = {
        key.lower(): value for key, value in response.headers.items() if not key.lower().endswith("-ms")
    }
    return (
        response.status_code,
        response.content.replace(name.encode(), b"?"),
        headers | {"content-length": ""},
    )


def test_every_route_is_known() -> None:
    tops = {str(each.pattern) for each in get_resolver().url_patterns}
    assert tops - PUBLIC - PAGES == {"v1/", *(f"{dialect}/v1/" for dialect in DIALECTS)}
    unknown = {part for _, pattern in ROUTES for part in pattern.pattern.converters}
    unknown -= SHARED.keys() | NAMES.keys()
    assert not unknown, "say in NAMES what these parts of a path name"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", NAMED)
def test_another_tenants_object_is_as_unknown_as_none(
    boss: Person, umbrella: Umbrella, path: str, method: str
) -> None:
    parts = [part for part in NAMES if f":{part}>" in path]
    before = [type(row)._default_manager.filter(pk=row.pk).values().get() for row in umbrella.rows]
    answers = []
    for which in (0, 1):
        names = {part: NAMES[part](umbrella)[which] for part in parts}
        answers.append(seen(ask(boss, method, put_in(path, names)), names[parts[0]]))
    assert answers[0] == answers[1]
    assert answers[0][0] in REFUSED
    assert [type(row)._default_manager.filter(pk=row.pk).values().get() for row in umbrella.rows] == before


@pytest.mark.parametrize("path", LISTING)
def test_what_lists_shows_nothing_of_another_tenant(boss: Person, umbrella: Umbrella, path: str) -> None:
    run(boss)
    filters = [f"{name}={umbrella.person.project.pk}" for name in ("project_ids", "project_ids[]")]
    filters += [f"{name}={umbrella.person.api_key.pk}" for name in ("api_key_ids", "api_key_ids[]")]
    for query in ("start_time=0", *filters):
        answers = [
            ask(boss, "get", put_in(path, {}) + asked)
            for asked in ("", f"?start_time=0&{query}&group_by=api_key_id")
        ]
        shown = "".join(answer.content.decode() for answer in answers)
        assert [trace for trace in umbrella.traces if trace in shown] == []
        assert f'"{umbrella.person.api_key.pk}"' not in shown


@pytest.mark.parametrize("path", [path for path in LISTING if "model" not in path])
def test_a_filter_by_another_tenants_object_finds_nothing(
    boss: Person, umbrella: Umbrella, path: str
) -> None:
    for name, row in (("project_ids", umbrella.person.project), ("api_key_ids", umbrella.person.api_key)):
        answers = [
            ask(boss, "get", put_in(path, {}) + f"?start_time=1700000000&{name}={pk}")
            for pk in (row.pk, 999_999_999)
        ]
        assert seen(answers[0], "-") == seen(answers[1], "-")


# ---- the hot routes, which Django does not see; their tests run against the service

HOT = {
    "chat/completions": "test_rate_limits_end_to_end.py, test_idempotency.py::test_keys_belong_to_an_api_key",
    "chat/completions/tickets": (
        "../bad_input/test_authorization.py::test_a_ticket_is_charged_to_the_key_that_asked_for_it"
    ),
    "completions": "test_every_protocol.py::test_an_idempotency_key_belongs_to_an_api_key",
    "embeddings": "test_embeddings.py::test_keys_belong_to_an_api_key",
    "responses": "test_responses.py::test_no_stranger_sees_it, as the routes below it",
    "responses/input_tokens": "test_responses.py::test_no_stranger_sees_it",
    "responses/(?P<response_id>[^/]+)": "test_responses.py",
    "responses/(?P<response_id>[^/]+)/input_items": "test_responses.py",
    "responses/(?P<response_id>[^/]+)/cancel": "test_responses.py",
    "messages": "test_every_protocol.py::test_an_idempotency_key_belongs_to_an_api_key",
    "messages/count_tokens": "it reads nothing that belongs to a tenant",
    "generations/(?P<generation_id>[^/]+)/stream": "../bad_input/test_authorization.py, test_resume.py",
    "generations/(?P<generation_id>[^/]+)/cancel": (
        "../bad_input/test_authorization.py, test_cancel_and_later.py"
    ),
}
"""The tests that prove that each hot route keeps tenants apart."""


def test_every_hot_route_is_known() -> None:
    routes = cast(Any, application).application_mapping["http"].routes
    found = {
        str(route.pattern).partition("v1/")[2].removesuffix("$")
        for route in routes
        if "v1/" in str(route.pattern)
    }
    assert found == HOT.keys()
    assert len(routes) == len(found) + 3  # the probes, which are about nobody, and Django


# ---- routes without a key


@pytest.mark.parametrize(
    ("path", "method"), [(path, method) for path, _ in ROUTES for method in ("get", "post", "delete")]
)
def test_no_route_answers_without_a_key(db: None, path: str, method: str) -> None:
    names = {part: uuid4().hex for part in NAMES}
    response = getattr(Client(), method)(put_in(path, names))
    assert response.status_code in {401, 405}


@pytest.mark.parametrize(
    ("path", "method"), [(path, method) for path, _ in ROUTES for method in ("get", "post", "delete")]
)
def test_no_route_answers_a_key_from_another_address(boss: Person, path: str, method: str) -> None:
    """The hot routes: test_allowed_ips_end_to_end.py."""
    APIKey.objects.filter(pk=boss.api_key.pk).update(allowed_ips=["203.0.113.0/24"])
    response = ask(boss, method, put_in(path, dict.fromkeys(NAMES, NEVER)))
    assert response.status_code in {401, 405}
    assert response.status_code == 405 or response.json()["error"]["code"] == "ip_not_authorized"


def test_no_route_answers_a_key_without_its_certificate(boss: Person, settings: Settings) -> None:
    """The hot routes: test_client_certificates_end_to_end.py."""
    settings.CLIENT_CERTIFICATE_HEADER, settings.TRUSTED_PROXIES = "client-cert", ["10.0.0.1"]
    organization_id = boss.project.organization_id
    row = certificates.create(organization_id, make("authority").pem)
    certificates.activate(organization_id, [row])
    for path, method in ((path, method) for path, _ in ROUTES for method in ("get", "post", "delete")):
        response = ask(boss, method, put_in(path, dict.fromkeys(NAMES, NEVER)))
        assert response.status_code in {401, 405}, path
        assert response.status_code == 405 or response.json()["error"]["code"] == "certificate_required"


@pytest.mark.parametrize("path", [path for path, _ in ROUTES if "organization" in path])
def test_the_organizations_routes_are_for_admin_keys(alice: Person, path: str) -> None:
    statuses = [ask(alice, method, put_in(path, {})).status_code for method in ("get", "post", "delete")]
    assert set(statuses) <= {403, 405}
    assert 403 in statuses
