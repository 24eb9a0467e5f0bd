"""The hot statements' way to the database: what goes in is what Django would write, what goes wrong is what
it would raise.
"""

from collections.abc import Callable

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from accounts.models import APIKey
from tests.usage.conftest import NOW
from usage.books import ledger
from usage.database.clock import begin, database_now
from usage.database.sql import db_value, execute, fetch_all, insert, send, to_date, to_uuid, together
from usage.models import Generation

Ask = Callable[..., ledger.Admission]


def test_values_are_written_as_django_writes_them(key: APIKey, ask: Ask) -> None:
    admission = ask()
    ledger.admit(NOW, [admission])
    row = Generation.objects.get(admitted_at=NOW, budget_day=NOW.date(), id=admission.id, is_test=False)
    by_django = connection.ops.adapt_datetimefield_value(row.admitted_at)
    [(found_id, day)] = fetch_all(
        "SELECT id, budget_day FROM usage_generation WHERE admitted_at = %s", [by_django]
    )
    assert (to_uuid(found_id), to_date(day)) == (row.pk, NOW.date())
    assert db_value(NOW) == by_django


def test_errors_are_djangos(key: APIKey, ask: Ask) -> None:
    admission = ask()
    ledger.admit(NOW, [admission])
    with pytest.raises(IntegrityError), transaction.atomic():
        ledger.admit(NOW, [admission])
    with pytest.raises(DatabaseError), transaction.atomic():
        execute("SELECT nothing FROM nowhere")


@pytest.mark.django_db
def test_a_transaction_that_is_broken_is_not_used() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            execute("SELECT 1")


@pytest.mark.django_db
def test_query_logging_sees_the_statements() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert fetch_all("SELECT %s", [1]) == [(1,)]
    assert len(queries) == 1


@pytest.mark.django_db
def test_statements_together_run_in_their_order() -> None:
    with together():
        execute("UPDATE usage_budget SET pending_nanodollars = 1")
        insert("usage_budgetlimit", ("scope", "scope_id", "period"), [("key", 7, "day")])
        assert fetch_all("SELECT scope_id FROM usage_budgetlimit") == [(7,)]
        execute("DELETE FROM usage_budgetlimit WHERE scope_id = %s", [7])
        execute("INSERT INTO usage_budgetlimit (scope, scope_id, period) VALUES ('key', %s, 'ever')", [8])
    assert fetch_all("SELECT scope_id FROM usage_budgetlimit") == [(8,)]


@pytest.mark.django_db
def test_an_error_of_statements_together_is_djangos() -> None:
    @together()
    def insert_twice() -> None:
        insert("usage_budgetlimit", ("scope", "scope_id", "period"), [("key", 7, "day")] * 2)

    with pytest.raises(IntegrityError), transaction.atomic():
        insert_twice()


@pytest.mark.django_db(transaction=True)
def test_a_transaction_begins_with_the_databases_time() -> None:
    before = database_now()
    with transaction.atomic():
        begun = begin()
        execute("INSERT INTO usage_budgetlimit (scope, scope_id, period) VALUES ('key', 7, 'ever')")
        transaction.set_rollback(True)
    assert before <= begun <= database_now()
    assert fetch_all("SELECT scope_id FROM usage_budgetlimit") == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connection to lose")
def test_a_transaction_that_finds_its_connection_lost_may_succeed_later() -> None:
    connection.ensure_connection()
    for text in ("SELECT pg_terminate_backend(pg_backend_pid())", "BEGIN; SELECT 1"):
        with pytest.raises(OperationalError):
            send(text)
    connection.close()
