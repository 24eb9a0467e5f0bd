"""Each argument that OpenAI's own Python client can send in the body of `client.admin.organization`: it has
its effect, or is refused with its name and what would be accepted.
"""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.client_certificates import make
from tests.clients.admin_requests import accept, arguments, named, offered, owner_of
from tests.installation import ROOT, Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

REFUSED = {
    ("groups.roles.create", "role_id"),
    ("projects.create", "external_key_id"),
    ("projects.create", "geography"),
    ("projects.create", "residency"),
    ("projects.rate_limits.update_rate_limit", "batch_1_day_max_input_tokens"),
    ("projects.rate_limits.update_rate_limit", "max_audio_megabytes_per_1_minute"),
    ("projects.rate_limits.update_rate_limit", "max_images_per_1_minute"),
    ("projects.update", "external_key_id"),
    ("projects.update", "geography"),
    ("users.update", "developer_persona"),
    ("users.update", "technical_level"),
}
"""What has no effect here: a setting that is not applied would mislead."""
OPERATORS = "spend_limit.update"
"""The request that only the operator of the service may make."""
CHECKED: dict[tuple[str, str], tuple[Any, type[openai.APIStatusError], str]] = {
    ("certificates.create", "certificate"): ("garbage", openai.BadRequestError, "PEM"),
    ("invites.create", "projects"): (
        [{"id": "999999999", "role": "member"}],
        openai.NotFoundError,
        "project",
    ),
    ("projects.groups.create", "role"): ("owner", openai.BadRequestError, "role"),
    **{
        (f"workload_identity_providers.{request}", "attribute_transformations"): (
            [{"attribute": "a", "expression": "b"}],
            openai.BadRequestError,
            "attribute_transformations",
        )
        for request in ("create", "update")
    },
}
"""What no answer shows, each with a value that is refused, the error, and a word of its message."""

EMAIL = "swept@example.com"
NOT_ENABLED = {"enabled": False}
SENT: dict[str, Any] = {
    "batch_1_day_max_input_tokens": 1_000, "create_service_account_only": True, "currency": "USD",
    "description": "Accounting", "developer_persona": "engineer", "expires_in_seconds": 7_200,
    "external_key_id": "key_1", "email": EMAIL, "geography": "EU", "interval": "month",
    "max_audio_megabytes_per_1_minute": 1_000,
    "max_images_per_1_minute": 1_000, "max_requests_per_1_day": 1_001, "max_requests_per_1_minute": 1_002,
    "max_tokens_per_1_minute": 1_000_003, "mode": "allow_list", "model_ids": ["five"],
    "notification_channel": {"type": "email", "recipients": [EMAIL], "subject_prefix": "[billing]"},
    "permissions": ["accounts.view_organization", "accounts.view_project"],
    "residency": "EU_STORAGE_PROCESSING", "retention_type": "modified_abuse_monitoring", "role": "member",
    "role_id": "role_member", "scopes": ["completions"], "technical_level": "expert",
    "threshold_amount": 5_000, "attribute_matchers": {"sub": "job", "run": 7}, "audience": "https://chat",
    "attribute_transformations": [], "enabled": False, "issuer": "https://issuer.example.com", "type": "oidc",
    "verification": {"type": "discovery", "discovery_url": "https://keys.example.com/description"},
    "code_interpreter": NOT_ENABLED, "file_search": NOT_ENABLED, "image_generation": NOT_ENABLED,
    "mcp": NOT_ENABLED, "web_search": NOT_ENABLED,
}  # fmt: skip
"""A value of each argument, the same in all requests."""
numbers = count(1)


class Managed:
    """An organization that has one of each thing that can be changed."""

    def __init__(self, client: OpenAI, installation: Installation) -> None:
        self.requests = client.admin.organization
        self.url = f"{installation.url}/v1"
        project_id = self.requests.projects.create(name="swept").id
        account: Any = self.requests.projects.service_accounts.create(project_id, name="backend")
        self.secret = account.api_key.value
        invite: Any = self.requests.invites.create(email=EMAIL, role="reader")
        accept(installation, invite.to_dict()["url"])
        (member,) = self.requests.users.list()
        alert = {each: SENT[each] for each in ("currency", "interval", "notification_channel")}
        alert["threshold_amount"] = 1
        self.alert_id = self.requests.spend_alerts.create(**alert).id
        self.project_alert_id = self.requests.projects.spend_alerts.create(project_id, **alert).id
        self.places = {
            "project_id": project_id, "service_account_id": account.id, "user_id": member.id,
            "api_key_id": account.api_key.id, "rate_limit_id": "rl-*",
            "group_id": self.requests.groups.create(name="swept").id,
            "certificate_id": self.requests.certificates.create(certificate=make("swept").pem).id,
        }  # fmt: skip
        sent = SENT["permissions"]
        self.role_id = self.requests.roles.create(role_name="swept", permissions=sent).id
        issuer: Any = {each: SENT[each] for each in ("audience", "issuer", "type")}
        provider = self.requests.workload_identity_providers.create(name="swept", **issuer)
        rule = self.requests.workload_identity_providers.federation_rules.create(
            provider.id,
            attribute_matchers={"sub": "other"},
            project_id=project_id,
            service_account_id=account.id,
        )
        self.places |= {
            "workload_identity_provider_id": provider.id,
            "workload_identity_federation_rule_id": rule.id,
        }

    def required(self, request: str) -> dict[str, Any]:
        """Return the path's arguments, and those without which the body is refused."""
        names = [
            each for each, parameter in arguments(request).items() if parameter.default is parameter.empty
        ]
        if request == "projects.users.create":
            names.append("email")  # or `user_id`
        return {name: self.value(request, name) for name in names}

    def value(self, request: str, argument: str) -> Any:
        """Return a value of the argument; names and addresses of people to invite are new ones."""
        if argument in ("name", "role_name"):
            return f"swept {next(numbers)}"
        if argument == "certificate":
            return make(f"swept {next(numbers)}").pem
        if request == "invites.create":
            project = {"id": self.places["project_id"], "role": "member"}
            of_guest = {"email": f"guest{next(numbers)}@example.com", "role": "reader", "projects": [project]}
            return of_guest[argument]
        area, _, action = request.rpartition(".")
        own = {
            ("spend_alerts", "alert_id"): self.alert_id,
            ("projects.spend_alerts", "alert_id"): self.project_alert_id,
            ("roles", "role_id"): self.role_id if action == "update" else None,
            ("workload_identity_providers.federation_rules", "permissions"): {
                "type": "restricted",
                "scopes": ["models"],
            },
        }.get((area, argument))
        if own is None and argument == "role_id" and area.startswith("projects"):
            return "role_project_member"
        return own or self.places.get(argument, SENT.get(argument))


