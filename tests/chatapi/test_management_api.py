"""The management API: its refusals and their names, the effect of its changes, and the audit log of them.

tests/clients/test_openai_python_admin.py has each call, test_access_matrix.py the roles that may make it.
"""

from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from accounts.authentication import look_up
from accounts.errors import NotAuthenticated
from accounts.models import APIKey, KeyScope, Member, Project, RateLimit, Role, ServiceAccount
from chatapi.api.management import route
from chatapi.models import ServedModel
from tests.admin_pages import client_of
from tests.cast import Person, is_let_in, run
from tests.chatapi.console_pages import url
from tests.chatapi.management import HERE, refused, said
from usage.models import BudgetLimit, SpendAlert
from usage.models.budget_keys import LimitKey
from usage.notifications.spend_alerts import MAX_ALERTS


@pytest.fixture
def research(bob: Person) -> str:
    """The path of Bob's project."""
    return f"{HERE}/projects/{bob.project.pk}"


# ---- bad input


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {}, "name"),
        ("", {"name": ""}, "name"),
        ("", {"name": "a/b"}, "name"),
        ("", {"name": 7}, "name"),
        ("", {"name": "shop", "geography": "EU"}, "geography"),
        ("", {"name": "research"}, "name"),
        ("/{}/service_accounts", {"name": "x", "expires_in_seconds": 0}, "expires_in_seconds"),
        (
            "/{}/service_accounts",
            {"name": "x", "create_service_account_only": True, "expires_in_seconds": 5},
            "expires_in_seconds",
        ),
        ("/{}/api_keys/{key}", {}, "scopes"),
        ("/{}/api_keys/{key}", {"scopes": ["api.all.read"]}, "scopes[0]"),
        ("/{}/spend_limit", {"currency": "EUR", "interval": "month", "threshold_amount": 1}, "currency"),
        ("/{}/spend_limit", {"currency": "USD", "interval": "day", "threshold_amount": 1}, "interval"),
        (
            "/{}/spend_limit",
            {"currency": "USD", "interval": "month", "threshold_amount": -1},
            "threshold_amount",
        ),
        (
            "/{}/spend_limit",
            {"currency": "USD", "interval": "month", "threshold_amount": 10**12},
            "threshold_amount",
        ),
        (
            "/{}/spend_alerts",
            {
                "currency": "USD",
                "interval": "month",
                "threshold_amount": 1_000_000_01,
                "notification_channel": {"type": "email", "recipients": ["bob@example.com"]},
            },
            "threshold_amount",
        ),
        ("/{}/rate_limits/rl-*", {"max_requests_per_1_minute": 2**31}, "max_requests_per_1_minute"),
        ("/{}/rate_limits/rl-*", {"max_concurrent_requests": 2**31}, "max_concurrent_requests"),
        ("/{}/rate_limits/rl-*", {"max_tokens_per_1_minute": 2**60}, "max_tokens_per_1_minute"),
        ("/{}/model_permissions", {"mode": "allow_list", "model_ids": ["no-such"]}, "model_ids"),
        ("/{}/users", {"role": "member"}, "email"),
        ("/{}/users", {"role": "owner", "user_id": "{bob}"}, "role"),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_parameter(
    boss: Person, bob: Person, path: str, body: Any, param: str
) -> None:
    if body.get("user_id"):
        User.objects.filter(pk=bob.user.pk).update(last_login=datetime.now(UTC))
        body["user_id"] = str(bob.user.pk)
    path = f"{HERE}/projects{path}".replace("{}", str(bob.project.pk)).replace("{key}", str(bob.api_key.pk))
    assert refused(boss, "POST", path, body)[0] == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=ten", "limit"),
        ("limit=1&limit=2", "limit"),
        ("after=abc", "after"),
        ("after=1%00", "after"),
        ("order=asc", "order"),
        ("include_archived=maybe", "include_archived"),
    ],
)
def test_a_wrong_query_is_a_400_that_names_the_parameter(boss: Person, query: str, param: str) -> None:
    assert refused(boss, "GET", f"{HERE}/projects?{query}")[0] == param


def test_an_unknown_parameter_is_a_400_that_names_the_known_ones(boss: Person) -> None:
    error = said(boss, "POST", f"{HERE}/projects", {"name": "shop", "residency": "EU_STORAGE"}, 400)["error"]
    assert (error["param"], error["code"]) == ("residency", "unknown_parameter")
    assert error["message"] == "Unknown parameter: 'residency'. Supported parameters are: 'name'."
    error = said(boss, "GET", f"{HERE}/projects?{'x' * 200}=1", status=400)["error"]
    assert error["message"] == (
        f"Unknown parameter: '{'x' * 100}'. Supported parameters are: 'after', 'limit', 'include_archived'."
    )


