"""The management API and people: roles, invitations and their mail, and the same audit log as the console."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urljoin

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db import connection, transaction
from django.test import Client
from django.utils.text import capfirst
from pytest_django import Settings

from accounts import acceptance, groups, keys, memberships
from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from accounts.limits import HIGHEST
from accounts.models import APIKey, Member, Organization, Project, RateLimit, Role, ServiceAccount
from accounts.sign_in import attempts
from chatapi.models import ServedModel
from chatapi.notifications import webhooks
from chatapi.notifications.models import WebhookEndpoint
from tests.admin_pages import client_of
from tests.cast import Person, run
from tests.chatapi.console_pages import url
from tests.chatapi.management import HERE, refused, said
from tests.chatapi.signing_in import choose, link_in, who
from tests.opened_forms import opened
from usage.models import BudgetLimit
from usage.payment import metered_usage

pytestmark = pytest.mark.usefixtures("db")


def test_nobody_is_given_a_role_above_the_keys(alice: Person, bob: Person) -> None:
    alice.manage_as("admin")
    Member.objects.filter(user=alice.user).update(role=Role.OWNER)
    User.objects.update(last_login=datetime.now(UTC))
    invitation = {"email": "dora@example.com", "role": "owner"}
    assert refused(alice, "POST", f"{HERE}/invites", invitation, 403)[1] == "permission_denied"
    for person, role in ((bob, "owner"), (alice, "reader")):
        path = f"{HERE}/users/{person.user.pk}"
        assert refused(alice, "POST", path, {"role": role}, 403)[1] == "permission_denied"
    assert refused(alice, "DELETE", f"{HERE}/users/{alice.user.pk}", status=403)[1] == "permission_denied"
    assert said(alice, "POST", f"{HERE}/users/{bob.user.pk}", {"role": "reader"})["role"] == "reader"
    assert Member.objects.get(user=bob.user).role == "viewer"


def test_a_role_is_changed_by_its_name_or_its_id(boss: Person, bob: Person) -> None:
    User.objects.update(last_login=datetime.now(UTC))
    path = f"{HERE}/users/{bob.user.pk}"
    for body, role in (
        ({"role_id": "role_admin"}, "admin"),
        ({}, "admin"),
        ({"role": "reader", "role_id": "role_reader"}, "reader"),
    ):
        assert said(boss, "POST", path, body)["role"] == role
    assert said(boss, "POST", f"{path}/roles", {"role_id": "role_member"})["role"]["name"] == "member"
    assert [each["id"] for each in said(boss, "GET", f"{path}/roles")["data"]] == ["role_member"]
    assert refused(boss, "POST", path, {"role": "owner", "role_id": "role_reader"})[0] == "role_id"
    assert refused(boss, "POST", path, {"role_id": "role_x"}, 404)[0] == "role_id"
    assert refused(boss, "GET", f"{path}/roles/role_owner", status=404)[0] == "role_id"
    boss.manage_as("admin")
    assert refused(boss, "POST", f"{path}/roles", {"role_id": "role_owner"}, 403)[1] == "permission_denied"


def test_roles_are_described_in_the_words_of_the_console(boss: Person) -> None:
    roles = {each["name"]: each["description"] for each in said(boss, "GET", f"{HERE}/roles")["data"]}
    assert roles["reader"] == "Read usage, requests, receipts, budgets, limits, statements, members and keys."
    meanings = client_of(boss.user).get(url(boss, "members")).context["meanings"]
    assert [f"{capfirst(meaning)}." for _, meaning in meanings] == [*roles.values()]


def test_any_address_is_invited(boss: Person) -> None:
    address = "o'brien/x@acme.example"
    assert said(boss, "POST", f"{HERE}/invites", {"email": address, "role": "reader"})["email"] == address
    User.objects.update(last_login=datetime.now(UTC))
    (found,) = said(boss, "GET", f"{HERE}/users?emails={quote(address)}")["data"]
    assert found["name"] == address


def test_an_invitation_to_projects_is_limited_to_them(boss: Person, bob: Person, charlie: Person) -> None:
    def invited(project: Person, role: str) -> dict[str, Any]:
        named = {"id": str(project.project.pk), "role": role}
        return {"email": "dora@example.com", "role": "reader", "projects": [named]}

    path = f"{HERE}/invites"
    assert refused(boss, "POST", path, invited(charlie, "member"), 404)[1] == "not_found"
    assert refused(boss, "POST", path, invited(bob, "owner"))[0] == "projects"
    made = said(boss, "POST", path, invited(bob, "member"))
    own = [{"id": str(bob.project.pk), "role": "member"}]
    assert (made["status"], made["projects"]) == ("pending", own)
    assert said(boss, "GET", f"{path}/{made['id']}")["projects"] == own
    member = Member.objects.get(pk=made["id"])
    assert (member.role, member.is_limited, [*member.projects.all()]) == ("viewer", True, [bob.project])
    # Owners and admins see all, and so do people who are invited without projects.
    for role in ("admin", "owner"):
        sent = invited(bob, "owner") | {"role": role, "email": f"{role}@example.com"}
        assert said(boss, "POST", path, sent)["projects"] == []
    assert said(boss, "POST", path, {"email": "e@example.com", "role": "member"})["projects"] == []
    assert Member.objects.filter(is_limited=True).count() == 1
    # As OpenAI's: an empty list is no project at all.
    made = said(boss, "POST", path, {"email": "f@example.com", "role": "member", "projects": []})
    assert memberships.projects_seen(Member.objects.get(pk=made["id"])) == "none"
    said(boss, "POST", path, {"email": "g@example.com", "role": "owner", "projects": []})


@pytest.mark.usefixtures("mailing", "counting")
def test_an_invitation_to_projects_names_no_key(
    boss: Person, bob: Person, mailoutbox: list[EmailMessage], settings: Settings
) -> None:
    settings.PUBLIC_URL = "http://testserver"
    named = [{"id": str(bob.project.pk), "role": "member"}]
    sent = {"email": "dora@example.com", "role": "reader", "projects": named}
    made = said(boss, "POST", f"{HERE}/invites", sent)
    page = Client().get(made["url"], follow=True).content.decode()
    assert "Acme&#x27;s API key invited you to the project research of Acme" in page
    text = f"{mailoutbox[0].subject} {mailoutbox[0].body}"
    assert "Acme's API key invites you to the project research of Acme" in text
    assert f"API key {boss.api_key.name}" not in page + text


def test_users_say_to_which_projects_they_are_limited(boss: Person, bob: Person) -> None:
    User.objects.update(last_login=datetime.now(UTC))
    path = f"{HERE}/users/{bob.user.pk}"
    assert said(boss, "GET", path)["projects"] is None
    memberships.change_place(Member.objects.get(user=bob.user), Role.MEMBER, [bob.project])
    own = {"id": str(bob.project.pk), "name": "research", "role": "member"}
    shown = said(boss, "GET", f"{HERE}/users")["data"]
    assert [each["projects"] for each in shown] == [None, {"object": "list", "data": [own]}]
    said(boss, "DELETE", f"{HERE}/projects/{bob.project.pk}/users/{bob.user.pk}")
    assert said(boss, "GET", path)["projects"] == {"object": "list", "data": []}


def test_a_spend_alert_says_why_a_limited_member_gets_none(boss: Person, bob: Person) -> None:
    User.objects.filter(pk=bob.user.pk).update(email="bob@example.com", last_login=datetime.now(UTC))
    memberships.change_place(Member.objects.get(user=bob.user), Role.MEMBER, [bob.project])
    channel = {"type": "email", "recipients": ["bob@example.com"]}
    sent = {"threshold_amount": 100, "currency": "USD", "interval": "month", "notification_channel": channel}
    answer = boss.send("POST", f"{HERE}/spend_alerts", sent)
    assert answer.status_code == 400
    message = "is not the address of a member who has signed in and sees all projects."
    assert message in answer.json()["error"]["message"]


def test_a_limited_member_is_listed_at_their_projects(boss: Person, bob: Person) -> None:
    User.objects.update(last_login=datetime.now(UTC))
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [bob.project])
    user = bob.user.pk
    of_bob, of_boss = (f"{HERE}/projects/{each.project.pk}/users" for each in (bob, boss))

    def names(path: str) -> set[str]:
        return {each["name"] for each in said(boss, "GET", path)["data"]}

    assert (names(of_bob), names(of_boss)) == ({"alice", "bob"}, {"alice"})
    assert names(f"{HERE}/users") == {"alice", "bob"}
    assert said(boss, "GET", f"{of_bob}/{user}")["role"] == "member"
    for method in ("GET", "POST", "DELETE"):
        body = {"role": "member"} if method == "POST" else None
        assert refused(boss, method, f"{of_boss}/{user}", body, 404)[0] == "user_id"
    assert refused(boss, "POST", of_boss, {"user_id": str(user), "role": "owner"})[0] == "role"
    assert names(of_boss) == {"alice"}
    for _ in range(2):
        assert said(boss, "POST", of_boss, {"user_id": str(user), "role": "member"})["id"] == str(user)
    assert (names(of_bob), names(of_boss)) == ({"alice", "bob"}, {"alice", "bob"})
    gone = said(boss, "DELETE", f"{of_bob}/{user}")
    assert gone == {"object": "organization.project.user.deleted", "id": str(user), "deleted": True}
    said(boss, "DELETE", f"{of_boss}/{user}")
    assert (names(of_bob), names(of_boss)) == ({"alice"}, {"alice"})
    member.refresh_from_db()
    assert (member.is_limited, member.projects.count()) == (True, 0), "never everything"
    assert client_of(bob.user).get(url(bob, "overview")).status_code == 404


def test_a_member_of_all_projects_is_changed_by_none(boss: Person, bob: Person) -> None:
    User.objects.update(last_login=datetime.now(UTC))
    path = f"{HERE}/projects/{boss.project.pk}/users"
    assert said(boss, "POST", path, {"user_id": str(bob.user.pk), "role": "member"})["role"] == "member"
    assert not Member.objects.get(user=bob.user).projects.exists()
    assert refused(boss, "DELETE", f"{path}/{bob.user.pk}")[0] == "user_id"
    answer = boss.send("DELETE", f"{path}/{bob.user.pk}").json()
    assert "this member sees all projects" in answer["error"]["message"]


def test_a_limited_member_is_given_no_higher_role(boss: Person, bob: Person) -> None:
    User.objects.update(last_login=datetime.now(UTC))
    memberships.change_place(Member.objects.get(user=bob.user), Role.MEMBER, [bob.project])
    path = f"{HERE}/users/{bob.user.pk}"
    assert refused(boss, "POST", path, {"role": "admin"})[0] == "role"
    assert said(boss, "POST", path, {"role": "reader"})["role"] == "reader"
    assert Member.objects.get(user=bob.user).is_limited


@pytest.mark.parametrize("query", ["users?emails=", "audit_logs?actor_emails="])
def test_people_are_found_by_their_address_in_any_case(boss: Person, query: str) -> None:
    User.objects.filter(pk=boss.user.pk).update(email="alice@Acme.example", last_login=datetime.now(UTC))
    with recorder.acting(lambda: recorder.Actor(boss.user.pk, "alice")):
        recorder.record("closed", boss.project)
    assert len(said(boss, "GET", f"{HERE}/{query}ALICE@acme.example")["data"]) == 1
    assert len(said(boss, "GET", f"{HERE}/{query}alice@Acme.example")["data"]) == 1


def test_an_invitation_link_ends_with_the_right_to_send_it(boss: Person) -> None:
    invitation = {"email": "dora@example.com", "role": "admin"}
    path = said(boss, "POST", f"{HERE}/invites", invitation)["url"]
    opened = client_of(boss.user)

    def is_open() -> bool:
        return opened.get(path).status_code == 302

    assert is_open()
    APIKey.objects.update(manages_as="member")
    assert not is_open()
    APIKey.objects.update(manages_as="owner", is_active=False)
    assert not is_open()
    APIKey.objects.update(is_active=True)
    assert is_open()
    assert refused(boss, "POST", f"{HERE}/invites", invitation)[0] == "email"


@pytest.mark.usefixtures("mailing", "counting")
def test_an_invitation_is_mailed_as_the_consoles_is(
    mailoutbox: list[EmailMessage], boss: Person, settings: Settings
) -> None:
    settings.PUBLIC_URL = "http://testserver"
    invitation = {"email": "dora@example.com", "role": "reader"}
    made = said(boss, "POST", f"{HERE}/invites", invitation)
    assert made["mailed"] is True
    (mail,) = mailoutbox
    assert mail.to == ["dora@example.com"]
    assert f"API key {boss.api_key.name} invites you to Acme as viewer." in str(mail.body)
    assert made["url"] not in str(mail.body)
    visitor = Client()
    choose(visitor, link_in(mail))
    assert who(visitor) == "dora@example.com"
    assert EmailAddress.objects.get(user__username="dora@example.com").verified


@pytest.mark.usefixtures("mailing", "counting")
def test_mail_of_invitations_is_bounded_and_the_invitation_is_not(
    mailoutbox: list[EmailMessage], boss: Person, settings: Settings
) -> None:
    settings.PUBLIC_URL = "http://testserver"
    made = [
        said(boss, "POST", f"{HERE}/invites", {"email": f"{number}@example.com", "role": "reader"})
        for number in range(attempts.MAX_MAILS_PER_NETWORK + 1)
    ]
    assert [each["mailed"] for each in made] == [True] * attempts.MAX_MAILS_PER_NETWORK + [False]
    assert len(mailoutbox) == attempts.MAX_MAILS_PER_NETWORK
    assert made[-1]["url"].startswith("/console/invitation/")


@pytest.mark.parametrize("sends_email", [False, True])
def test_without_a_mail_server_or_a_public_url_an_invitation_has_its_path_only(
    mailoutbox: list[EmailMessage], boss: Person, settings: Settings, sends_email: bool
) -> None:
    settings.SENDS_EMAIL = sends_email
    made = said(boss, "POST", f"{HERE}/invites", {"email": "dora@example.com", "role": "reader"})
    assert (made["mailed"], mailoutbox) == (False, [])
    assert made["url"]


@pytest.mark.parametrize("path", ["/users", "/projects/{}/users"])
def test_pages_of_people_reach_everyone_once(boss: Person, path: str) -> None:
    people = [User.objects.create_user(f"person-{number}") for number in range(9)]
    # People and memberships have numbers of their own, here in opposite orders.
    for person in people[:3:-1]:
        Member.objects.create(organization=boss.project.organization, user=person, role=Role.VIEWER)
    User.objects.update(last_login=datetime.now(UTC))
    seen: list[str] = []
    query = "limit=2"
    for _ in range(3):
        page = said(boss, "GET", f"{HERE}{path.format(boss.project.pk)}?{query}")
        seen += [each["name"] for each in page["data"]]
        query = f"limit=2&after={page['last_id']}"
    assert sorted(seen) == ["alice", *(person.username for person in people[4:])]
    assert page["has_more"] is False


def test_a_member_is_removed(boss: Person, bob: Person) -> None:
    User.objects.filter(pk=bob.user.pk).update(last_login=datetime.now(UTC))
    gone = said(boss, "DELETE", f"{HERE}/users/{bob.user.pk}")
    assert gone == {"object": "organization.user.deleted", "id": str(bob.user.pk), "deleted": True}
    assert not Member.objects.filter(user=bob.user).exists()
    assert refused(boss, "GET", f"{HERE}/users/{bob.user.pk}", status=404)[1] == "not_found"


@pytest.mark.parametrize("email", ["c@example.com", "C@Example.com"])
def test_an_address_of_another_organization_is_invited_once(
    boss: Person, charlie: Person, email: str
) -> None:
    User.objects.filter(pk=charlie.user.pk).update(username="c@example.com", email="c@example.com")
    before = [*Member.objects.filter(user=charlie.user)]
    assert said(boss, "POST", f"{HERE}/invites", {"email": email, "role": "reader"})["email"] == email.lower()
    assert refused(boss, "POST", f"{HERE}/invites", {"email": email, "role": "reader"})[0] == "email"
    assert [*Member.objects.filter(user=charlie.user)] == before


# ---- the audit log has the same rows of a change by the console

Form = dict[str, str | list[str]]
Change = tuple[str, Form, str, str, dict[str, Any] | None]
"""The console's path, or the admin's, and form; the API's method, path and body."""
ALERT = {
    "currency": "USD",
    "interval": "month",
    "threshold_amount": 100,
    "notification_channel": {"type": "email", "recipients": ["bob@example.com"]},
}
CHANGES: dict[str, Change] = {
    "a project": ("projects/new", {"name": "shop"}, "POST", "projects", {"name": "shop"}),
    "a project's name": (
        "settings/projects/{old_project}",
        {"name": "shop", "stores_responses_days": "0"},
        "POST",
        "projects/{old_project}",
        {"name": "shop"},
    ),
    "an organization's data retention": (
        "settings",
        {"name": "Acme", "time_zone": "UTC", "forbids_stored_responses": "on"},
        "POST",
        "data_retention",
        {"retention_type": "zero_data_retention"},
    ),
    "an archived project": (
        "/admin/accounts/project/{old_project}/change/",
        {"name": "old", "models_mode": "", "stores_responses_days": "0"},
        "POST",
        "projects/{old_project}/archive",
        None,
    ),
    "a rate limit": (
        "budgets/rate-limits/new",
        {"project": "{project}", "requests_per_minute": "60"},
        "POST",
        "projects/{project}/rate_limits/rl-*",
        {"max_requests_per_1_minute": 60},
    ),
    "a budget": (
        "budgets/new",
        {"project": "{project}", "period": "month", "limit_nanodollars": "1"},
        "POST",
        "projects/{project}/spend_limit",
        {"currency": "USD", "interval": "month", "threshold_amount": 100},
    ),
    "a spend alert": (
        "budgets/alerts/new",
        {"project": "{project}", "threshold": "1", "recipients": "{user}"},
        "POST",
        "projects/{project}/spend_alerts",
        ALERT,
    ),
    "a spend alert of the organization": (
        "budgets/alerts/new",
        {"project": "", "threshold": "1", "recipients": "{user}"},
        "POST",
        "spend_alerts",
        ALERT,
    ),
    "a spend alert's removal": (
        "budgets/alerts/{alert}/remove",
        {},
        "DELETE",
        "projects/{limited_project}/spend_alerts/{alert}",
        None,
    ),
    "another budget": (
        "budgets/{budget}",
        {"limit_nanodollars": "2"},
        "POST",
        "projects/{limited_project}/spend_limit",
        {"currency": "USD", "interval": "month", "threshold_amount": 200},
    ),
    "a budget's removal": (
        "budgets/{budget}/remove",
        {},
        "DELETE",
        "projects/{limited_project}/spend_limit",
        None,
    ),
    "another rate limit": (
        "budgets/rate-limits/{rate_limit}",
        {"requests_per_minute": "61"},
        "POST",
        "projects/{limited_project}/rate_limits/rl-*",
        {"max_requests_per_1_minute": 61},
    ),
    "a rate limit's removal": (
        "budgets/rate-limits/{rate_limit}/remove",
        {},
        "POST",
        "projects/{limited_project}/rate_limits/rl-*",
        {"max_requests_per_1_minute": HIGHEST},
    ),
    "a list of models": (
        "/admin/accounts/project/{old_project}/change/",
        {
            "name": "old",
            "is_active": "on",
            "models_mode": "allow_list",
            "listed_models": "small",
            "stores_responses_days": "0",
        },
        "POST",
        "projects/{old_project}/model_permissions",
        {"mode": "allow_list", "model_ids": ["small"]},
    ),
    "a list of models' removal": (
        "/admin/accounts/project/{limited_project}/change/",
        {"name": "limited", "is_active": "on", "models_mode": "", "stores_responses_days": "0"},
        "DELETE",
        "projects/{limited_project}/model_permissions",
        None,
    ),
    "stored responses": (
        "settings/projects/{project}",
        {"name": "research", "stores_responses_days": "30"},
        "POST",
        "projects/{project}/data_retention",
        {"retention_type": "modified_abuse_monitoring"},
    ),
    "an invitation": (
        "members/invite",
        {"email": "dora@example.com", "role": "viewer", "sees": "all"},
        "POST",
        "invites",
        {"email": "dora@example.com", "role": "reader"},
    ),
    "an invitation to a project": (
        "members/invite",
        {"email": "frank@example.com", "role": "viewer", "sees": "only", "projects": "{project}"},
        "POST",
        "invites",
        {
            "email": "frank@example.com",
            "role": "reader",
            "projects": [{"id": "{project}", "role": "member"}],
        },
    ),
    "a withdrawal": ("members/{invited}/remove", {}, "DELETE", "invites/{invited}", None),
    "a role": ("members/{member}/role", {"role": "viewer"}, "POST", "users/{user}", {"role": "reader"}),
    "a role by its id": (
        "members/{member}/role",
        {"role": "viewer"},
        "POST",
        "users/{user}/roles",
        {"role_id": "role_reader"},
    ),
    "one more project of a member": (
        "members/{dora_member}/place",
        {"projects": ["{project}", "{old_project}", "{boss_project}"]},
        "POST",
        "projects/{boss_project}/users",
        {"user_id": "{dora}", "role": "member"},
    ),
    "one more project of a member by a role": (
        "members/{dora_member}/place",
        {"projects": ["{project}", "{old_project}", "{boss_project}"]},
        "POST",
        "/v1/projects/{boss_project}/users/{dora}/roles",
        {"role_id": "role_project_member"},
    ),
    "one project less of a member": (
        "members/{dora_member}/place",
        {"projects": "{project}"},
        "DELETE",
        "projects/{old_project}/users/{dora}",
        None,
    ),
    "one project less of a member by a role": (
        "members/{dora_member}/place",
        {"projects": "{project}"},
        "DELETE",
        "/v1/projects/{old_project}/users/{dora}/roles/role_project_member",
        None,
    ),
    "a group": ("members/groups/new", {"name": "Lab"}, "POST", "groups", {"name": "Lab"}),
    "a group's name": (
        "members/groups/{group}",
        {"name": "Lab"},
        "POST",
        "groups/group_{group}",
        {"name": "Lab"},
    ),
    "one more member of a group": (
        "members/groups/{group}",
        {"people": ["{dora_member}", "{member}"]},
        "POST",
        "groups/group_{group}/users",
        {"user_id": "{user}"},
    ),
    "one member less of a group": (
        "members/groups/{group}",
        {"people": []},
        "DELETE",
        "groups/group_{group}/users/{dora}",
        None,
    ),
    "one more project of a group": (
        "members/groups/{group}",
        {"projects": ["{limited_project}", "{project}"]},
        "POST",
        "projects/{project}/groups",
        {"group_id": "group_{group}", "role": "member"},
    ),
    "one more project of a group by a role": (
        "members/groups/{group}",
        {"projects": ["{limited_project}", "{project}"]},
        "POST",
        "/v1/projects/{project}/groups/group_{group}/roles",
        {"role_id": "role_project_member"},
    ),
    "one project less of a group": (
        "members/groups/{group}",
        {"projects": []},
        "DELETE",
        "projects/{limited_project}/groups/group_{group}",
        None,
    ),
    "one project less of a group by a role": (
        "members/groups/{group}",
        {"projects": []},
        "DELETE",
        "/v1/projects/{limited_project}/groups/group_{group}/roles/role_project_member",
        None,
    ),
    "a group's removal": ("members/groups/{group}/remove", {}, "DELETE", "groups/group_{group}", None),
    "a removal": ("members/{member}/remove", {}, "DELETE", "users/{user}", None),
    "a key": (
        "keys/new",
        {"project": "{project}", "name": "shop", "scopes": "models"},
        "POST",
        "projects/{project}/service_accounts/{account}/api_keys",
        {"name": "shop", "scopes": ["models"]},
    ),
    "a key's scopes": (
        "keys/{key}/change",
        {"name": "bob", "scopes": "models"},
        "POST",
        "projects/{project}/api_keys/{key}",
        {"scopes": ["models"]},
    ),
    "a key's expiry": (
        "keys/{key}/change",
        {"name": "bob", "expires_at": "2040-01-01T00:00"},
        "POST",
        "projects/{project}/api_keys/{key}",
        {"expires_in_seconds": 3_600},
    ),
    "a key's addresses": (
        "keys/{key}/change",
        {"name": "bob", "allowed_ips": "192.0.2.0/24"},
        "POST",
        "projects/{project}/api_keys/{key}",
        {"allowed_ips": ["192.0.2.0/24"]},
    ),
    "an admin key": (
        "/admin/accounts/apikey/add/",
        {"project": "{boss_project}", "name": "backup", "is_admin": "on", "manages_as": "owner"},
        "POST",
        "admin_api_keys",
        {"name": "backup"},
    ),
    "an admin key's revocation": (
        "keys/{admin_key}/revoke",
        {},
        "DELETE",
        "admin_api_keys/{admin_key}",
        None,
    ),
    "a revocation": ("keys/{key}/revoke", {}, "DELETE", "projects/{project}/api_keys/{key}", None),
}


