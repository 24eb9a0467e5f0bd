"""I6: the database itself refuses to change the ledger."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction

from tests.usage.conftest import NOW, completed, run
from tests.usage.emptying import TABLES, without_triggers
from usage import ledger, seals
from usage.models import LedgerEntry, LedgerSeal
from usage.verification import verify

Ask = Callable[..., ledger.Admission]


@pytest.fixture
def entry(ask: Ask) -> LedgerEntry:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission))])
    return LedgerEntry.objects.get()


def test_an_entry_can_not_be_changed(entry: LedgerEntry) -> None:
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        LedgerEntry.objects.filter(pk=entry.pk).update(amount_nanodollars=0)
    assert LedgerEntry.objects.get().amount_nanodollars == entry.amount_nanodollars


def test_an_entry_can_not_be_deleted(entry: LedgerEntry) -> None:
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        entry.delete()
    assert LedgerEntry.objects.count() == 1


@pytest.mark.parametrize("statement", ["DELETE FROM usage_ledgerseal", "UPDATE usage_ledgerseal SET entries_count = 0"])
def test_a_seal_can_be_neither(entry: LedgerEntry, statement: str) -> None:
    assert seals.seal()
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert LedgerSeal.objects.get().entries_count == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no TRUNCATE")
def test_the_ledger_can_not_be_truncated(entry: LedgerEntry) -> None:
    for table in TABLES:
        with pytest.raises(IntegrityError, match="never changed"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET CONSTRAINTS ALL IMMEDIATE; TRUNCATE {table}")


def test_verification_misses_a_trigger_that_is_gone(entry: LedgerEntry) -> None:
    assert verify().differences == []
    with without_triggers():
        (difference,) = verify().differences
    assert (difference.invariant, difference.subject) == ("I6 immutable", "the ledger's triggers")
    assert verify().differences == []