@pytest.mark.parametrize("value", ["null", "-1", "253402300799"])
def test_a_wrong_time_is_a_400_that_names_it(boss: Person, value: str) -> None:
    assert refused(boss, "GET", f"{HERE}/audit_logs?effective_at[gt]={value}")[0] == "effective_at[gt]"


def test_a_body_is_json_and_says_so(boss: Person) -> None:
    assert refused(boss, "POST", f"{HERE}/projects", b'{"name": ')[1] == "invalid_json"
    assert refused(boss, "POST", f"{HERE}/projects", b"[" * 60_000)[1] in {"too_deep", "invalid_json"}
    assert (
        refused(boss, "POST", f"{HERE}/projects", b'{"name": "a", "name": "b"}')[1] == "duplicate_parameter"
    )


def test_a_body_of_another_type_is_a_415(boss: Person) -> None:
    headers = {"authorization": f"Bearer {boss.key}"}
    response = Client().post(f"{HERE}/projects", b"name=shop", "text/plain", headers=headers)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_ids_that_no_row_can_have_are_unknown(boss: Person, research: str) -> None:
    for row_id in ("x", "9" * 18, "9" * 400, "%00", "-1", "1e3", "\N{ARABIC-INDIC DIGIT ONE}"):
        assert refused(boss, "GET", f"{HERE}/projects/{row_id}", status=404)[1] == "not_found"
    assert refused(boss, "POST", f"{research}/rate_limits/rl-nothing", {}, 404)[1] == "not_found"


def test_data_retention_is_the_days_of_stored_responses(boss: Person, bob: Person, research: str) -> None:
    path, rows = f"{research}/data_retention", Project.objects.filter(pk=bob.project.pk)
    for days, wanted, left in (
        (0, "modified_abuse_monitoring", 30),
        (7, "modified_abuse_monitoring", 7),
        (7, "zero_data_retention", 0),
    ):
        rows.update(stores_responses_days=days)
        assert said(boss, "POST", path, {"retention_type": wanted})["type"] == wanted
        assert rows.get().stores_responses_days == left
    assert refused(boss, "POST", path, {"retention_type": "none"})[0] == "retention_type"
    assert said(boss, "GET", path)["type"] == "zero_data_retention"


def test_an_organization_forbids_and_allows_storing_responses(
    boss: Person, bob: Person, charlie: Person, research: str
) -> None:
    path, own = f"{HERE}/data_retention", f"{research}/data_retention"
    Project.objects.update(stores_responses_days=7)
    assert said(boss, "GET", path)["type"] == "modified_abuse_monitoring"
    for _ in range(2):
        forbidden = said(boss, "POST", path, {"retention_type": "zero_data_retention"})
        assert forbidden == said(boss, "GET", path)
        assert forbidden == {"object": "organization.data_retention", "type": "zero_data_retention"}
    assert said(boss, "GET", own)["type"] == "zero_data_retention"
    stored = [look_up(each.key).stores_responses_days for each in (boss, bob, charlie)]
    assert stored == [0, 0, 7]
    for wanted in ("modified_abuse_monitoring", "none"):
        assert refused(boss, "POST", own, {"retention_type": wanted})[0] == "retention_type"
    assert refused(boss, "POST", path, {"retention_type": "none"})[0] == "retention_type"
    assert said(boss, "POST", research, {"name": "renamed"})["name"] == "renamed"
    said(boss, "POST", path, {"retention_type": "modified_abuse_monitoring"})
    assert look_up(bob.key).stores_responses_days == 7


def spend_alert(*recipients: str, **channel: Any) -> dict[str, Any]:
    """Return the body of a new alert."""
    channel = {"type": "email", "recipients": recipients, **channel}
    usual = {"currency": "USD", "interval": "month", "threshold_amount": 100}
    return {**usual, "notification_channel": channel}


