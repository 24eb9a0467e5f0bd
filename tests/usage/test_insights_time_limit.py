"""A read that takes too long is ended, and the connection stays good."""

import time

import pytest
from django.db import OperationalError, connection
from pytest_django.fixtures import Settings

from usage.database.time_limit import time_limit

pytestmark = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="PostgreSQL has its own limit, set when it connects"
)
NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers)"
ENDLESS = f"{NUMBERS} SELECT COUNT(*) FROM numbers"


def test_an_endless_statement_is_ended(db: None, settings: Settings) -> None:
    settings.DATABASE_TIMEOUT_MS = 100
    began = time.monotonic()
    with connection.cursor() as cursor:
        with pytest.raises(OperationalError), time_limit():
            cursor.execute(ENDLESS)
        assert time.monotonic() - began >= 0.1
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_later_statements_have_no_limit(db: None, settings: Settings) -> None:
    settings.DATABASE_TIMEOUT_MS = 1
    with time_limit():
        pass
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT COUNT(*) FROM ({ENDLESS.replace('COUNT(*)', 'n')} LIMIT 1000000) AS a_million"
        )
        assert cursor.fetchone() == (1_000_000,)


def test_a_limit_within_a_limit_ends_with_the_outer_one(db: None, settings: Settings) -> None:
    settings.DATABASE_TIMEOUT_MS = 100
    with connection.cursor() as cursor, time_limit():
        with time_limit():
            cursor.execute("SELECT 1")
        with pytest.raises(OperationalError):
            cursor.execute(ENDLESS)
