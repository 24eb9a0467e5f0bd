"""OpenAI's own Python client manages an organization: `client.admin.organization`, each call of the SDK but
those that docs/provisioning.md says are absent, against a served instance.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.resources.admin.organization import organization as sdk

from tests import client_certificates
from tests.clients.admin_requests import (
    ABSENT,
    accept,
    arguments,
    calls,
    named,
    offered,
    owner_of,
    resource_of,
)
from tests.installation import ROOT, Installation, wait_for

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]


class Recorded:
    """A resource of the SDK that notes which requests were made, and checks what they return strictly."""

    def __init__(self, resource: Any, made: set[str], path: str = "") -> None:
        self._resource, self._made, self._path = resource, made, path

    def __getattr__(self, name: str) -> Any:
        found, path = getattr(self._resource, name), f"{self._path}.{name}".lstrip(".")
        if not callable(found):
            return Recorded(found, self._made, path)

        def request(*args: Any, **kwargs: Any) -> Any:
            self._made.add(path)
            answer = found(*args, **kwargs)
            for each in getattr(answer, "data", [answer]):
                assert isinstance(each, openai.BaseModel)
                type(each).model_validate(each.to_dict(), strict=True)
            return answer

        return request


@pytest.fixture(scope="module")
def admin(installation: Installation) -> Iterator[OpenAI]:
    with owner_of(installation, "Managed") as client:
        yield client


def test_every_call(admin: OpenAI, installation: Installation) -> None:
    made: set[str] = set()
    organization = Recorded(admin.admin.organization, made)
    projects = organization.projects
    project = projects.create(name="web shop")
    assert projects.retrieve(project.id).name == "web shop"
    assert projects.update(project.id, name="shop").name == "shop"
    assert {each.name for each in projects.list()} == {"management", "shop"}
    assert [each.name for each in projects.list(limit=1)] == ["management", "shop"]  # page by page
    make_keys(projects, project.id, installation)
    set_limits(organization, project.id)
    choose_models(projects.model_permissions, project.id)
    add_people(organization, project.id, installation)
    make_admin_keys(organization.admin_api_keys)
    keep_responses(organization, project.id)
    set_certificates(admin, made, project.id, installation)
    host_no_tools(projects.hosted_tool_permissions, project.id)
    archived = projects.archive(project.id)
    assert archived.status == "archived"
    assert archived.archived_at
    assert [each.name for each in projects.list()] == ["management"]
    assert len(list(projects.list(include_archived=True))) == 2
    read_the_log(organization.audit_logs, project.id)
    read_usage(organization.usage)
    assert made == offered()
    assert len(made) == 128


def make_keys(projects: Any, project_id: str, installation: Installation) -> None:
    accounts, keys = projects.service_accounts, projects.api_keys
    account = accounts.create(project_id, name="backend", expires_in_seconds=3_600)
    assert accounts.retrieve(account.id, project_id=project_id).name == "backend"
    assert accounts.update(account.id, project_id=project_id, name="back end").name == "back end"
    assert [each.name for each in accounts.list(project_id)] == ["back end"]
    second = accounts.api_keys.create(
        account.id, project_id=project_id, name="second", scopes=["completions"], expires_in_seconds=60
    )
    with OpenAI(base_url=f"{installation.url}/v1", api_key=second.value, max_retries=0) as client:
        answer = client.completions.create(model="five", prompt="Hello")
        assert answer.choices
        with pytest.raises(openai.PermissionDeniedError):
            client.models.list()

    assert [each.name for each in keys.list(project_id)] == ["backend", "second"]
    assert [each.name for each in keys.list(project_id, owner_project_access="inactive")] == []
    changed = keys.update(second.id, project_id=project_id, scopes=[], expires_in_seconds=7_200)
    assert changed.expires_at > time.time() + 7_000
    shown = keys.retrieve(second.id, project_id=project_id)
    assert shown.owner.service_account.id == account.id
    assert shown.last_used_at is not None
    assert keys.delete(second.id, project_id=project_id).deleted
    assert accounts.delete(account.id, project_id=project_id).deleted
    assert list(keys.list(project_id)) == []


def set_limits(organization: Any, project_id: str) -> None:
    projects, limits = organization.projects, organization.projects.rate_limits
    assert {"rl-*", "rl-five", "rl-org/with-slash"} <= {
        each.id for each in limits.list_rate_limits(project_id, limit=10)
    }
    (first,) = limits.list_rate_limits(project_id, limit=1).data
    assert first.id == "rl-*"
    last = limits.list_rate_limits(project_id).data[-1]
    assert limits.list_rate_limits(project_id, before=last.id, limit=1).has_more
    for name in ("rl-*", "rl-five", "rl-org/with-slash"):
        limited = limits.update_rate_limit(name, project_id=project_id, max_requests_per_1_minute=60)
        assert limited.max_requests_per_1_minute == 60
    with pytest.raises(openai.BadRequestError, match="max_images_per_1_minute"):
        limits.update_rate_limit("rl-*", project_id=project_id, max_images_per_1_minute=1)

    spend: dict[str, Any] = {"currency": "USD", "interval": "month", "threshold_amount": 5_000}
    assert projects.spend_limit.update(project_id, **spend).threshold_amount == 5_000
    assert projects.spend_limit.retrieve(project_id).enforcement.status == "inactive"
    assert projects.spend_limit.delete(project_id).deleted
    with pytest.raises(openai.NotFoundError):
        organization.spend_limit.retrieve()
    for refused in (lambda: organization.spend_limit.update(**spend), organization.spend_limit.delete):
        with pytest.raises(openai.PermissionDeniedError, match="operator"):
            refused()


def choose_models(permissions: Any, project_id: str) -> None:
    allowed = permissions.update(project_id, mode="allow_list", model_ids=["five"])
    assert allowed == permissions.retrieve(project_id)
    assert allowed.api_model_ids == ["five"]
    assert permissions.delete(project_id).deleted


def host_no_tools(permissions: Any, project_id: str) -> None:
    shown = permissions.retrieve(project_id)
    assert [each.enabled for _, each in shown] == 5 * [False]
    assert permissions.update(project_id, mcp={"enabled": False}, web_search=None) == shown
    with pytest.raises(openai.BadRequestError, match="hosts no tools") as refused:
        permissions.update(project_id, mcp={"enabled": False}, web_search={"enabled": True})
    assert refused.value.param == "web_search.enabled"


def keep_responses(organization: Any, project_id: str) -> None:
    of_project, of_all = organization.projects.data_retention, organization.data_retention
    for wanted in ("modified_abuse_monitoring", "zero_data_retention"):
        assert of_project.update(project_id, retention_type=wanted).type == wanted
        assert of_project.retrieve(project_id).type == wanted
    for wanted in ("zero_data_retention", "modified_abuse_monitoring"):
        assert of_all.update(retention_type=wanted).type == of_all.retrieve().type == wanted
    with pytest.raises(openai.BadRequestError, match="Supported values are: '"):
        of_project.update(project_id, retention_type="organization_default")


def set_certificates(admin: OpenAI, made: set[str], project_id: str, installation: Installation) -> None:
    """Manage certificates through a proxy that passes on those of clients."""
    authority = client_certificates.make("authority")
    proxied = {"CHATAPI_TRUSTED_PROXIES": "127.0.0.1", "CHATAPI_CLIENT_CERTIFICATE_HEADER": "client-cert"}
    with installation.another_web(**proxied) as web:
        url, header = f"{web.url}/v1", {"client-cert": authority.issue().header}
        organization = Recorded(admin.with_options(base_url=url).admin.organization, made)
        certified = Recorded(
            admin.with_options(base_url=url, default_headers=header).admin.organization, made
        )
        certificates = certified.certificates
        first, second = (
            certificates.create(certificate=each.pem, name=name)
            for name, each in (("first", authority), ("second", client_certificates.make("other")))
        )
        assert (
            certificates.retrieve(first.id, include=["content"]).certificate_details.content == authority.pem
        )
        assert certificates.update(second.id, name="third").name == "third"
        assert [each.name for each in certificates.list(limit=1, order="asc")] == ["first", "third"]
        with pytest.raises(openai.BadRequestError, match="none was sent"):
            organization.certificates.activate(certificate_ids=[first.id])
        assert [each.active for each in certificates.activate(certificate_ids=[first.id])] == [True]
        with pytest.raises(openai.AuthenticationError, match="client certificate"):
            organization.certificates.list()
        assert [each.active for each in certificates.deactivate(certificate_ids=[first.id])] == [False]
        of_project = certified.projects.certificates
        for change, is_active in ((of_project.activate, True), (of_project.deactivate, False)):
            assert [each.active for each in change(project_id, certificate_ids=[second.id])] == [is_active]
            shown = {each.name: each.active for each in of_project.list(project_id, order="asc")}
            assert shown == {"first": False, "third": is_active}
        assert certificates.delete(first.id).object == "certificate.deleted"


def add_people(organization: Any, project_id: str, installation: Installation) -> None:
    invite = organization.invites.create(
        email="dora@example.com", role="reader", projects=[{"id": project_id, "role": "member"}]
    )
    assert organization.invites.retrieve(invite.id).status == "pending"
    assert [each.email for each in organization.invites.list()] == ["dora@example.com"]
    assert organization.invites.delete(invite.id).deleted

    again = organization.invites.create(email="dora@example.com", role="reader")
    accept(installation, again.to_dict()["url"])
    assert organization.invites.retrieve(again.id).status == "accepted"
    with pytest.raises(openai.BadRequestError, match="accepted"):
        organization.invites.delete(again.id)
    (dora,) = organization.users.list(emails=["dora@example.com"])
    assert organization.users.retrieve(dora.id).role == "reader"
    in_project = organization.projects.users
    assert [each.id for each in in_project.list(project_id)] == [dora.id]
    assert in_project.create(project_id, user_id=dora.id, role="member").id == dora.id
    assert in_project.retrieve(dora.id, project_id=project_id).role == "member"
    assert in_project.update(dora.id, project_id=project_id, role="member").role == "member"
    with pytest.raises(openai.BadRequestError, match="all projects"):
        in_project.delete(dora.id, project_id=project_id)
    assert organization.users.update(dora.id, role="owner").role == "owner"
    with pytest.raises(openai.BadRequestError, match="only owner"):
        organization.users.delete(dora.id)
    assign_roles(organization, dora.id)
    other = organization.invites.create(email="emil@example.com", role="reader")
    accept(installation, other.to_dict()["url"])
    (emil,) = organization.users.list(emails=["emil@example.com"])
    set_alerts(organization, project_id)
    make_groups(organization, project_id, emil.id)
    assign_project_roles(organization.projects, project_id, emil.id)
    federate(organization, project_id)
    assert organization.users.delete(emil.id).deleted
    assert [each.id for each in organization.users.list()] == [dora.id]


def assign_roles(organization: Any, owner_id: str) -> None:
    names = [each.name for each in organization.roles.list(limit=1)]  # page by page
    assert names == ["owner", "admin", "member", "reader"]
    reader = organization.roles.retrieve("role_reader")
    assert reader.predefined_role
    assert "accounts.view_project" in reader.permissions
    make_role(organization.roles)
    of_users = organization.users.roles
    (owner,) = of_users.list(owner_id)
    assert of_users.retrieve(owner.id, user_id=owner_id).to_dict() == owner.to_dict()
    with pytest.raises(openai.BadRequestError, match="only owner"):
        of_users.create(owner_id, role_id=reader.id)
    assert of_users.create(owner_id, role_id=owner.id).role.name == "owner"
    with pytest.raises(openai.BadRequestError, match="always has one role"):
        of_users.delete(owner.id, user_id=owner_id)


def make_role(roles: Any) -> None:
    permissions = ["accounts.view_organization", "accounts.view_project", "audit.view_auditentry"]
    made = roles.create(role_name="Auditor", permissions=permissions)
    assert (made.permissions, made.predefined_role) == (permissions, False)
    assert roles.update(made.id, description="Reads").description == "Reads"
    with pytest.raises(openai.BadRequestError, match=r"is not one of accounts\.add_apikey"):
        roles.update(made.id, permissions=["api.groups.read"])
    assert [each.name for each in roles.list()][4:] == ["Auditor"]
    assert roles.delete(made.id).deleted


def make_groups(organization: Any, project_id: str, reader_id: str) -> None:
    groups, given = organization.groups, organization.projects.groups
    first, second = (groups.create(name=name) for name in ("Research", "Ops"))
    assert [each.name for each in groups.list(limit=1, order="desc")] == ["Ops", "Research"]
    assert groups.update(second.id, name="Labs").name == "Labs"
    assert groups.retrieve(second.id).name == "Labs"
    assert groups.delete(second.id).deleted

    assert groups.users.create(first.id, user_id=reader_id).user_id == reader_id
    assert [each.id for each in groups.users.list(first.id)] == [reader_id]
    assert groups.users.retrieve(reader_id, group_id=first.id).email == "emil@example.com"
    assert list(groups.roles.list(first.id)) == []
    with pytest.raises(openai.BadRequestError, match="no role"):
        groups.roles.create(first.id, role_id="role_admin")
    with pytest.raises(openai.BadRequestError, match="no role"):
        groups.roles.delete("role_admin", group_id=first.id)
    with pytest.raises(openai.NotFoundError, match="role"):
        groups.roles.retrieve("role_admin", group_id=first.id)

    role = organization.projects.roles.retrieve("role_project_member", project_id=project_id)
    place = {"project_id": project_id, "group_id": first.id}
    assert given.create(project_id, group_id=first.id, role=role.id).group_name == "Research"
    assert given.retrieve(first.id, project_id=project_id, group_type="group").group_id == first.id
    assert [each.group_id for each in given.list(project_id)] == [first.id]
    assert [each.id for each in given.roles.list(first.id, project_id=project_id)] == [role.id]
    assert given.roles.retrieve(role.id, **place).name == "member"
    assert given.roles.delete(role.id, **place).deleted
    assert given.roles.create(first.id, project_id=project_id, role_id=role.id).group.id == first.id
    assert given.delete(first.id, project_id=project_id).deleted
    assert groups.users.delete(reader_id, group_id=first.id).deleted


def assign_project_roles(projects: Any, project_id: str, reader_id: str) -> None:
    assert [each.name for each in projects.roles.list(project_id, limit=1)] == ["owner", "member"]
    of_users, place = projects.users.roles, {"project_id": project_id, "user_id": reader_id}
    (own,) = of_users.list(reader_id, project_id=project_id)
    assert of_users.retrieve(own.id, **place).name == "member"
    assert of_users.create(reader_id, project_id=project_id, role_id=own.id).role.id == own.id
    with pytest.raises(openai.BadRequestError, match="one role"):
        of_users.create(reader_id, project_id=project_id, role_id="role_project_owner")
    with pytest.raises(openai.BadRequestError, match="all projects"):
        of_users.delete(own.id, **place)


def federate(organization: Any, project_id: str) -> None:
    providers = organization.workload_identity_providers
    issuer = {"type": "oidc", "issuer": "https://issuer.example.com", "audience": "chat"}
    first, second = (providers.create(name=name, **issuer) for name in ("cluster", "builds"))
    assert [each.id for each in providers.list(limit=1, order="desc")] == [second.id, first.id]
    assert providers.delete(second.id).deleted
    assert providers.update(first.id, name="prod", enabled=False).enabled is False
    assert providers.retrieve(first.id).verification.type == "discovery"

    account = organization.projects.service_accounts.create(project_id, name="job")
    rules, place = providers.federation_rules, {"workload_identity_provider_id": first.id}
    matchers = {"sub": "a", "admin": False, "run": 7, "share": 0.5}
    rule = rules.create(
        first.id, attribute_matchers=matchers, project_id=project_id, service_account_id=account.id
    )
    assert (rule.attribute_matchers, rule.permissions.type) == (matchers, "service_account_default")
    restricted = {"type": "restricted", "scopes": ["models"]}
    assert rules.update(rule.id, permissions=restricted, **place).permissions.scopes == ["models"]
    assert rules.retrieve(rule.id, **place).id == rule.id
    assert [each.id for each in rules.list(first.id, service_account_id=account.id)] == [rule.id]
    with pytest.raises(openai.BadRequestError, match="rules of this provider first"):
        providers.delete(first.id)
    assert rules.delete(rule.id, **place).deleted


def set_alerts(organization: Any, project_id: str) -> None:
    channel: Any = {"type": "email", "recipients": ["emil@example.com"], "subject_prefix": "[billing]"}
    body: dict[str, Any] = {"currency": "USD", "interval": "month", "notification_channel": channel}
    in_project = {"project_id": project_id}
    for alerts, place, inside in (
        (organization.spend_alerts, (), {}),
        (organization.projects.spend_alerts, (project_id,), in_project),
    ):
        first, second = (alerts.create(*place, **body, threshold_amount=cents) for cents in (5_000, 8_000))
        assert first.notification_channel.recipients == ["emil@example.com"]
        assert [each.id for each in alerts.list(*place, order="desc", limit=1)] == [second.id, first.id]
        assert alerts.update(first.id, **inside, **body, threshold_amount=6_000).threshold_amount == 6_000
        assert alerts.retrieve(first.id, **inside).threshold_amount == 6_000
        assert alerts.delete(first.id, **inside).deleted
        assert [each.id for each in alerts.list(*place)] == [second.id]


def make_admin_keys(admin_keys: Any) -> None:
    other = admin_keys.create(name="other", expires_in_seconds=3_600)
    assert admin_keys.retrieve(other.id).name == "other"
    assert admin_keys.list(order="desc", limit=1).data[0].id == other.id
    assert admin_keys.delete(other.id).deleted


def read_the_log(audit_logs: Any, project_id: str) -> None:
    log = list(audit_logs.list(project_ids=[project_id], effective_at={"gt": 0}, limit=2))
    assert [each.type for each in log if each.type.startswith("project.")] == [
        "project.archived", *["project.updated"] * 5, "project.created",
    ]  # fmt: skip
    assert {each.actor.type for each in log} == {"api_key"}
    assert log[-1].project_created.data.name == "web shop"


def read_usage(usage: Any) -> None:
    for name in calls(resource_of(sdk.Organization, "usage")):
        (today,) = getattr(usage, name)(start_time=int(time.time())).data
        assert not today.results or name in ("completions", "costs")
    many = usage.file_search_calls(start_time=0, bucket_width="1h", limit=2, vector_store_ids=["vs_1"])
    assert (len(many.data), many.has_more) == (2, True)


SAMPLES: dict[str, Any] = {
    "actor_emails": ["a@example.com"], "actor_ids": ["1"], "after": "1", "before": "1",
    "effective_at": {"gte": 0}, "event_types": ["project.created"], "limit": 1, "order": "desc",
    "project_ids": ["1"], "resource_ids": ["1"], "tenant_only": True, "include_archived": True,
    "emails": ["a@example.com"], "owner_project_access": "any", "api_key_ids": ["1"], "batch": False,
    "bucket_width": "1d", "end_time": round(time.time()), "group_by": ["project_id"], "models": ["five"],
    "line_items": ["five"], "page": "page_1", "user_ids": ["1"], "sizes": ["256x256"],
    "sources": ["image.edit"], "context_levels": ["low"], "vector_store_ids": ["vs_1"],
    "service_account_id": "1",
}  # fmt: skip
"""A value of each optional argument of the requests that read lists."""


def optional_arguments() -> Iterator[tuple[str, str]]:
    """Yield each list that is here with each of its optional arguments, by the SDK's signatures."""
    for name in sorted(offered()):
        if name.rpartition(".")[2].startswith("list") or name.startswith("usage."):
            for argument, parameter in arguments(name).items():
                if parameter.default is not parameter.empty:
                    yield name, argument