def test_a_spend_alert_goes_to_members_only(
    boss: Person, bob: Person, charlie: Person, research: str
) -> None:
    for person in (boss, bob, charlie):
        User.objects.filter(pk=person.user.pk).update(email=f"{person.user.username}@example.com")
    User.objects.exclude(pk=bob.user.pk).update(last_login=datetime.now(UTC))
    User.objects.filter(pk=bob.user.pk).update(password="!")
    for stranger in ("charlie@example.com", "nobody@example.com", "bob@example.com"):
        body = spend_alert("alice@example.com", stranger)
        error = said(boss, "POST", f"{research}/spend_alerts", body, 400)["error"]
        assert error["param"] == "notification_channel.recipients"
        assert stranger in error["message"]
    for wrong in (spend_alert(), spend_alert("Alice@example.com", subject_prefix="a\nBcc: eve@example.com")):
        assert refused(boss, "POST", f"{HERE}/spend_alerts", wrong)[0].startswith("notification_channel")
    made = said(boss, "POST", f"{research}/spend_alerts", spend_alert("Alice@example.com"))
    assert made["notification_channel"]["recipients"] == ["alice@example.com"]
    assert refused(boss, "GET", f"{HERE}/spend_alerts/{made['id']}", status=404)[1] == "not_found"
    Member.objects.filter(user=boss.user).delete()
    shown = said(boss, "GET", f"{research}/spend_alerts")["data"]
    assert [each["notification_channel"]["recipients"] for each in shown] == [[]]


def test_an_organization_has_twenty_spend_alerts_with_its_projects(boss: Person, research: str) -> None:
    User.objects.update(last_login=datetime.now(UTC), email="alice@example.com")
    SpendAlert.objects.bulk_create(
        SpendAlert(organization=boss.project.organization, threshold_nanodollars=1, recipients=[])
        for _ in range(MAX_ALERTS - 1)
    )
    said(boss, "POST", f"{research}/spend_alerts", spend_alert("alice@example.com"))
    more = refused(boss, "POST", f"{HERE}/spend_alerts", spend_alert("alice@example.com"))
    assert more[1] == "too_many_objects"
    said(boss, "POST", f"{research}/archive")
    said(boss, "POST", f"{HERE}/spend_alerts", spend_alert("alice@example.com"))


# ---- pages


