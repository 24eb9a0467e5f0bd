"""The management API and groups of members: what they give, refusals, and the roles in projects."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User

from accounts import groups, memberships
from accounts.audit.models import AuditEntry
from accounts.models import Group, Member, Role
from tests.admin_pages import client_of
from tests.cast import Person
from tests.chatapi.console_pages import url
from tests.chatapi.management import HERE, refused, said

pytestmark = pytest.mark.usefixtures("db")
MEMBER, OWNER = "role_project_member", "role_project_owner"


@pytest.fixture
def limited(boss: Person, bob: Person) -> Member:
    """Return Bob's membership, which is limited to no project."""
    User.objects.update(last_login=datetime.now(UTC))
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [])
    return member


@pytest.fixture
def group(boss: Person, limited: Member) -> str:
    """Return the id of a group with Bob."""
    made = said(boss, "POST", f"{HERE}/groups", {"name": "Research"})
    said(boss, "POST", f"{HERE}/groups/{made['id']}/users", {"user_id": str(limited.user_id)})
    return str(made["id"])


def status_of(person: Person, project: Person) -> int:
    """Return the status of the page about the project's key for this person."""
    client = client_of(person.user)
    return client.get(url(project, f"keys/{project.api_key.pk}")).status_code


def test_a_group_gives_its_project_to_limited_members(
    boss: Person, bob: Person, limited: Member, group: str
) -> None:
    of_project = f"{HERE}/projects/{bob.project.pk}"
    assert status_of(bob, bob) == 404
    for _ in range(2):
        made = said(boss, "POST", f"{of_project}/groups", {"group_id": group, "role": MEMBER})
        assert (made["group_name"], made["project_id"]) == ("Research", str(bob.project.pk))
    assert status_of(bob, bob) == 200
    shown = said(boss, "GET", f"{HERE}/users/{bob.user.pk}")["projects"]["data"]
    assert shown == [{"id": str(bob.project.pk), "name": "research", "role": "member"}]
    listed = {each["name"] for each in said(boss, "GET", f"{of_project}/users")["data"]}
    assert listed == {"alice", "bob"}
    one = said(boss, "DELETE", f"{of_project}/groups/{group}")
    assert one == {"object": "project.group.deleted", "deleted": True}
    assert status_of(bob, bob) == 404
    assert refused(boss, "DELETE", f"{of_project}/groups/{group}", status=404)[0] == "group_id"


@pytest.mark.parametrize("way", ["group", "user", "project", "role"])
def test_each_way_to_take_it_closes_it_at_once(boss: Person, bob: Person, group: str, way: str) -> None:
    said(boss, "POST", f"{HERE}/projects/{bob.project.pk}/groups", {"group_id": group, "role": "member"})
    assert status_of(bob, bob) == 200
    path = {
        "group": f"{HERE}/groups/{group}",
        "user": f"{HERE}/groups/{group}/users/{bob.user.pk}",
        "project": f"{HERE}/projects/{bob.project.pk}/groups/{group}",
        "role": f"/v1/projects/{bob.project.pk}/groups/{group}/roles/{MEMBER}",
    }[way]
    assert said(boss, "DELETE", path)["deleted"] is True
    assert status_of(bob, bob) == 404
    assert refused(boss, "DELETE", path, status=404)[1] == "not_found"
    assert Member.objects.filter(user=bob.user).exists()


def test_a_project_of_a_group_is_not_taken_from_one_member(boss: Person, bob: Person, group: str) -> None:
    of_project = f"{HERE}/projects/{bob.project.pk}"
    said(boss, "POST", f"{of_project}/groups", {"group_id": group, "role": "member"})
    for path in (
        f"{of_project}/users/{bob.user.pk}",
        f"/v1/projects/{bob.project.pk}/users/{bob.user.pk}/roles/{MEMBER}",
    ):
        error = said(boss, "DELETE", path, status=400)["error"]
        assert "by the group Research: take the member or the project from the group" in error["message"]
    assert status_of(bob, bob) == 200


@pytest.mark.parametrize(
    ("request_of", "body", "param"),
    [
        ("POST groups", {"name": ""}, "name"),
        ("POST groups", {"name": "Research"}, "name"),
        ("POST groups", {"name": "x", "description": "y"}, "description"),
        ("POST groups/{group}", {}, "name"),
        ("POST groups/{group}/users", {"user_id": "x"}, "user_id"),
        ("POST groups/{group}/roles", {"role_id": "role_admin"}, "role_id"),
        ("DELETE groups/{group}/roles/role_admin", None, "role_id"),
        ("POST projects/{project}/groups", {"group_id": "{group}"}, "role"),
        ("POST projects/{project}/groups", {"group_id": "7", "role": "member"}, "group_id"),
        ("POST projects/{project}/groups", {"group_id": "{group}", "role": OWNER}, "role"),
        ("POST ../projects/{project}/groups/{group}/roles", {"role_id": OWNER}, "role_id"),
        ("POST ../projects/{project}/users/{bob}/roles", {"role_id": OWNER}, "role_id"),
        ("GET groups?limit=0", None, "limit"),
        ("GET groups?after=7", None, "after"),
        ("GET projects/{project}/groups/{group}?group_type=tenant_group", None, "group_type"),
    ],
)
def test_a_wrong_request_is_a_400_that_names_the_parameter(
    boss: Person, bob: Person, group: str, request_of: str, body: Any, param: str
) -> None:
    method, path = request_of.split(" ")
    ids = {"group": group, "project": bob.project.pk, "bob": bob.user.pk}
    Group.objects.get().projects.add(bob.project)
    body = body and {name: value.format(**ids) for name, value in body.items()}
    whole = f"{HERE}/{path}".replace("organization/../", "").format(**ids)
    assert refused(boss, method, whole, body)[0] == param


