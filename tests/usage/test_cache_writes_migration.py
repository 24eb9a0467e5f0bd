"""Migration 0015, which adds tokens written to a prompt cache: older books stay right there and back."""

from collections.abc import Callable
from typing import Any

from django.db import connection

from tests.usage.test_cache_writes import COLUMNS, Ask, settle
from usage.books import receipts
from usage.database.sql import fetch_all
from usage.models import Generation
from usage.pricing import Tokens
from usage.verification import seals, verify


def test_books_of_before_stay_right_there_and_back(migrate: Callable[..., None], ask: Ask) -> None:
    row = settle(ask(), Tokens(10, 20, 4))
    seals.seal()
    before = _rows()
    migrate("usage", "0014")
    for table in before:
        assert not set(COLUMNS) & _columns(table), "they are gone"
    migrate()
    assert _rows() == before
    again = Generation.objects.get(pk=row.pk)
    assert (again.cache_write_tokens, again.price.cache_write_per_mtok_nanodollars) == (None, None)
    assert receipts.line_items(again) == receipts.line_items(row)
    assert verify().differences == []


def _rows() -> dict[str, list[tuple[Any, ...]]]:
    tables = ("usage_generation", "usage_ledgerentry", "usage_hourlyusage")
    return {
        table: fetch_all(f"SELECT {', '.join(sorted(_columns(table)))} FROM {table} ORDER BY id")
        for table in tables
    }


def _columns(table: str) -> set[str]:
    with connection.cursor() as cursor:
        return {column.name for column in connection.introspection.get_table_description(cursor, table)}