def test_pages_reach_every_row_once(boss: Person) -> None:
    for number in range(5):
        said(boss, "POST", f"{HERE}/projects", {"name": f"p{number}"})
    seen: list[str] = []
    page = said(boss, "GET", f"{HERE}/projects?limit=2")
    while page["has_more"]:
        seen += [each["name"] for each in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        page = said(boss, "GET", f"{HERE}/projects?limit=2&after={page['last_id']}")
    assert seen + [each["name"] for each in page["data"]] == ["default", *(f"p{n}" for n in range(5))]
    assert said(boss, "GET", f"{HERE}/projects?after=999999")["data"] == []


def test_the_rate_limit_of_the_longest_model_is_a_place_in_the_list(
    boss: Person, research: str, small: ServedModel
) -> None:
    longest = "m" * 128
    RateLimit.objects.create(project=Project.objects.get(name="research"), model=longest, requests_per_day=1)
    path = f"{research}/rate_limits"
    assert [each["model"] for each in said(boss, "GET", f"{path}?after=rl-{longest}")["data"]] == ["small"]
    assert said(boss, "GET", f"{path}?before=rl-{longest}")["last_id"] == "rl-*"


def test_the_audit_log_is_read_in_both_directions(boss: Person) -> None:
    for number in range(4):
        said(boss, "POST", f"{HERE}/projects", {"name": f"p{number}"})
    whole = [each["id"] for each in said(boss, "GET", f"{HERE}/audit_logs")["data"]]
    assert whole == sorted(whole, key=int, reverse=True)
    page = said(boss, "GET", f"{HERE}/audit_logs?limit=2&before={whole[3]}")
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (whole[1:3], True)


# ---- keys


def test_a_secret_is_shown_once_and_kept_nowhere(boss: Person, research: str) -> None:
    made = said(boss, "POST", f"{research}/service_accounts", {"name": "backend"})
    secret = made["api_key"]["value"]
    assert look_up(secret).project_id == Project.objects.get(name="research").pk
    everything = [
        boss.send("GET", f"{research}/api_keys").content.decode(),
        boss.send("GET", f"{HERE}/audit_logs").content.decode(),
        str(list(APIKey.objects.values())),
        str(list(AuditEntry.objects.values())),
    ]
    assert not any(secret[-20:] in each for each in everything)
    assert made["api_key"]["id"] in {each["id"] for each in said(boss, "GET", f"{research}/api_keys")["data"]}


def test_a_deleted_service_account_takes_its_keys_with_it(boss: Person, bob: Person, research: str) -> None:
    made = said(boss, "POST", f"{research}/service_accounts", {"name": "backend"})
    said(boss, "DELETE", f"{research}/service_accounts/{made['id']}")
    with pytest.raises(NotAuthenticated):
        look_up(made["api_key"]["value"])
    assert not ServiceAccount.objects.exists()
    assert look_up(bob.key)


@pytest.mark.parametrize(
    ("caller", "account", "status"),
    [("member", "", 403), ("admin", "", 200), ("admin", "admin", 200), ("admin", "owner", 403)],
)
def test_a_service_account_with_an_admin_key_stays_for_lower_roles(
    alice: Person, bob: Person, caller: str, account: str, status: int
) -> None:
    alice.manage_as(caller)
    row = ServiceAccount.objects.create(project=bob.project, name="backend")
    APIKey.objects.filter(pk=bob.manage_as(account).api_key.pk).update(service_account=row)
    said(alice, "DELETE", f"{HERE}/projects/{bob.project.pk}/service_accounts/{row.pk}", status=status)
    assert is_let_in(bob.key) is (status == 403)


def test_admin_keys_are_not_among_a_projects_keys(boss: Person) -> None:
    own = f"{HERE}/projects/{boss.project.pk}/api_keys"
    assert said(boss, "GET", own)["data"] == []
    assert refused(boss, "DELETE", f"{own}/{boss.api_key.pk}", status=404)[1] == "not_found"


def test_an_admin_key_makes_none_with_more_rights(alice: Person, bob: Person) -> None:
    alice.manage_as("admin")
    owners = bob.manage_as("owner").api_key
    APIKey.objects.filter(pk=alice.api_key.pk).update(scopes=["management"])
    made = APIKey.objects.get(pk=said(alice, "POST", f"{HERE}/admin_api_keys", {"name": "more"})["id"])
    assert (made.manages_as, made.scopes, made.is_admin) == ("admin", ["management"], True)
    assert (
        refused(alice, "DELETE", f"{HERE}/admin_api_keys/{owners.pk}", status=403)[1] == "permission_denied"
    )


def test_an_admin_key_does_not_outlive_the_key_that_makes_it(boss: Person) -> None:
    soon = timezone.now().replace(microsecond=0) + timedelta(hours=1)
    APIKey.objects.filter(pk=boss.api_key.pk).update(expires_at=soon)
    path = f"{HERE}/admin_api_keys"
    made = said(boss, "POST", path, {"name": "lent"})
    assert made["expires_at"] == int(soon.timestamp())
    assert (
        said(boss, "POST", path, {"name": "short", "expires_in_seconds": 60})["expires_at"]
        < made["expires_at"]
    )
    refusal = refused(boss, "POST", path, {"name": "long", "expires_in_seconds": 7_200})
    assert refusal[0] == "expires_in_seconds"
    assert not APIKey.objects.filter(name="long").exists()


def test_a_key_that_only_manages_makes_keys_for_completions(boss: Person, research: str) -> None:
    APIKey.objects.filter(pk=boss.api_key.pk).update(scopes=[KeyScope.MANAGEMENT])
    account = said(boss, "POST", f"{research}/service_accounts", {"name": "ci"})
    assert look_up(account["api_key"]["value"]).scopes == frozenset()
    assert said(boss, "POST", f"{HERE}/admin_api_keys", {"name": "second"})["owner"]["role"] == "owner"
    assert APIKey.objects.get(name="second").scopes == [KeyScope.MANAGEMENT]


def test_a_key_for_some_models_makes_none_for_others(boss: Person, research: str) -> None:
    APIKey.objects.filter(pk=boss.api_key.pk).update(allowed_models=["small"])
    account = said(boss, "POST", f"{research}/service_accounts", {"name": "bot"})
    second = said(boss, "POST", f"{research}/service_accounts/{account['id']}/api_keys", {})
    made = APIKey.objects.filter(pk__in=[account["api_key"]["id"], second["id"]])
    assert [row.allowed_models for row in made] == [["small"], ["small"]]


def test_keys_have_the_addresses_that_were_sent(boss: Person, bob: Person, research: str) -> None:
    listed, stored = ["10.0.0.1/32", "2001:DB8::/32"], ["10.0.0.1", "2001:db8::/32"]
    account = said(boss, "POST", f"{research}/service_accounts", {"name": "bot", "allowed_ips": listed})
    own = f"{research}/service_accounts/{account['id']}/api_keys"
    second = said(boss, "POST", own, {"allowed_ips": listed})
    assert account["api_key"]["allowed_ips"] == second["allowed_ips"] == stored
    assert said(boss, "POST", own, {})["allowed_ips"] == []
    path = f"{research}/api_keys/{bob.api_key.pk}"
    assert said(boss, "POST", path, {"allowed_ips": listed})["allowed_ips"] == stored
    assert said(boss, "POST", path, {"scopes": ["models"]})["allowed_ips"] == stored
    assert said(boss, "GET", path)["allowed_ips"] == stored
    entry = AuditEntry.objects.filter(object_id=str(bob.api_key.pk)).earliest("pk")
    assert (entry.changes, entry.actor_key_id) == ({"allowed_ips": [[], stored]}, boss.api_key.pk)
    assert said(boss, "POST", path, {"allowed_ips": []})["allowed_ips"] == []


@pytest.mark.parametrize("path", ["/api_keys/{key}", "/service_accounts"])
@pytest.mark.parametrize("wrong", [["soon"], ["10.0.0.5/8"], [7], "10.0.0.1", ["10.0.0.1"] * 33, ["1" * 101]])
def test_a_wrong_address_is_a_400(boss: Person, bob: Person, research: str, path: str, wrong: Any) -> None:
    path = f"{research}{path.format(key=bob.api_key.pk)}"
    param, _ = refused(boss, "POST", path, {"allowed_ips": wrong} | ({} if "{" in path else {"name": "bot"}))
    assert param is not None


def test_a_service_account_without_a_key_has_no_addresses(boss: Person, research: str) -> None:
    sent = {"name": "bot", "create_service_account_only": True, "allowed_ips": ["10.0.0.1"]}
    assert refused(boss, "POST", f"{research}/service_accounts", sent)[0] == "allowed_ips"


def test_an_admin_key_makes_none_for_more_addresses(boss: Person) -> None:
    path = f"{HERE}/admin_api_keys"
    listed = {"name": "any", "allowed_ips": ["10.0.0.1"]}
    assert said(boss, "POST", path, {"name": "any"})["allowed_ips"] == []
    assert said(boss, "POST", path, listed)["allowed_ips"] == ["10.0.0.1"]
    APIKey.objects.filter(pk=boss.api_key.pk).update(allowed_ips=["127.0.0.1", "10.0.0.0/8"])
    assert said(boss, "POST", path, {"name": "same"})["allowed_ips"] == ["127.0.0.1", "10.0.0.0/8"]
    made = said(boss, "POST", path, listed)
    assert said(boss, "GET", f"{path}/{made['id']}")["allowed_ips"] == ["10.0.0.1"]
    for wider in ([], ["10.0.0.0/7"], ["10.0.0.1", "::1"], ["soon"]):
        assert refused(boss, "POST", path, {"name": "more", "allowed_ips": wider})[0] == "allowed_ips"


def test_an_expired_key_stays_expired(boss: Person, bob: Person, research: str) -> None:
    APIKey.objects.filter(pk=bob.api_key.pk).update(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    path = f"{research}/api_keys/{bob.api_key.pk}"
    assert refused(boss, "POST", path, {"expires_in_seconds": 60})[0] == "api_key_id"
    assert said(boss, "GET", path)["owner_project_access"] == "inactive"


@pytest.mark.parametrize("path", ["admin_api_keys", "projects/{project}/service_accounts/{account}/api_keys"])
def test_expired_keys_take_no_place(
    boss: Person, research: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "_MOST_ROWS", 2)
    account = said(boss, "POST", f"{research}/service_accounts", {"name": "backend"})["id"]
    path = f"{HERE}/{path.format(project=research.rpartition('/')[2], account=account)}"
    second = said(boss, "POST", path, {"name": "second"})["id"]
    assert refused(boss, "POST", path, {"name": "third"})[1] == "too_many_objects"
    APIKey.objects.filter(pk=second).update(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    said(boss, "POST", path, {"name": "third"})


def test_a_key_was_used_when_its_newest_request_was_admitted(
    boss: Person, bob: Person, research: str
) -> None:
    path = f"{research}/api_keys/{bob.api_key.pk}"
    assert said(boss, "GET", path)["last_used_at"] is None
    generation = run(bob)
    assert said(boss, "GET", path)["last_used_at"] == int(generation.admitted_at.timestamp())


# ---- projects


def test_a_change_of_a_project_without_a_name_leaves_it_as_it_is(boss: Person, research: str) -> None:
    before = said(boss, "GET", research)
    entries = AuditEntry.objects.count()
    for body in ({}, {"name": None}):
        assert said(boss, "POST", research, body) == before
    assert AuditEntry.objects.count() == entries
    assert refused(boss, "POST", research, {"name": ""}) == ("name", "invalid_value")
    assert said(boss, "POST", research, {"name": "labs"})["name"] == "labs"


def test_an_archived_project_refuses_its_keys_and_every_change(
    boss: Person, bob: Person, research: str
) -> None:
    archived = said(boss, "POST", f"{research}/archive")
    assert (archived["status"], said(boss, "POST", f"{research}/archive")) == ("archived", archived)
    assert bob.get("/v1/key").status_code == 401
    assert said(boss, "GET", research)["archived_at"] == archived["archived_at"]
    assert refused(boss, "POST", research, {"name": "other"}) == ("project_id", "project_archived")
    account = {"name": "backend"}
    assert refused(boss, "POST", f"{research}/service_accounts", account)[1] == "project_archived"
    assert [each["name"] for each in said(boss, "GET", f"{HERE}/projects")["data"]] == ["default"]
    project = Project.objects.get(pk=bob.project.pk)
    project.is_active = True
    project.save()
    assert said(boss, "GET", research)["archived_at"] is None


def test_a_key_does_not_archive_its_own_project(boss: Person) -> None:
    assert refused(boss, "POST", f"{HERE}/projects/{boss.project.pk}/archive")[0] == "project_id"


@pytest.mark.parametrize(("key", "status"), [("admin", 200), ("owner", 403)])
def test_a_project_with_the_key_of_a_higher_role_is_not_archived(
    alice: Person, bob: Person, research: str, key: str, status: int
) -> None:
    alice.manage_as("admin")
    bob.manage_as(key)
    said(alice, "POST", f"{research}/archive", status=status)
    assert is_let_in(bob.key) is (status == 403)


def test_a_projects_list_of_models_narrows_what_its_keys_use(
    boss: Person, bob: Person, research: str, small: ServedModel
) -> None:
    def models() -> list[str]:
        return [each["id"] for each in said(bob, "GET", "/v1/models")["data"]]

    path = f"{research}/model_permissions"
    assert models() == ["small"]
    said(boss, "POST", path, {"mode": "deny_list", "model_ids": ["small"]})
    assert models() == []
    said(boss, "POST", path, {"mode": "allow_list", "model_ids": ["small"]})
    assert models() == ["small"]
    said(boss, "POST", path, {"mode": "allow_list", "model_ids": []})
    assert models() == []
    said(boss, "DELETE", path)
    assert models() == ["small"]
    assert refused(boss, "DELETE", path, status=404)[1] == "not_found"
    # As the admin's page saves it, if models stay chosen.
    Project.objects.filter(pk=bob.project.pk).update(models_mode="", listed_models=["small"])
    assert models() == ["small"]
    assert said(boss, "GET", path)["model_ids"] == []


# ---- limits


def test_a_rate_limit_is_the_row_of_the_admins_page(boss: Person, bob: Person, research: str) -> None:
    path = f"{research}/rate_limits/rl-*"
    assert said(boss, "POST", path, {"max_requests_per_1_minute": 60})["max_tokens_per_1_minute"] == 2**53
    row = RateLimit.objects.get(project=bob.project)
    assert (row.model, row.requests_per_minute, row.tokens_per_minute) == ("", 60, None)
    said(boss, "POST", path, {"max_concurrent_requests": 3})
    assert [str(limit) for limit in bob.caller.rate_limits] == [
        "60 requests per minute for this project", "3 concurrent requests for this project",
    ]  # fmt: skip
    said(boss, "POST", path, {"max_requests_per_1_minute": 2**53, "max_concurrent_requests": 2**53})
    assert not RateLimit.objects.exists()


def test_a_rate_limit_of_a_deleted_model_can_be_removed(boss: Person, bob: Person, research: str) -> None:
    RateLimit.objects.create(project=bob.project, model="gone", requests_per_minute=60)
    path = f"{research}/rate_limits"
    assert "rl-gone" in {each["id"] for each in said(boss, "GET", path)["data"]}
    said(boss, "POST", f"{path}/rl-gone", {"max_requests_per_1_minute": 2**53})
    assert not RateLimit.objects.exists()
    assert refused(boss, "POST", f"{path}/rl-gone", {}, 404)[1] == "not_found"


def test_the_console_saves_each_spend_limit_that_the_api_takes(
    boss: Person, bob: Person, research: str
) -> None:
    most = {"currency": "USD", "interval": "month", "threshold_amount": 1_000_000_00}
    said(boss, "POST", f"{research}/spend_limit", most)
    page = url(bob, f"budgets/{BudgetLimit.objects.get().pk}")
    form = client_of(boss.user).get(page).context["form"]
    sent = {"limit_nanodollars": form["limit_nanodollars"].value(), "soft_limit_nanodollars": "7"}
    assert client_of(boss.user).post(page, sent).status_code == 302
    error = said(boss, "POST", f"{research}/spend_limit", most | {"threshold_amount": 1_000_000_01}, 400)
    assert "<= 100000000" in error["error"]["message"]
    assert BudgetLimit.objects.get().limit_nanodollars == 10**15


def test_a_spend_limit_enforces_from_the_next_request_on(
    boss: Person, bob: Person, research: str, small: ServedModel
) -> None:
    run(bob)
    spend = {"currency": "USD", "interval": "month", "threshold_amount": 0}
    assert said(boss, "POST", f"{research}/spend_limit", spend)["enforcement"] == {"status": "enforcing"}
    more = spend | {"threshold_amount": 100}
    assert said(boss, "POST", f"{research}/spend_limit", more)["enforcement"] == {"status": "inactive"}
    limit = BudgetLimit.objects.get(scope="project", scope_id=bob.project.pk, period="month")
    assert limit.limit_nanodollars == 10**9
    BudgetLimit.objects.update(soft_limit_nanodollars=5)
    said(boss, "DELETE", f"{research}/spend_limit")
    assert refused(boss, "GET", f"{research}/spend_limit", status=404) == ("project_id", "not_found")
    assert refused(boss, "GET", f"{HERE}/spend_limit", status=404) == (None, "not_found")
    assert BudgetLimit.objects.get().soft_limit_nanodollars == 5


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "spend_limit", {"currency": "USD", "interval": "month", "threshold_amount": 100}),
        ("DELETE", "spend_limit", None),
        ("POST", "rate_limits/rl-*", {"max_requests_per_1_minute": 60}),
    ],
)
def test_a_change_keeps_what_a_page_saves_at_that_moment(
    transactional_db: None, boss: Person, research: str, method: str, path: str, body: Any
) -> None:
    project_id = int(research.rpartition("/")[2])
    RateLimit.objects.create(project_id=project_id, requests_per_minute=9, tokens_per_minute=9)
    limit = BudgetLimit.new(LimitKey("project", project_id, "month"))
    limit.limit_nanodollars = 9
    limit.save()
    said(boss, "GET", f"{research}/spend_limit")  # The first request of a process takes long.

    def change() -> Any:
        try:
            return boss.send(method, f"{research}/{path}", body).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            RateLimit.objects.update(tokens_per_minute=5)
            BudgetLimit.objects.update(soft_limit_nanodollars=5)
            changed = others.submit(change)
            wait([changed], timeout=0.3)
        assert changed.result() == 200
    assert RateLimit.objects.get().tokens_per_minute == 5
    assert BudgetLimit.objects.get().soft_limit_nanodollars == 5


