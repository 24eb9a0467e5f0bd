"""I6: the database itself refuses to change the ledger."""

from collections.abc import Callable, Iterator

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.db.models import AutoField, Model, Q, UniqueConstraint

from accounts.audit.models import AuditEntry
from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, run
from tests.usage.triggers import TABLES, without_triggers
from usage.books import credit, ledger
from usage.books.credit import Note
from usage.models import LedgerEntry, LedgerSeal, Statement
from usage.verification import seals, verify

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


@pytest.mark.parametrize(
    "statement", ["DELETE FROM usage_ledgerseal", "UPDATE usage_ledgerseal SET entries_count = 0"]
)
def test_a_seal_can_be_neither(entry: LedgerEntry, statement: str) -> None:
    assert seals.seal()
    with (
        pytest.raises(IntegrityError, match="never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    assert LedgerSeal.objects.get().entries_count == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no TRUNCATE")
def test_the_ledger_can_not_be_truncated(entry: LedgerEntry) -> None:
    for table in TABLES:
        with (
            pytest.raises(IntegrityError, match="never changed"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SET CONSTRAINTS ALL IMMEDIATE; TRUNCATE {table}")


def test_verification_misses_a_trigger_that_is_gone(entry: LedgerEntry) -> None:
    assert verify().differences == []
    with without_triggers():
        (difference,) = verify().differences
    assert (difference.invariant, difference.subject) == ("I6 immutable", "the ledger's triggers")
    assert verify().differences == []


REPLACED = {
    "id": "REPLACE INTO usage_ledgerentry SELECT * FROM usage_ledgerentry",
    "generation": "REPLACE INTO usage_ledgerentry ({columns}) SELECT {columns} FROM usage_ledgerentry",
    "seal": "REPLACE INTO usage_ledgerseal SELECT * FROM usage_ledgerseal",
    "seal after another": """REPLACE INTO usage_ledgerseal
        (first_id, last_id, entries_count, sum_nanodollars, previous_digest, digest, fingerprints, sealed_at)
        SELECT first_id, last_id + 1, 0, 0, previous_digest, digest, fingerprints, sealed_at
        FROM usage_ledgerseal""",
    "seal of the same": """REPLACE INTO usage_ledgerseal
        (first_id, last_id, entries_count, sum_nanodollars, previous_digest, digest, fingerprints, sealed_at)
        SELECT first_id, last_id, 1, 0, 'x', digest, fingerprints, sealed_at FROM usage_ledgerseal""",
    "request": "REPLACE INTO usage_generation SELECT * FROM usage_generation",
    "request by its place": """REPLACE INTO usage_generation (rowid, {generation})
        SELECT rowid, 'x', {rest} FROM usage_generation""",
    "request that gets its id": """UPDATE OR REPLACE usage_generation
        SET id = (SELECT max(id) FROM usage_generation)""",
}


def _names(table: str) -> list[str]:
    with connection.cursor() as cursor:
        return [column.name for column in connection.introspection.get_table_description(cursor, table)]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has no REPLACE")
@pytest.mark.parametrize("way", REPLACED)
def test_nothing_can_be_replaced(entry: LedgerEntry, ask: Ask, way: str) -> None:
    ledger.admit(NOW, [ask()])
    assert seals.seal()
    columns, generation = (
        [name for name in _names("usage_ledgerentry") if name != "id"],
        _names("usage_generation"),
    )
    text = REPLACED[way].format(
        columns=", ".join(columns), generation=", ".join(generation), rest=", ".join(generation[1:])
    )
    with (
        pytest.raises(IntegrityError, match="never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(text)
    assert verify().differences == []


def _unique_keys() -> Iterator[tuple[type[Model], tuple[str, ...], Q]]:
    """Yield the unique keys of the tables that triggers protect, with the condition of their rows."""
    for model in apps.get_models():
        options = model._meta
        if options.db_table in TABLES:
            yield from ((model, (field.name,), Q()) for field in options.concrete_fields if field.unique)
            for constraint in options.constraints:
                if isinstance(constraint, UniqueConstraint):
                    assert constraint.fields, "a key of expressions is not tried"
                    yield model, tuple(constraint.fields), constraint.condition or Q()


def _replacing(model: type[Model], key: tuple[str, ...]) -> str:
    """Return the statement that writes a row again: the same in this key, and another in all other ones."""
    columns = {field.name: str(field.column) for field in model._meta.concrete_fields}
    values = {column: column for column in columns.values()}
    for name in {name for each, names, _ in _unique_keys() if each is model for name in names} - {*key}:
        is_counted = isinstance(model._meta.get_field(name), AutoField)
        values[columns[name]] = "NULL" if is_counted else "lower(hex(randomblob(16)))"
    table, pk = model._meta.db_table, columns[model._meta.pk.name]
    return f"""REPLACE INTO {table} ({", ".join(values)})
        SELECT {", ".join(values.values())} FROM {table} WHERE {pk} = %s"""


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has no REPLACE")
@pytest.mark.parametrize(("model", "names", "condition"), list(_unique_keys()), ids=str)
def test_no_unique_key_of_a_protected_table_lets_a_row_be_replaced(
    entry: LedgerEntry, model: type[Model], names: tuple[str, ...], condition: Q
) -> None:
    organization = entry.organization
    assert organization is not None
    credit.grant(organization, 5, Note("first", "alice", "pay_1"))
    assert seals.seal()
    Statement.objects.create(
        organization=organization,
        month=NOW,
        charged_nanodollars=0,
        closing_balance_nanodollars=0,
        issued_at=NOW,
    )
    AuditEntry.objects.create(actor="alice", action="created")
    row = model._default_manager.filter(condition).first()
    assert row is not None
    with (
        pytest.raises(IntegrityError, match="never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(_replacing(model, names), [model._meta.pk.get_db_prep_value(row.pk, connection)])


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has no REPLACE")
def test_a_payment_can_not_be_replaced(key: APIKey) -> None:
    grant, _ = credit.grant(key.project.organization, 5, Note("first", "alice", "pay_1"))
    columns = ", ".join(
        name for name in _names("usage_ledgerentry") if name not in ("id", "amount_nanodollars")
    )
    values = f"SELECT {columns}, -99 FROM usage_ledgerentry"
    statement = f"REPLACE INTO usage_ledgerentry ({columns}, amount_nanodollars) {values}"
    with (
        pytest.raises(IntegrityError, match="never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    assert LedgerEntry.objects.get().pk == grant.pk


SQLITE_DUMMIES = {
    "usage_ledgerentry_never_updates": "BEFORE update ON usage_ledgerentry BEGIN SELECT 1; END",
    "usage_ledgerentry_never_replaces": """BEFORE INSERT ON usage_ledgerentry WHEN 0
        BEGIN SELECT RAISE(ABORT, 'never'); END""",
    "usage_generation_never_deletes": """BEFORE DELETE ON usage_ledgerseal
        BEGIN SELECT RAISE(ABORT, 'never'); END""",
}
POSTGRESQL_DUMMIES = {
    "usage_ledgerentry_never_changes": """BEFORE UPDATE ON usage_ledgerentry FOR EACH STATEMENT
        EXECUTE FUNCTION usage_refuse_change()""",
    "usage_generation_never_deletes": """BEFORE DELETE ON usage_generation FOR EACH ROW WHEN (FALSE)
        EXECUTE FUNCTION usage_keep_generation()""",
    "usage_ledgerseal_never_changes": """BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_ledgerseal
        FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()""",
}
DUMMIES = {"sqlite": SQLITE_DUMMIES, "postgresql": POSTGRESQL_DUMMIES}[connection.vendor]


@pytest.mark.parametrize("name", DUMMIES)
def test_verification_misses_a_trigger_that_does_something_else(db: None, name: str) -> None:
    table = name.partition("_never")[0]
    of_table = "" if connection.vendor == "sqlite" else f" ON {table}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER {name}{of_table}")
        cursor.execute(f"CREATE TRIGGER {name} {DUMMIES[name]}")
    (difference,) = verify().differences
    assert difference.found == f"gone or changed: {name}"


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite has neither functions nor modes of triggers"
)
@pytest.mark.parametrize(
    "change",
    [
        "CREATE OR REPLACE FUNCTION usage_refuse_change() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RETURN NULL; END'",
        "ALTER TABLE usage_ledgerentry ENABLE REPLICA TRIGGER usage_ledgerentry_never_changes",
        "ALTER TABLE usage_ledgerentry DISABLE TRIGGER usage_ledgerentry_never_changes",
    ],
)
def test_verification_notices_a_disabled_or_hollow_trigger(db: None, change: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(change)
    (difference,) = verify().differences
    assert difference.invariant == "I6 immutable"
    assert difference.found.startswith("gone or changed: usage_ledgerentry_never_changes")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no such setting")
def test_verification_misses_triggers_that_do_not_fire_for_a_replica(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
    assert "I6 immutable" in {difference.invariant for difference in verify().differences}
