"""The watchdog's single statements, with a real PostgreSQL; `tests/faults` has servers that hang."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from tests.installation import wait_for
from usage.database.sql import execute
from usage.database.watchdog import CHECKS, STATEMENTS, Watchdog

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite is no server"),
]
# The rounds that a statement may take.
MOST_ROUNDS = STATEMENTS * CHECKS
LOCK = 71_077

Page = Callable[[str], "Future[Any]"]


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    """Return a watchdog that goes its rounds when the test says so."""
    own = Watchdog()
    monkeypatch.setattr("usage.database.postgresql.base.watchdog", own)
    return own


@pytest.fixture
def page(watchdog: Watchdog) -> Iterator[Page]:
    """Return a function that executes a statement on the one connection of a page's thread."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda sql: thread.submit(execute, sql, [])
        thread.submit(connections.close_all).result(10)


def go_rounds(watchdog: Watchdog, page: Page, rounds: int) -> None:
    """Let the page wait for a lock during these rounds, and then get it."""
    execute("SELECT pg_advisory_lock(%s)", [LOCK])
    waiting = page(f"SELECT pg_advisory_xact_lock({LOCK})")
    wait_for(is_waited_for, "a statement that waits")
    try:
        for _ in range(rounds):
            watchdog.look()
    finally:
        execute("SELECT pg_advisory_unlock(%s)", [LOCK])
    waiting.result(10)


def is_waited_for() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return cursor.fetchone() is not None


def test_a_statement_that_waits_too_long_is_cut(watchdog: Watchdog, page: Page) -> None:
    with pytest.raises(OperationalError):
        go_rounds(watchdog, page, MOST_ROUNDS + 1)


def test_an_answer_in_the_last_round_is_not_cut(watchdog: Watchdog, page: Page) -> None:
    go_rounds(watchdog, page, MOST_ROUNDS)
    watchdog.look()
    page("SELECT 1").result(10)


def test_statements_in_a_row_are_not_one_long_statement(watchdog: Watchdog, page: Page) -> None:
    """A report may have many of them, and no round falls between two."""
    for _ in range(STATEMENTS):
        go_rounds(watchdog, page, MOST_ROUNDS // 2)
