"""Migration accounts 0014, which limits members to projects: there and back, but never to a wider view."""

from collections.abc import Callable

import pytest
from django.db import connection

from accounts import memberships
from accounts.models import Member, Organization, Role
from tests.cast import Person

BEFORE = "0013"
pytestmark = pytest.mark.django_db(transaction=True)


def test_it_is_not_reversed_while_a_member_is_limited(
    migrate: Callable[..., None], acme: Organization, bob: Person
) -> None:
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.VIEWER, [bob.project])
    with pytest.raises(RuntimeError, match="members who are limited"):
        migrate("accounts", BEFORE)
    migrate()  # the later ones were reversed
    member.refresh_from_db()
    memberships.change_place(member, Role.VIEWER, None)
    migrate("accounts", BEFORE)
    # A process of the release before inserts rows without the column, also after the migration.
    with connection.cursor() as cursor:
        cursor.execute("SELECT role FROM accounts_member WHERE id = %s", [member.pk])
        assert cursor.fetchone() == ("viewer",)
    migrate()
    assert not Member.objects.get(pk=member.pk).is_limited
    insert = (
        "INSERT INTO accounts_member (organization_id, user_id, role, created_at) VALUES (%s, %s, %s, %s)"
    )
    member.delete()
    with connection.cursor() as cursor:
        cursor.execute(insert, [acme.pk, bob.user.pk, "admin", "2026-11-28 12:00:00+00:00"])
    assert not Member.objects.get(user=bob.user).is_limited