@pytest.fixture
def ids(boss: Person, bob: Person) -> dict[str, Any]:
    """Create what the changes change, and return the ids by the names of `CHANGES`."""
    owner = boss.project.organization
    ServedModel.objects.create(id="small")
    limited = Project.objects.create(
        organization=owner, name="limited", models_mode="deny_list", listed_models=["small"]
    )
    old = Project.objects.create(organization=owner, name="old")
    dora = User.objects.create_user("dora")
    dora_member = Member(organization=owner, user=dora, role=Role.MEMBER)
    memberships.join(dora_member, [bob.project, old])
    User.objects.update(last_login=datetime.now(UTC))
    User.objects.filter(pk=bob.user.pk).update(email="bob@example.com")
    invitation = {"email": "erin@example.com", "role": "reader"}
    alert = said(boss, "POST", f"{HERE}/projects/{limited.pk}/spend_alerts", ALERT)
    budget = BudgetLimit.objects.create(
        scope="project", scope_id=limited.pk, period="month", limit_nanodollars=1_000_000_000
    )
    return {
        "boss_project": boss.project.pk,
        "project": bob.project.pk,
        "old_project": old.pk,
        "limited_project": limited.pk,
        "budget": budget.pk,
        "rate_limit": RateLimit.objects.create(project=limited, requests_per_minute=60).pk,
        "alert": alert["id"],
        "account": ServiceAccount.objects.create(project=bob.project, name="robot").pk,
        "key": bob.api_key.pk,
        "admin_key": keys.create_key(bob.project, name="old", is_admin=True, manages_as="owner")[0].pk,
        "member": Member.objects.get(user=bob.user).pk,
        "user": bob.user.pk,
        "dora_member": dora_member.pk,
        "dora": dora.pk,
        "group": groups.create(owner.pk, "Research", [dora_member], [limited]).pk,
        "invited": said(boss, "POST", f"{HERE}/invites", invitation)["id"],
    }


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_the_same_audit_rows_as_in_the_console(
    boss: Person, ids: dict[str, Any], name: str
) -> None:
    page, form, method, path, body = filled_in(CHANGES[name], ids)
    console = client_of(boss.user)
    start, signed_in = transaction.savepoint(), audit_rows()
    page = urljoin(f"/console/{boss.project.organization_id}/", page)
    if re.search(r"/place$|/groups/\d+$", page):
        form = opened(console, page, "opened_with") | form
    assert console.post(page, form).status_code in (200, 302)
    by_console = audit_rows()
    transaction.savepoint_rollback(start)
    assert audit_rows() == signed_in
    said(boss, method, urljoin(f"{HERE}/", path), body)
    assert audit_rows() == by_console != signed_in


