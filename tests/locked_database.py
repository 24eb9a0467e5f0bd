"""Locks Django's database for longer than its users wait."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from django.db import connection


@contextmanager
def impatient() -> Iterator[None]:
    """Limit waits for a lock to 0.3 s, for new connections of any thread."""
    options = connection.settings_dict["OPTIONS"]
    before = dict(options)
    options |= {"timeout": 0.3} if connection.vendor == "sqlite" else {"options": "-c lock_timeout=300"}
    connect_anew()
    yield
    options |= before
    connect_anew()


def connect_anew() -> None:
    """Close this thread's connection, and all that wait in the pool."""
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL only


@contextmanager
def locked(table: str) -> Iterator[None]:
    """Lock this table for all other writers, or on SQLite the database, inside the block."""
    if connection.vendor == "postgresql":
        import psycopg

        parameters = connection.settings_dict
        with psycopg.connect(
            host=parameters["HOST"],
            port=parameters["PORT"],
            user=parameters["USER"],
            password=parameters["PASSWORD"],
            dbname=parameters["NAME"],
        ) as other:
            other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield
        return
    with closing(sqlite3.connect(str(connection.settings_dict["NAME"]), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")