# ---- the audit log


def test_each_change_is_recorded_under_the_keys_name(boss: Person, bob: Person, research: str) -> None:
    made = said(boss, "POST", f"{research}/service_accounts", {"name": "backend"})
    said(boss, "DELETE", f"{research}/api_keys/{made['api_key']['id']}")
    said(boss, "POST", f"{research}/rate_limits/rl-*", {"max_requests_per_1_minute": 60})
    spend = {"currency": "USD", "interval": "month", "threshold_amount": 100}
    said(boss, "POST", f"{research}/spend_limit", spend)
    said(boss, "POST", f"{HERE}/invites", {"email": "dora@example.com", "role": "reader"})
    said(boss, "POST", f"{research}/archive")
    page = said(boss, "GET", f"{HERE}/audit_logs")["data"]
    assert [each["type"] for each in page] == [
        "project.archived", "user.added", "spend_limit.created", "rate_limit.created", "api_key.deleted",
        "api_key.created", "service_account.created",
    ]  # fmt: skip
    assert {each["actor"]["api_key"]["id"] for each in page} == {str(boss.api_key.pk)}
    assert {each["actor"]["name"] for each in page} == {f"API key {boss.api_key}"}
    assert page[0]["project"] == {"id": str(bob.project.pk), "name": "Acme / research"}
    assert page[1]["user.added"]["data"]["role"] == "viewer"
    for each in page:
        assert each in said(boss, "GET", f"{HERE}/audit_logs?event_types={each['type']}")["data"]
    for other in ("user.created", "accounts.member.created", "accounts.project.created"):
        assert said(boss, "GET", f"{HERE}/audit_logs?event_types={other}")["data"] == []