@pytest.fixture(scope="module")
def managed(installation: Installation) -> Iterator[Managed]:
    with owner_of(installation, "Swept") as client:
        yield Managed(client, installation)


def writes() -> list[str]:
    """Return the requests that make or change something."""
    names = ("create", "update")
    return sorted(each for each in offered() if each.rpartition(".")[2].startswith(names))


def places(request: str) -> list[str]:
    """Return the arguments that are parts of the request's path: all ids that it needs but that of a role
    that it gives.
    """
    return [
        each
        for each, parameter in arguments(request).items()
        if each.endswith("_id")
        and (each != "role_id" or request == "roles.update")
        and parameter.default is parameter.empty
    ]


def body_arguments() -> list[tuple[str, str]]:
    """Return each of these requests with each argument of its body."""
    return [
        (request, each) for request in writes() for each in arguments(request) if each not in places(request)
    ]


@pytest.mark.parametrize(("request_", "argument"), body_arguments())
def test_each_argument_has_its_effect_or_is_refused(managed: Managed, request_: str, argument: str) -> None:
    make, sent = named(managed.requests, request_), managed.required(request_)
    if (request_, argument) == ("projects.users.create", "user_id"):
        del sent["email"]
    sent.setdefault(argument, managed.value(request_, argument))
    if request_ == OPERATORS:
        with pytest.raises(openai.PermissionDeniedError, match="operator"):
            make(**sent)
    elif (request_, argument) in REFUSED:
        with pytest.raises(openai.BadRequestError) as refused:
            make(**sent)
        assert refused.value.param == argument
        taken = [name for place, name in body_arguments() if place == request_]
        for name in taken:
            is_named = f"'{name}'" in refused.value.message.partition("Supported parameters are: ")[2]
            assert is_named is ((request_, name) not in REFUSED), refused.value.message
    else:
        answer = make(**sent)
        if argument == "scopes":
            assert_is_narrowed(managed, getattr(answer, "value", managed.secret))
        elif (request_, argument) in CHECKED:
            sent[argument], error, word = CHECKED[request_, argument]
            with pytest.raises(error, match=word):
                make(**sent)
        else:
            assert_shows(answer.to_dict(), argument, sent[argument])


def assert_is_narrowed(managed: Managed, secret: str) -> None:
    """Check that the key may make completions, but not read the list of models."""
    with (
        OpenAI(base_url=managed.url, api_key=secret, max_retries=0) as client,
        pytest.raises(openai.PermissionDeniedError, match="scope"),
    ):
        client.models.list()


def assert_shows(answer: dict[str, Any], argument: str, value: Any) -> None:
    """Check that the answer has the value, if under another name."""
    if argument == "create_service_account_only":
        assert answer["api_key"] is None
    elif argument == "expires_in_seconds":
        expires_at = (answer.get("api_key") or answer)["expires_at"]
        assert abs(expires_at - time.time() - value) < 60
    elif argument == "role_id":
        role = answer["role"]
        assert value == (role["id"] if isinstance(role, dict) else f"role_{role}")
    else:
        names = {"retention_type": "type", "user_id": "id", "role_name": "name"}
        assert answer[names.get(argument, argument)] == value


def test_each_refused_argument_is_one_that_the_sdk_can_send() -> None:
    assert set(body_arguments()) >= REFUSED | CHECKED.keys()
    assert len(body_arguments()) > 50


@pytest.mark.parametrize(
    "request_",
    [each for each in writes() if each not in (OPERATORS, "projects.api_keys.update", "groups.roles.create")],
)
def test_optional_arguments_can_be_left_out(managed: Managed, request_: str) -> None:
    named(managed.requests, request_)(**managed.required(request_))


def test_null_is_an_argument_that_is_left_out(managed: Managed) -> None:
    update = managed.requests.projects.update
    project_id = managed.places["project_id"]
    before = managed.requests.projects.retrieve(project_id)
    assert update(project_id) == before
    assert update(project_id, name=None, geography=None, external_key_id=None) == before


def test_the_guide_names_the_refused_arguments() -> None:
    text = (ROOT / "docs" / "provisioning.md").read_text()
    listed = text.partition("- **Unknown parameters**")[2].partition("\n- ")[0]
    assert set(listed.split("`")[1::2]) == {argument for _, argument in REFUSED}
