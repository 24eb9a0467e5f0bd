"""The triggers by which the database refuses to change or delete rows of the books; a test disables them to
alter such a row, or to empty the tables at its end.

That takes the right to change the schema, which a person has in production; the service's code never does it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

TABLES = (
    "usage_ledgerentry",
    "usage_ledgerseal",
    "usage_statement",
    "usage_generation",
    "audit_auditentry",
)


@contextmanager
def without_triggers() -> Iterator[None]:
    """Allow changes and deletions in the ledger, the audit log and generations, as with the database's
    password.
    """
    if connection.vendor == "postgresql":
        # A table with unchecked foreign keys can't be altered.
        check = "SET CONSTRAINTS ALL IMMEDIATE"
        aside = [check, *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in TABLES)]
        back = [check, *(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in TABLES)]
    else:
        triggers = _sqlite_triggers()
        aside, back = [f"DROP TRIGGER {name}" for name in triggers], list(triggers.values())
    _run(aside)
    try:
        yield
    finally:
        _run(back)


def let_tests_empty_tables(database: BaseDatabaseWrapper) -> None:
    """Disable the triggers in the transaction that empties the tables after each transactional test."""
    flush: Callable[[Iterable[str]], None] = database.ops.execute_sql_flush

    def flush_without_triggers(statements: Iterable[str]) -> None:
        with transaction.atomic(), without_triggers():
            flush(statements)

    database.ops.execute_sql_flush = flush_without_triggers  # type: ignore[assignment]


def _sqlite_triggers() -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN (%s, %s, %s, %s, %s)",
            TABLES,
        )
        return dict(cursor.fetchall())


def _run(statements: Iterable[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