def test_a_refused_change_leaves_no_trace(boss: Person, research: str) -> None:
    body = {"name": "shop", "unknown": 1}
    refused(boss, "POST", f"{HERE}/projects", body)
    refused(boss, "POST", f"{research}/spend_limit", {"currency": "USD"})
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("event_types[]=project.created", 1),
        ("event_types[]=project.archived&event_types[]=project.created", 2),
        ("event_types[]=project.updated", 1),
        ("event_types[]=usage.generation.asked_to_stop", 1),
        ("event_types[]=project.changed", 0),
        ("event_types[]=no.such", 0),
        ("effective_at[gt]=9999999999", 0),
        ("effective_at[lte]=9999999999", 4),
        ("resource_ids[]={project}", 3),
        ("project_ids[]={project}", 3),
        ("actor_ids[]={key}", 3),
        ("actor_ids[]=999", 0),
        ("actor_emails[]=alice@example.com", 0),
        ("tenant_only=true", 0),
    ],
)
def test_the_audit_log_is_filtered(boss: Person, query: str, count: int) -> None:
    project = said(boss, "POST", f"{HERE}/projects", {"name": "shop"})["id"]
    said(boss, "POST", f"{HERE}/projects/{project}", {"name": "web shop"})
    said(boss, "POST", f"{HERE}/projects/{project}/archive")
    with recorder.acting(lambda: recorder.Actor(None, "root")):
        recorder.record("asked to stop", run(boss))
    query = query.replace("{project}", project).replace("{key}", str(boss.api_key.pk))
    assert len(said(boss, "GET", f"{HERE}/audit_logs?{query}")["data"]) == count


