"""The management API and roles that the organization makes: giving them, refusals, and the audit log."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User

from accounts import own_roles
from accounts.models import Member, OwnRole, Role
from tests.cast import Person
from tests.chatapi.management import HERE, refused, said

pytestmark = pytest.mark.usefixtures("db")
READS_STATEMENTS = sorted(own_roles.with_choices(["statements"]))
READS_AUDIT = sorted(own_roles.with_choices(["audit"]))
ROLES = f"{HERE}/roles"


@pytest.fixture(autouse=True)
def accepted(boss: Person, bob: Person) -> None:
    """Let everybody have accepted their invitations."""
    User.objects.update(last_login=datetime.now(UTC))


def make(boss: Person, **changes: Any) -> Any:
    """Return the answer to the creation of a role."""
    sent = {"role_name": "Finance", "permissions": READS_STATEMENTS, "description": "Accounting"}
    return said(boss, "POST", ROLES, sent | changes)


def test_a_role_is_made_listed_given_changed_and_deleted(boss: Person, bob: Person) -> None:
    made = make(boss)
    row = OwnRole.objects.get()
    assert made == {
        "object": "role", "id": f"role_{row.pk}", "name": "Finance", "description": "Accounting",
        "permissions": READS_STATEMENTS, "predefined_role": False, "resource_type": "api.organization",
    }  # fmt: skip
    assert said(boss, "GET", f"{ROLES}/{made['id']}") == made
    names = [each["name"] for each in said(boss, "GET", ROLES)["data"]]
    assert names == ["owner", "admin", "member", "reader", "Finance"]
    of_bob = f"{HERE}/users/{bob.user.pk}"
    given = said(boss, "POST", f"{of_bob}/roles", {"role_id": made["id"]})
    assert (given["role"], given["user"]["role"], given["user"]["projects"]) == (made, "Finance", None)
    assert said(boss, "GET", f"{of_bob}/roles")["data"] == [made]
    assert said(boss, "GET", f"{of_bob}/roles/{made['id']}") == made
    assert said(boss, "GET", of_bob)["role"] == "Finance"
    changed = said(boss, "POST", f"{ROLES}/{made['id']}", {"role_name": "Accounts"})
    assert changed == made | {"name": "Accounts"}
    assert refused(boss, "DELETE", f"{ROLES}/{made['id']}") == ("role_id", "invalid_value")
    assert said(boss, "POST", of_bob, {"role": "reader"})["role"] == "reader"
    assert Member.objects.get(user=bob.user).own_role is None
    gone = said(boss, "DELETE", f"{ROLES}/{made['id']}")
    assert gone == {"object": "role.deleted", "deleted": True, "id": made["id"]}
    assert refused(boss, "GET", f"{ROLES}/{made['id']}", status=404)[1] == "not_found"


def test_the_refusal_to_delete_says_how_many_have_the_role(boss: Person, bob: Person) -> None:
    made = make(boss)
    said(boss, "POST", f"{HERE}/users/{bob.user.pk}", {"role_id": made["id"]})
    error = said(boss, "DELETE", f"{ROLES}/{made['id']}", status=400)["error"]
    assert error["message"].endswith("1 member has this role: give another one first.")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"role_name": "Reader"}, "role_name"),
        ({"role_name": "finance"}, "role_name"),
        ({"role_name": "a/b"}, "role_name"),
        ({"permissions": ["accounts.administer_keys"]}, "permissions"),
        ({"permissions": ["accounts.change_member"]}, "permissions"),
        ({"permissions": ["chatapi.read_storedresponse"]}, "permissions"),
        ({"permissions": ["x" * 101]}, "permissions"),
        ({"permissions": []}, "permissions"),
        ({"permissions": ["usage.view_statement"]}, "permissions"),
        ({"description": "two\nlines"}, "description"),
        ({"description": "x" * 301}, "description"),
    ],
)
def test_a_wrong_role_names_its_parameter(boss: Person, changes: dict[str, Any], param: str) -> None:
    made = make(boss)
    sent = {"role_name": "Other", "permissions": READS_STATEMENTS} | changes
    assert str(refused(boss, "POST", ROLES, sent)[0]).startswith(param)
    if changes != {"role_name": "finance"}:
        assert str(refused(boss, "POST", f"{ROLES}/{made['id']}", changes)[0]).startswith(param)
    assert OwnRole.objects.count() == 1


def test_an_unknown_permission_lists_those_that_there_are(boss: Person) -> None:
    sent = {"role_name": "Other", "permissions": ["api.model.request"]}
    message = said(boss, "POST", ROLES, sent, status=400)["error"]["message"]
    assert "'api.model.request' is not one of accounts.add_apikey, " in message
    assert "usage.view_statement." in message
    assert len(message) < 1_500


def test_a_key_makes_and_gives_no_role_above_its_own(boss: Person, bob: Person) -> None:
    above = make(boss, permissions=READS_AUDIT)["id"]
    of_bob = f"{HERE}/users/{bob.user.pk}"
    boss.manage_as(Role.ADMIN)
    sent = {"role_name": "Auditor", "permissions": READS_AUDIT}
    error = said(boss, "POST", ROLES, sent, status=403)["error"]
    assert "has no permission audit.view_auditentry" in error["message"]
    for method, path, body in (
        ("POST", f"{ROLES}/{above}", {"permissions": READS_STATEMENTS}),
        ("DELETE", f"{ROLES}/{above}", None),
        ("POST", f"{of_bob}/roles", {"role_id": above}),
        ("POST", of_bob, {"role_id": above}),
    ):
        said(boss, method, path, body, status=403)
    lower = said(boss, "POST", ROLES, sent | {"permissions": READS_STATEMENTS})["id"]
    said(boss, "POST", f"{ROLES}/{lower}", {"permissions": READS_AUDIT}, status=403)
    assert said(boss, "POST", f"{of_bob}/roles", {"role_id": lower})["role"]["name"] == "Auditor"
    # A member with a role above the key's is neither changed nor removed.
    boss.manage_as(Role.OWNER)
    said(boss, "POST", f"{of_bob}/roles", {"role_id": above})
    boss.manage_as(Role.ADMIN)
    said(boss, "POST", of_bob, {"role": "reader"}, status=403)
    said(boss, "DELETE", of_bob, status=403)


def test_the_four_roles_can_not_be_changed(boss: Person) -> None:
    for method, body in (("POST", {"role_name": "Other"}), ("DELETE", None)):
        assert refused(boss, method, f"{ROLES}/role_owner", body)[0] == "role_id"


def test_roles_of_others_are_unknown(boss: Person, bob: Person, charlie: Person) -> None:
    theirs = own_roles.create(charlie.project.organization_id, "Theirs", "", own_roles.BASE)
    assert len(said(boss, "GET", ROLES)["data"]) == 4
    for method, path, body in (
        ("GET", f"{ROLES}/role_{theirs.pk}", None),
        ("POST", f"{ROLES}/role_{theirs.pk}", {"role_name": "Ours"}),
        ("DELETE", f"{ROLES}/role_{theirs.pk}", None),
        ("POST", f"{HERE}/users/{bob.user.pk}/roles", {"role_id": f"role_{theirs.pk}"}),
        ("GET", f"{ROLES}/role_x", None),
        ("GET", f"{ROLES}/{theirs.pk}", None),
    ):
        assert refused(boss, method, path, body, status=404)[1] == "not_found"


def test_the_last_owner_gets_no_own_role(boss: Person) -> None:
    made = make(boss)
    path = f"{HERE}/users/{boss.user.pk}/roles"
    assert "only owner" in said(boss, "POST", path, {"role_id": made["id"]}, status=400)["error"]["message"]


def test_a_key_without_the_permission_makes_no_role(boss: Person) -> None:
    boss.manage_as(Role.MEMBER)
    said(boss, "POST", ROLES, {"role_name": "Mine", "permissions": READS_STATEMENTS}, status=403)
    assert said(boss, "GET", ROLES)["data"]


def test_the_audit_log_has_every_change_of_a_role(boss: Person, bob: Person) -> None:
    made = make(boss)
    said(boss, "POST", f"{ROLES}/{made['id']}", {"permissions": READS_AUDIT})
    said(boss, "DELETE", f"{ROLES}/{made['id']}")
    entries = said(boss, "GET", f"{HERE}/audit_logs?resource_ids[]={made['id']}")["data"]
    assert [each["type"] for each in entries] == ["role.deleted", "role.updated", "role.created"]
    updated = entries[1]["role.updated"]
    assert updated["id"] == made["id"]
    assert updated["changes_requested"]["permissions"] == READS_AUDIT
    assert len(said(boss, "GET", f"{HERE}/audit_logs?event_types[]=role.updated")["data"]) == 1
