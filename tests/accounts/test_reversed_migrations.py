"""Accounts 0016 to 0019, there and back with rows: reversed, they never permit more than before."""

from collections.abc import Callable

import pytest
from django.db import connection

from accounts import certificates, memberships, own_roles
from accounts.models import APIKey, Certificate, Member, Organization, ServiceAccount
from accounts.workload_identity import federation
from tests.cast import Person
from tests.client_certificates import make

pytestmark = pytest.mark.django_db(transaction=True)


def test_they_are_not_reversed_while_they_forbid_something(migrate: Callable[..., None], bob: Person) -> None:
    row = certificates.create(bob.project.organization_id, make("Acme").pem)
    rows = Certificate.objects.filter(pk=row.pk)
    rows.update(is_active=True)
    with pytest.raises(RuntimeError, match="active client certificates"):
        migrate("accounts", "0018")
    rows.update(is_active=False)
    row.projects.add(bob.project)
    with pytest.raises(RuntimeError, match="active client certificates"):
        migrate("accounts", "0018")
    row.projects.clear()
    Organization.objects.update(forbids_stored_responses=True)
    with pytest.raises(RuntimeError, match="forbid storing responses"):
        migrate("accounts", "0015")
    migrate()
    assert Organization.objects.get(pk=bob.project.organization_id).forbids_stored_responses


def test_people_and_programs_get_nothing_more_when_they_are_reversed(
    migrate: Callable[..., None], acme: Organization, bob: Person
) -> None:
    member = Member.objects.get(user=bob.user)
    permissions = own_roles.with_choices(["audit"])
    memberships.change_role(member, own_roles.create(acme.pk, "Auditor", "", permissions))
    issuer = "https://cluster.example.com"
    provider = federation.create(acme.pk, name="cluster", issuer=issuer, audience="chatapi")
    account = ServiceAccount.objects.create(project=bob.project, name="backend")
    rule = federation.create_rule(provider, account, key=APIKey(), attribute_matchers={"sub": "a"})
    migrate("accounts", "0015")
    with connection.cursor() as cursor:
        cursor.execute("SELECT role, is_limited FROM accounts_member WHERE id = %s", [member.pk])
        role, is_limited = cursor.fetchone()
        assert role == "viewer"
        assert is_limited
        table = connection.introspection.get_table_description(cursor, "accounts_organization")
    migrate()
    member = Member.objects.get(pk=member.pk)
    assert member.is_limited
    assert member.own_role is None
    assert not member.projects.exists()
    assert not APIKey.objects.get(pk=rule.api_key_id).has_secret
    # A process of the release before inserts rows without the new columns.
    names = ", ".join(each.name for each in table if each.name not in {"id", "name"})
    insert = f"INSERT INTO accounts_organization (name, {names}) SELECT 'Old', {names}"
    with connection.cursor() as cursor:
        cursor.execute(f"{insert} FROM accounts_organization WHERE id = %s", [acme.pk])
    assert not Organization.objects.get(name="Old").forbids_stored_responses