@pytest.mark.parametrize(
    ("query", "count"), [("[gt]=10", 0), ("[gte]=10", 2), ("[gte]=11", 0), ("[lt]=10", 0), ("[lte]=10", 2)]
)
def test_the_audit_log_compares_the_seconds_that_it_shows(boss: Person, query: str, count: int) -> None:
    for milliseconds in (10_000, 10_400):
        AuditEntry.objects.create(
            at=datetime.fromtimestamp(milliseconds / 1_000, UTC), actor="alice", action="created",
            object_type="accounts.project", organization_id=boss.project.organization_id,
        )  # fmt: skip
    found = said(boss, "GET", f"{HERE}/audit_logs?effective_at{query}&event_types=project.created")["data"]
    assert [each["effective_at"] for each in found] == [10] * count


def test_the_audit_log_of_a_project_has_what_it_has_lost(boss: Person, bob: Person, research: str) -> None:
    account = said(boss, "POST", f"{research}/service_accounts", {"name": "backend"})["id"]
    said(boss, "DELETE", f"{research}/service_accounts/{account}")
    for path in (research, f"{HERE}/projects/{boss.project.pk}"):
        said(boss, "POST", f"{path}/rate_limits/rl-*", {"max_requests_per_1_minute": 60})
    spend = {"currency": "USD", "interval": "month", "threshold_amount": 100}
    said(boss, "POST", f"{research}/spend_limit", spend)
    said(boss, "DELETE", f"{research}/spend_limit")
    with recorder.acting(lambda: recorder.Actor(None, "root")):
        BudgetLimit.objects.create(scope="key", scope_id=bob.api_key.pk, period="day", limit_nanodollars=5)
    found = said(boss, "GET", f"{HERE}/audit_logs?project_ids={bob.project.pk}")["data"]
    assert [each["type"] for each in found] == [
        "spend_limit.created", "spend_limit.deleted", "spend_limit.created", "rate_limit.created",
        "service_account.deleted", "api_key.deleted", "api_key.created", "service_account.created",
    ]  # fmt: skip
    project = {"id": str(bob.project.pk), "name": "Acme / research"}
    assert [each["project"] for each in found] == [project] * len(found)