def test_each_optional_argument_of_a_list(installation: Installation) -> None:
    with owner_of(installation, "Filtered") as client:
        organization = client.admin.organization
        project = organization.projects.create(name="filtered")
        invite = organization.invites.create(email="fay@example.com", role="reader")
        accept(installation, invite.to_dict()["url"])  # type: ignore[arg-type]
        (member,) = organization.users.list()
        group = organization.groups.create(name="filtered")
        organization.projects.groups.create(project.id, group_id=group.id, role="member")
        issuer: Any = {"type": "oidc", "issuer": "https://issuer.example.com", "audience": "chat"}
        provider = organization.workload_identity_providers.create(name="filtered", **issuer)
        places = {
            "project_id": project.id,
            "user_id": member.id,
            "group_id": group.id,
            "workload_identity_provider_id": provider.id,
        }
        sent, refused = set(optional_arguments()), dict[tuple[str, str], str | None]()
        for name, argument in sorted(sent):
            required: dict[str, Any] = {each: places[each] for each in arguments(name) if each in places}
            if name.startswith("usage."):
                required["start_time"] = round(time.time()) - 86_400
            try:
                named(organization, name)(**required, **{argument: SAMPLES[argument]})
            except openai.BadRequestError as error:
                refused[name, argument] = error.param
    assert len(sent) > 100
    # Of these, the value is a place in a list that has no such place.
    assert {argument for _, argument in refused} <= {"after", "before", "page"}, refused
    assert all(param == argument for (_, argument), param in refused.items()), refused


