"""SQL statements on the driver's own connection, the same text for SQLite and PostgreSQL.

For the hot statements of the books: the ORM takes several times as long as the database, and Django's cursor,
which looks for placeholders with a regular expression, as long as SQLite itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections

from usage.database import replica

Rows = list[tuple[Any, ...]]
# The text, its parameters, and the list that gets the rows of one whose rows are wanted later.
Statement = tuple[str, Sequence[Any], Rows | None]
# What `together` has not sent yet.
_waiting: ContextVar[list[Statement] | None] = ContextVar("statements that wait", default=None)


def rows_of_values(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """Return `WITH name (columns) AS (VALUES …)` and its parameters: a batch as a table to join with.

    No column may have the name of one in the table that is updated: SQLite's RETURNING takes bare names only,
    which PostgreSQL would find ambiguous.
    """
    return f"WITH {name} ({', '.join(columns)}) AS (VALUES {_placeholders(columns, rows)})", _adapted(rows)


def insert(table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], conflict: str = "") -> None:
    """Insert all rows with one statement; other columns get their default from the database."""
    values = f"VALUES {_placeholders(columns, rows)} {conflict}"
    execute(f"INSERT INTO {table} ({', '.join(columns)}) {values}", _adapted(rows))


def fetch_all(sql: str, parameters: Sequence[Any] = ()) -> Rows:
    """Run one statement and return its rows, if it returns any. Raises the errors of `django.db`.

    Every `%s` in the text is a parameter, and it has no other `%`.
    """
    waiting = _waiting.get() or []
    statements = [*waiting, (sql, parameters, None)]
    waiting.clear()
    return _run(statements)


def execute(sql: str, parameters: Sequence[Any] = ()) -> None:
    """Run one statement and ignore its rows; see `fetch_all`."""
    _send((sql, parameters, None))


def fetch_later(sql: str, parameters: Sequence[Any]) -> Rows:
    """Run one statement as `execute` does; the list has its rows as soon as it was sent. See `fetch_all`."""
    rows: Rows = []
    _send((sql, parameters, rows))
    return rows


def _send(statement: Statement) -> None:
    """Run the statement now, or with the others that `together` sends."""
    waiting = _waiting.get()
    if waiting is None:
        _run([statement])
    else:
        waiting.append(statement)


@contextmanager
def together() -> Iterator[None]:
    """Send PostgreSQL in one message what is executed inside, at the latest with the next `fetch_all`.

    Statements of the ORM would not wait for their turn, so there are none inside.
    """
    if connections[DEFAULT_DB_ALIAS].vendor == "sqlite" or _waiting.get() is not None:
        yield
        return
    waiting: list[Statement] = []
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)
    if waiting:
        _run(waiting)


def _run(statements: Sequence[Statement]) -> Rows:
    """Run the statements and return the rows of the last one, unless they go into a list."""
    own: Any = connections[replica.alias()]
    if own.queries_logged or own.execute_wrappers:  # someone logs Django's queries
        with own.cursor() as cursor:
            for sql, parameters, rows in statements:
                cursor.execute(sql, parameters)
                if rows is not None:
                    rows.extend(_rows(cursor))
            return _rows(cursor)
    own.ensure_connection()
    own.validate_no_broken_transaction()
    with own.wrap_database_errors:
        if own.vendor == "sqlite":
            ((sql, parameters, rows),) = statements
            found = _rows(own.connection.execute(sql.replace("%s", "?"), parameters))
            if rows is not None:
                rows.extend(found)
            return found
        cursor = own.connection.execute(
            "; ".join(sql for sql, _, _ in statements),
            [each for _, parameters, _ in statements for each in parameters],
        )
        for _, _, rows in statements:
            if rows is not None:
                rows.extend(_rows(cursor))
            cursor.nextset()
        return _rows(cursor)


def send(sql: str) -> str:
    """Send PostgreSQL a text that cannot be wrong, without psycopg's BEGIN before it. Return its first value,
    as text; raises `OperationalError`.
    """
    own: Any = connections[DEFAULT_DB_ALIAS]
    with own.wrap_database_errors:
        result = own.connection.pgconn.exec_(sql.encode())
        if result.status != own.Database.pq.ExecStatus.TUPLES_OK:
            raise own.Database.OperationalError(result.get_error_message())
        return str(result.get_value(0, 0), "ascii")


def db_value(value: Any) -> Any:
    """Return the value as this database's driver takes it."""
    return _adapted([[value]])[0]


def to_uuid(value: Any) -> UUID:
    """Return the value of a UUID column, which SQLite stores as text."""
    return value if isinstance(value, UUID) else UUID(value)


def to_datetime(value: Any) -> datetime:
    """Return the value of a time column, which SQLite stores as text; compare it only with others of them."""
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def to_date(value: Any) -> date:
    """Return the value of a date column, which SQLite stores as text."""
    return value if isinstance(value, date) else date.fromisoformat(value)


_ADAPTERS: Mapping[str, Mapping[type, Callable[[Any], Any]]] = {
    # As Django writes them into these columns.
    "sqlite": {
        UUID: lambda value: value.hex,
        datetime: lambda value: str(value.astimezone(UTC).replace(tzinfo=None)),
        date: str,
    },
    "postgresql": {},
}


def _placeholders(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    row = "(" + ", ".join(["%s"] * len(columns)) + ")"
    return ", ".join([row] * len(rows))


def _adapted(rows: Iterable[Sequence[Any]]) -> list[Any]:
    adapter = _ADAPTERS[connections[replica.alias()].vendor].get
    return [
        value if (adapt := adapter(type(value))) is None else adapt(value) for row in rows for value in row
    ]


def _rows(cursor: Any) -> Rows:
    return [] if cursor.description is None else list(cursor.fetchall())
