"""The owners of generations and ledger entries: writing a row looks none of them up, and none is deleted."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError

from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, run
from usage.books import ledger
from usage.database.sql import execute, fetch_all
from usage.models import Generation
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
OWNERS = ["accounts_apikey", "accounts_organization", "accounts_project"]


def constraints() -> dict[str, list[str]]:
    """Return the owners to which the tables have foreign keys in PostgreSQL."""
    rows = fetch_all(
        """SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
        WHERE contype = 'f' AND confrelid::regclass::text = ANY(%s) ORDER BY 2""",
        [OWNERS],
    )
    found: dict[str, list[str]] = {}
    for table, owner in rows:
        found.setdefault(table, []).append(owner)
    return found


def delete_by_hand(key: APIKey) -> None:
    execute("DELETE FROM accounts_apikey WHERE id = %s", [key.pk])
    connection.check_constraints()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite would have to copy the tables")
def test_each_row_costs_no_look_up_of_its_owners(migrate: Callable[..., None]) -> None:
    tables = {"usage_generation", "usage_ledgerentry"}
    assert not tables & constraints().keys()
    assert constraints()["usage_hourlyusage"] == OWNERS
    migrate("usage", "0020")
    assert all(constraints()[table] == OWNERS for table in tables)
    migrate()
    assert not tables & constraints().keys()


def test_an_owner_of_a_request_is_not_deleted(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    with pytest.raises(ProtectedError):
        key.delete()
    ledger.settle(NOW, [completed(run(admission))])
    with pytest.raises(IntegrityError), transaction.atomic():
        delete_by_hand(key)  # the hour names it


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has the constraints")
def test_a_request_whose_owner_was_deleted_is_never_settled(key: APIKey, ask: Ask) -> None:
    """It holds its money, and verification names it."""
    ledger.admit(NOW, [admission := ask()])
    claimed = run(admission)
    delete_by_hand(key)
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(IntegrityError), transaction.atomic():
        ledger.settle(NOW, [completed(claimed)])
    late = Generation.objects.get().lease_expires_at.replace(year=NOW.year + 1)
    assert [each.invariant for each in verify(now=late).differences] == ["I3 stuck"]
