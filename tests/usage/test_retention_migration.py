"""Migration 0007: the ledger stays immutable and as it was, there and back, and there is no way back once
something was dropped.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction

from tests.usage.conftest import NOW, completed, run
from usage.books import corrections, ledger
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.models import LedgerEntry, RetentionHorizon
from usage.verification import seals, verify

Ask = Callable[..., ledger.Admission]
COLUMNS = [name for name in seals.COLUMNS if not name.startswith("cache_write")]
"""The ledger's columns as of migration 0006."""
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def books(migrate: Callable[..., None], ask: Ask) -> Iterator[None]:
    """Write a charge, correct and seal it."""
    with transaction.atomic():
        ledger.admit(NOW, [admission := ask()])
        ledger.settle(NOW, [completed(run(admission))])
    corrections.correct(LedgerEntry.objects.get().pk, -1, Note("story", "alice"))
    seals.seal()
    yield
    RetentionHorizon.objects.all().delete()


def execute(sql: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql)


def ledger_is_immutable() -> bool:
    for sql in (
        "UPDATE usage_ledgerentry SET amount_nanodollars = 0",
        "DELETE FROM usage_ledgerentry",
        "DELETE FROM usage_ledgerseal",
    ):
        with pytest.raises(IntegrityError, match="never changed"):
            execute(sql)
    return True


def schema() -> list[tuple[str, str]]:
    """Return the ledger's triggers, indexes and, on SQLite, its columns."""
    found = {
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE tbl_name = 'usage_ledgerentry' ORDER BY name",
        "postgresql": """SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'usage_ledgerentry'
            UNION SELECT tgname, '' FROM pg_trigger
            WHERE tgrelid = 'usage_ledgerentry'::regclass AND NOT tgisinternal ORDER BY 1""",
    }
    with connection.cursor() as cursor:
        cursor.execute(found[connection.vendor])
        return list(cursor.fetchall())


def written() -> list[tuple[Any, ...]]:
    """Return the sealed columns of all entries; an older schema lacks later ones."""
    return list(LedgerEntry.objects.order_by("id").values_list(*seals.COLUMNS))


def test_the_ledger_is_immutable_there_and_back(migrate: Callable[..., None], books: None) -> None:
    entries, there = list(LedgerEntry.objects.order_by("id").values(*COLUMNS)), schema()
    migrate("usage", "0006")
    assert list(LedgerEntry.objects.order_by("id").values(*COLUMNS)) == entries
    assert ledger_is_immutable()
    with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
        execute("DELETE FROM usage_generation")
    migrate()
    assert (list(LedgerEntry.objects.order_by("id").values(*COLUMNS)), schema()) == (entries, there)
    assert ledger_is_immutable()
    with pytest.raises(IntegrityError, match="retention horizon"):
        execute("DELETE FROM usage_generation")
    assert verify().differences == []


def test_an_index_that_an_interrupted_migration_has_left_is_made_anew(
    migrate: Callable[..., None], books: None
) -> None:
    there = schema()
    migrate("usage", "0007")
    execute("CREATE INDEX overages ON usage_ledgerentry (kind)")
    migrate()
    assert schema() == there


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite has one writer, and readers that keep nobody waiting"
)
def test_an_index_waits_for_reads_beyond_the_time_limit(migrate: Callable[..., None], books: None) -> None:
    migrate("usage", "0007")
    execute("SET statement_timeout = 200")
    with psycopg.connect(
        connection.connection.info.dsn, password=connection.connection.info.password
    ) as reader:
        reader.execute("SELECT count(*) FROM usage_ledgerentry")
        ending = threading.Timer(1, reader.rollback)
        ending.start()
        migrate()
        ending.join()
    assert "overages" in dict(schema())


def test_there_is_no_way_back_once_something_was_dropped(migrate: Callable[..., None], books: None) -> None:
    day = NOW.date()
    RetentionHorizon.objects.create(
        day=day, after=day, generations_count=0, recorded_by="", recorded_at=database_now()
    )
    with pytest.raises(RuntimeError, match="no way back"):
        migrate("usage", "0006")
    assert ledger_is_immutable()
