"""Batches of values as one SQL statement, the same text for SQLite and PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from django.db import connection


def rows_of_values(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """`WITH name (columns) AS (VALUES …)` and its parameters: a batch as a table to join with.

    No column may be called like one of the table that is updated: SQLite's RETURNING takes bare names only, and PostgreSQL
    would find them ambiguous.
    """
    row = "(" + ", ".join(["%s"] * len(columns)) + ")"
    values = ", ".join([row] * len(rows))
    return f"WITH {name} ({', '.join(columns)}) AS (VALUES {values})", [value for row in rows for value in row]


def fetch_all(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def execute(sql: str, parameters: Sequence[Any]) -> None:
    """Run one statement that returns nothing."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