def test_usage_and_costs(installation: Installation) -> None:
    admin = owner_of(installation, "Measured")
    project = admin.admin.organization.projects.create(name="measured")
    account: Any = admin.admin.organization.projects.service_accounts.create(project.id, name="backend")
    secret = account.api_key.value
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=secret, max_retries=0) as client:
        asked: Any = [{"role": "user", "content": "Hello"}]
        spent = client.chat.completions.create(model="five", messages=asked).usage
        embedded = client.embeddings.create(model="sandbox-embedding", input="Hello").usage
    assert spent is not None
    usage = Recorded(admin.admin.organization.usage, set())
    asked = {"start_time": int(time.time()) - 86_400, "bucket_width": "1d", "project_ids": [project.id]}

    def results(request: Any, **grouped: Any) -> list[Any]:
        return [each for bucket in request(**asked, **grouped).data for each in bucket.results]

    wait_for(lambda: len(results(usage.costs, group_by=["line_item"])) >= 2, "both settlements")
    (completions,) = results(usage.completions, group_by=["model"])
    assert (completions.model, completions.num_model_requests) == ("five", 1)
    assert (completions.input_tokens, completions.output_tokens) == (
        spent.prompt_tokens,
        spent.completion_tokens,
    )
    (embeddings,) = results(usage.embeddings)
    assert (embeddings.num_model_requests, embeddings.input_tokens) == (1, embedded.prompt_tokens)
    lines = results(usage.costs, group_by=["line_item", "user_id"])
    assert all(each.amount.currency == "usd" and each.amount.value > 0 for each in lines)
    assert {each.user_id for each in lines} == {None}
    assert results(usage.images, group_by=["size", "source"], sizes=["256x256"]) == []
    admin.close()


def test_the_guide_names_what_is_not_here() -> None:
    text = (ROOT / "docs" / "provisioning.md").read_text()
    listed = text.partition("- **Absent**")[2].partition("\n- ")[0]
    assert tuple(re.findall(r"`([\w.]+)`", listed)) == ABSENT


def test_what_is_not_here_is_a_404_that_says_so(admin: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/docs"):
        admin.admin.organization.external_keys.list()
    with pytest.raises(openai.APIStatusError) as refused:
        admin.admin.organization.projects.roles.create("1", role_name="auditor", permissions=[])
    assert refused.value.status_code == 405
