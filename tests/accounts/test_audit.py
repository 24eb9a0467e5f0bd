"""The audit log has people's changes with the values before and after, no secrets, and can't be changed."""

from collections.abc import Iterator
from datetime import date, timedelta

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, Permission, User
from django.contrib.auth.signals import user_login_failed
from django.db import IntegrityError, connection, transaction
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages, whose models are watched
from accounts import keys
from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from accounts.audit.recorder import Actor
from accounts.audit.sign_ins import MAX_FAILED_PER_MINUTE
from accounts.models import APIKey, Organization
from tests.cast import Person
from usage.models import BudgetLimit


@pytest.fixture
def acting(db: None) -> Iterator[None]:
    """Record changes as root's."""
    with recorder.acting(lambda: Actor(7, "root", "192.0.2.1")):
        yield


def newest() -> AuditEntry:
    return AuditEntry.objects.latest("id")


def test_nobody_acting_leaves_nothing(alice: Person) -> None:
    alice.project.organization.save()
    keys.revoke(APIKey.objects.all())
    assert not AuditEntry.objects.exists()


def test_a_new_row_is_recorded_with_its_values(acting: None) -> None:
    row = Organization.objects.create(name="Globex", time_zone="Europe/Berlin")
    entry = newest()
    assert (entry.actor_id, entry.actor, entry.address, entry.action) == (7, "root", "192.0.2.1", "created")
    assert (entry.object_type, entry.object_id, entry.object_name) == (
        "accounts.organization",
        str(row.pk),
        "Globex",
    )
    assert entry.organization_id == row.pk
    assert entry.changes == {
        "name": [None, "Globex"],
        "time_zone": [None, "Europe/Berlin"],
        "forbids_stored_responses": [None, False],
        "is_active": [None, True],
    }
    assert entry.at is not None


def test_a_change_is_recorded_field_by_field(alice: Person, acting: None) -> None:
    alice.project.name = "chat"
    alice.project.save()
    assert newest().changes == {"name": ["default", "chat"]}
    count = AuditEntry.objects.count()
    alice.project.save()
    assert AuditEntry.objects.count() == count, "nothing changed"


def test_relations_are_recorded_by_name(alice: Person, acting: None) -> None:
    globex = Organization.objects.create(name="Globex")
    member = alice.user.memberships.get()
    member.organization = globex
    member.save()
    assert newest().changes == {"organization": ["Acme", "Globex"]}
    assert newest().organization_id == globex.pk


def test_a_deletion_is_recorded_with_what_there_was(alice: Person, acting: None) -> None:
    limit = BudgetLimit.objects.create(
        scope="key", scope_id=alice.api_key.pk, period="day", limit_nanodollars=5
    )
    limit.delete()
    entry = newest()
    assert (entry.action, entry.changes["limit_nanodollars"]) == ("deleted", [5, None])
    assert entry.organization_id == alice.project.organization_id


def test_an_update_of_several_rows_is_recorded_for_each_that_changes(
    alice: Person, bob: Person, acting: None
) -> None:
    assert keys.revoke(APIKey.objects.order_by("name")) == 2
    assert keys.revoke(APIKey.objects.all()) == 0
    revoked = AuditEntry.objects.filter(object_type="accounts.apikey", action="changed")
    assert {entry.object_id for entry in revoked} == {str(alice.api_key.pk), str(bob.api_key.pk)}
    before, after = newest().changes["revoked_at"]
    assert (before, after[:10]) == (None, f"{date.today():%Y-%m-%d}")


def test_the_groups_of_a_person_are_recorded_before_and_after(acting: None) -> None:
    user, sales, support = (
        User.objects.create_user("clerk"),
        Group.objects.create(name="sales"),
        Group.objects.create(name="support"),
    )
    user.groups.set([sales])
    user.groups.set([support])
    assert [
        entry.changes["groups"]
        for entry in AuditEntry.objects.filter(object_type="auth.user", changes__has_key="groups")
    ] == [[[], ["sales"]], [["sales"], []], [[], ["support"]]]
    support.user_set.clear()
    assert newest().changes == {"user_set": [["clerk"], []]}


def test_no_secret_is_in_it(alice: Person, acting: None) -> None:
    row, secret = keys.create_key(alice.project, name="another")
    keys.rotate(row, row.created_at + timedelta(days=1))
    user = User.objects.create_user("clerk", password="correct horse")
    user.set_password("battery staple")
    user.save()
    assert newest().changes == {"password": ["(hidden)", "(hidden)"]}
    row.refresh_from_db()
    everything = str(list(AuditEntry.objects.values_list("changes", flat=True)))
    for hidden in (secret, secret[20:], row.digest, row.previous_digest, user.password):
        assert hidden not in everything


def test_what_is_undone_was_never_recorded(alice: Person, acting: None) -> None:
    with transaction.atomic():
        Organization.objects.create(name="Globex")
        transaction.set_rollback(True)
    assert not AuditEntry.objects.exists()


def test_it_can_not_be_changed(acting: None) -> None:
    Organization.objects.create(name="Globex")
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        AuditEntry.objects.update(actor="somebody else")
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        AuditEntry.objects.all().delete()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has no REPLACE")
def test_it_can_not_be_replaced(acting: None) -> None:
    Organization.objects.create(name="Globex")
    for statement in ("REPLACE INTO", "INSERT OR REPLACE INTO"):
        with (
            pytest.raises(IntegrityError, match="never changed"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(f"{statement} audit_auditentry SELECT * FROM audit_auditentry")
    Organization.objects.create(name="Initech")
    assert AuditEntry.objects.count() == 2


# ---- over HTTP


def test_a_page_of_the_admin_is_recorded_with_its_person_and_address(db: None) -> None:
    client = Client(REMOTE_ADDR="198.51.100.7")
    root = User.objects.create_superuser("root")
    client.force_login(root)
    group = {"name": "sales", "permissions": [str(Permission.objects.get(codename="view_generation").pk)]}
    assert client.post("/admin/auth/group/add/", group).status_code == 302
    created = AuditEntry.objects.get(object_type="auth.group", action="created")
    assert (created.actor_id, created.actor, created.address) == (root.pk, "root", "198.51.100.7")
    assert AuditEntry.objects.filter(
        object_type="auth.group", action="changed", changes__has_key="permissions"
    ).exists()


def test_signing_in_and_out_is_recorded(db: None) -> None:
    User.objects.create_superuser("root", password="correct horse")
    client = Client()
    assert client.login(username="root", password="correct horse")
    assert authenticate(username="root", password="wrong") is None
    client.logout()
    acts = AuditEntry.objects.filter(object_type="auth.user").order_by("id").values_list("actor", "action")
    assert list(acts) == [("root", "signed in"), ("", "failed to sign in"), ("root", "signed out")]


def test_a_name_that_there_is_not_is_not_kept_as_it_may_be_a_password(db: None) -> None:
    authenticate(username="correct horse", password="root")
    assert newest().object_name == "an unknown name"


def test_failures_do_not_fill_the_disk(db: None) -> None:
    for _ in range(MAX_FAILED_PER_MINUTE + 3):
        user_login_failed.send(sender=None, credentials={"username": "root"}, request=None)
    assert AuditEntry.objects.count() == MAX_FAILED_PER_MINUTE


def test_answers_of_the_api_do_not_vary_by_cookie(alice: Person) -> None:
    assert "cookie" not in alice.get("/v1/models").headers.get("vary", "").lower()