def filled_in(value: Any, ids: dict[str, Any]) -> Any:
    """Return the value with the ids in all its texts."""
    match value:
        case str():
            return value.format(**ids)
        case dict():
            return {name: filled_in(each, ids) for name, each in value.items()}
        case list() | tuple():
            return [filled_in(each, ids) for each in value]
    return value


def audit_rows() -> list[Any]:
    """Return the rows of the audit log but for the actor, times, new secrets and the ids of new rows."""
    # Only the API makes keys of service accounts.
    differing = dict.fromkeys(
        ("archived_at", "date_joined", "expires_at", "public", "revoked_at", "service_account")
    )
    rows = (
        (
            (row.action, row.object_type, row.organization_id, row.reason),
            re.sub("ck_live_[^…]+", "ck_live_", row.object_name),
            sorted({*row.changes} - {"service_account"}),
            row.changes | differing,
        )
        for row in AuditEntry.objects.all()
    )
    return sorted(rows, key=str)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_withdrawal_locks_nothing_before_the_person(
    transactional_db: None, boss: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console's withdrawal locks the person first: in another order, each could wait for the other."""
    made = said(boss, "POST", f"{HERE}/invites", {"email": "dora@example.com", "role": "reader"})
    withdraw = acceptance.withdraw

    def lock_as_another() -> None:
        try:
            with transaction.atomic():
                Member.objects.select_for_update(nowait=True).get(pk=made["id"])
        finally:
            connection.close()

    def withdraw_after_another(member: Member) -> None:
        with ThreadPoolExecutor(1) as others:
            others.submit(lock_as_another).result()
        withdraw(member)

    monkeypatch.setattr(acceptance, "withdraw", withdraw_after_another)
    said(boss, "DELETE", f"{HERE}/invites/{made['id']}")
    assert not User.objects.filter(username="dora@example.com").exists()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_place_in_a_project_locks_nothing_before_the_organization(
    transactional_db: None, boss: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A change of a group locks the organization first and then the project: else each could wait."""
    acme, project = bob.project.organization, bob.project
    member = Member.objects.get(user=bob.user)
    Member.objects.filter(pk=member.pk).update(is_limited=True)
    User.objects.filter(pk=bob.user.pk).update(last_login=datetime.now(UTC))
    member.projects.add(project)
    check, owned_after = [], memberships.owned_after

    def lock_as_another() -> None:
        try:
            with transaction.atomic():
                Organization.objects.select_for_update(nowait=True).get(pk=acme.pk)
                check.append(Project.objects.select_for_update(nowait=True).get(pk=project.pk))
        finally:
            connection.close()

    def locked_after_another(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as others:
            others.submit(lock_as_another).result()
        return owned_after(*args, **kwargs)

    monkeypatch.setattr(memberships, "owned_after", locked_after_another)
    path = f"{HERE}/projects/{project.pk}/users"
    if method == "POST":
        said(boss, "POST", path, {"user_id": str(bob.user.pk), "role": "member"})
    else:
        said(boss, "DELETE", f"{path}/{bob.user.pk}")
    assert check == [project]


@pytest.mark.parametrize("stored", ["Imke@example.com", "\N{LATIN SMALL LETTER DOTLESS I}mke@example.com"])
def test_a_member_is_found_by_their_own_address_only(boss: Person, bob: Person, stored: str) -> None:
    """The dotless letter and "i" are the same one where capitals are compared."""
    User.objects.filter(pk=bob.user.pk).update(email=stored, last_login=datetime.now(UTC))
    path, body = f"{HERE}/projects/{bob.project.pk}/users", {"email": "IMKE@example.com", "role": "member"}
    is_found = stored.isascii()
    answer = said(boss, "POST", path, body, 200 if is_found else 404)
    assert (answer.get("id") == str(bob.user.pk)) is is_found
    listed = said(boss, "GET", f"{HERE}/users?emails=IMKE@example.com")["data"]
    assert [each["id"] for each in listed] == ([str(bob.user.pk)] if is_found else [])


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
@pytest.mark.parametrize(
    "act",
    [
        lambda boss, bob: said(boss, "POST", f"{HERE}/projects", {"name": "shop"}),
        lambda boss, bob: said(boss, "POST", f"{HERE}/invites", {"email": "d@example.com", "role": "reader"}),
        lambda boss, bob: memberships.change_role(Member.objects.get(user=bob.user), "admin"),
        lambda boss, bob: webhooks.add(
            WebhookEndpoint(organization=bob.project.organization, url="https://a")
        ),
        lambda boss, bob: metered_usage.bill(bob.project.organization, "cus_1"),
    ],
    ids=["project", "invitation", "role", "webhook", "billing"],
)
def test_a_change_of_the_organization_keeps_no_request_waiting(
    transactional_db: None, boss: Person, bob: Person, act: Callable[[Person, Person], object]
) -> None:
    def run_another() -> None:
        try:
            run(bob)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as others, transaction.atomic():
        act(boss, bob)
        others.submit(run_another).result(timeout=3)
