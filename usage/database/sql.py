"""Batches of values as one SQL statement, the same text for SQLite and PostgreSQL.

The ORM costs several times what the database does for these rows; all that is hot in the books goes through here.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from django.db import connection


def rows_of_values(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """`WITH name (columns) AS (VALUES …)` and its parameters: a batch as a table to join with.

    No column may be called like one of the table that is updated: SQLite's RETURNING takes bare names only, and PostgreSQL
    would find them ambiguous.
    """
    return f"WITH {name} ({', '.join(columns)}) AS (VALUES {_placeholders(columns, rows)})", _adapted(rows)


def insert(table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert all rows with one statement; columns that are not named get their default in the database."""
    execute(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES {_placeholders(columns, rows)} {conflict}",  # noqa: S608  the text is ours
        _adapted(rows),
    )


def fetch_all(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def execute(sql: str, parameters: Sequence[Any]) -> None:
    """Run one statement that returns nothing."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)


def db_value(value: Any) -> Any:
    """The value as this database's driver takes it."""
    adapt = _ADAPTERS.get(type(value))
    return value if adapt is None else adapt(value)


def to_uuid(value: Any) -> UUID:
    """A UUID column's value, which SQLite keeps as text."""
    return value if isinstance(value, UUID) else UUID(value)


def to_date(value: Any) -> date:
    """A date column's value, which SQLite keeps as text."""
    return value if isinstance(value, date) else date.fromisoformat(value)


_ADAPTERS: dict[type, Callable[[Any], Any]] = {
    UUID: lambda value: value if connection.features.has_native_uuid_field else value.hex,
    datetime: lambda value: connection.ops.adapt_datetimefield_value(value),  # noqa: PLW0108  a connection is its thread's
    date: lambda value: connection.ops.adapt_datefield_value(value),  # noqa: PLW0108
}


def _placeholders(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    row = "(" + ", ".join(["%s"] * len(columns)) + ")"
    return ", ".join([row] * len(rows))


def _adapted(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [db_value(value) for row in rows for value in row]