# ---- the admin's pages


def test_no_member_takes_over_a_key_with_a_role_above_their_own(alice: Person, bob: Person) -> None:
    Member.objects.filter(user=bob.user).update(role=Role.ADMIN)
    pages = client_of(bob.user)
    page = f"/admin/accounts/apikey/{alice.api_key.pk}"
    alice.manage_as("admin")
    assert pages.get(f"{page}/rotate/").status_code == 200
    alice.manage_as("owner")
    assert pages.get(f"{page}/rotate/").status_code == 403
    pages.post(
        "/admin/accounts/apikey/",
        {"action": "disable_selected", "_selected_action": [str(alice.api_key.pk)]},
    )
    assert APIKey.objects.get(pk=alice.api_key.pk).is_active


def test_no_member_gives_a_key_a_role_above_their_own(alice: Person, bob: Person) -> None:
    Member.objects.filter(user=bob.user).update(role=Role.ADMIN)
    form = {"project": str(bob.project.pk), "name": "more", "is_admin": "on", "manages_as": "owner"}
    page = client_of(bob.user).post("/admin/accounts/apikey/add/", form)
    assert "above your own" in page.content.decode()
    assert not APIKey.objects.filter(name="more").exists()
    page = client_of(bob.user).post("/admin/accounts/apikey/add/", form | {"manages_as": "admin"})
    assert APIKey.objects.get(name="more").manages_as == "admin"