def test_others_are_unknown_in_a_body(boss: Person, bob: Person, charlie: Person, group: str) -> None:
    User.objects.update(last_login=datetime.now(UTC))
    other = f"group_{groups.create(charlie.project.organization_id, 'Theirs').pk}"
    for user in (str(charlie.user.pk), "999999999"):
        assert refused(boss, "POST", f"{HERE}/groups/{group}/users", {"user_id": user}, 404)[0] == "user_id"
    for row in (other, "group_999999999"):
        sent = {"group_id": row, "role": "member"}
        path = f"{HERE}/projects/{bob.project.pk}/groups"
        assert refused(boss, "POST", path, sent, 404)[0] == "group_id"
    theirs = f"{HERE}/projects/{charlie.project.pk}/groups"
    assert refused(boss, "POST", theirs, {"group_id": group, "role": "member"}, 404)[0] == "project_id"
    assert [each["name"] for each in said(boss, "GET", f"{HERE}/groups")["data"]] == ["Research"]


def test_an_invited_person_is_in_no_list_of_a_group(boss: Person, limited: Member, group: str) -> None:
    User.objects.filter(pk=limited.user_id).update(last_login=None, password="!")
    assert said(boss, "GET", f"{HERE}/groups/{group}/users")["data"] == []
    path = f"{HERE}/groups/{group}/users/{limited.user_id}"
    assert refused(boss, "GET", path, status=404)[0] == "user_id"


def test_pages_of_groups_reach_every_row_once(boss: Person, bob: Person, group: str) -> None:
    for number in range(4):
        row = groups.create(bob.project.organization_id, f"team {number}")
        groups.add(row, projects=[bob.project])
    paths = {f"{HERE}/groups": "name", f"{HERE}/projects/{bob.project.pk}/groups": "group_name"}
    for path, name in paths.items():
        found = {}
        for order in ("asc", "desc"):
            names, after = [], ""
            while True:
                page = said(boss, "GET", f"{path}?limit=2&order={order}{after}")
                names += [each[name] for each in page["data"]]
                assert page["has_more"] == (page["next"] is not None)
                if not page["has_more"]:
                    break
                after = f"&after={page['next']}"
            found[order] = names
        assert found["asc"] == found["desc"][::-1]
        assert [each for each in found["asc"] if each != "Research"] == [f"team {each}" for each in range(4)]
    everyone = said(boss, "GET", f"{HERE}/groups/{group}/users?limit=1")
    assert ([each["name"] for each in everyone["data"]], everyone["next"]) == (["bob"], None)


def test_a_member_has_one_role_in_a_project(boss: Person, bob: Person, limited: Member, group: str) -> None:
    of_bob, of_boss = (f"/v1/projects/{bob.project.pk}/users/{each.user.pk}/roles" for each in (bob, boss))
    assert [each["id"] for each in said(boss, "GET", of_boss)["data"]] == [OWNER]
    assert refused(boss, "GET", of_bob, status=404)[0] == "user_id"
    made = said(boss, "POST", of_bob, {"role_id": MEMBER})
    assert (made["role"]["id"], made["user"]["projects"]["data"][0]["name"]) == (MEMBER, "research")
    (role,) = said(boss, "GET", of_bob)["data"]
    assert (role["id"], role["assignment_sources"]) == (MEMBER, None)
    assert said(boss, "DELETE", f"{of_bob}/{MEMBER}")["object"] == "user.role.deleted"
    assert not limited.projects.exists()
    Group.objects.get().projects.add(bob.project)
    assert said(boss, "GET", f"{of_bob}/{MEMBER}")["assignment_sources"] == [
        {"principal_id": group, "principal_type": "group"}
    ]
    assert refused(boss, "GET", f"{of_bob}/{OWNER}", status=404)[0] == "role_id"
    error = said(boss, "DELETE", f"{of_boss}/{OWNER}", status=400)["error"]
    assert "this member sees all projects" in error["message"]


def test_an_archived_project_takes_no_group(boss: Person, bob: Person, group: str) -> None:
    path = f"{HERE}/projects/{bob.project.pk}"
    said(boss, "POST", f"{path}/archive")
    sent = {"group_id": group, "role": "member"}
    assert refused(boss, "POST", f"{path}/groups", sent)[1] == "project_archived"


def test_the_audit_log_has_each_change_of_a_group(boss: Person, bob: Person, group: str) -> None:
    said(boss, "POST", f"{HERE}/groups/{group}", {"name": "Labs"})
    said(boss, "DELETE", f"{HERE}/groups/{group}")
    log = said(boss, "GET", f"{HERE}/audit_logs?resource_ids[]={group}")["data"]
    assert [each["type"] for each in log] == [
        "group.deleted", "group.updated", "group.updated", "group.created",
    ]  # fmt: skip
    assert {each[each["type"]]["id"] for each in log} == {group}
    assert log[2]["group.updated"]["changes_requested"] == {"members": ["bob (member) in Acme"]}
    assert {each.actor_key_id for each in AuditEntry.objects.filter(object_type="accounts.group")} == {
        boss.api_key.pk
    }
