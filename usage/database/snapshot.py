"""Consistent long reads of the books, which block no writer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.models import Q, QuerySet

from usage.database import replica
from usage.models import LedgerEntry

PAGE = 2_000


@contextmanager
def snapshot(*, has_time_limit: bool = False) -> Iterator[None]:
    """Make all reads inside see one moment without blocking writers; in a transaction already, do nothing.

    Reads may take any time, unless `has_time_limit`: then each has the service's usual limit.
    """
    database = connections[replica.alias()]
    if database.in_atomic_block:
        yield
        return
    with _reading(database), transaction.atomic(using=database.alias):
        if database.vendor == "postgresql" and not has_time_limit:
            with database.cursor() as cursor:
                # The service's time limits are for requests; a year's books take longer.
                cursor.execute("SET LOCAL statement_timeout = 0")
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


@contextmanager
def _reading(database: Any) -> Iterator[None]:
    """Make the next transaction one that reads a single moment."""
    database.ensure_connection()
    with (_deferred if database.vendor == "sqlite" else _repeatable)(database):
        yield


@contextmanager
def _repeatable(database: Any) -> Iterator[None]:
    """Let psycopg say so in its BEGIN, which spares a statement."""
    own = database.connection
    usual = own.isolation_level, own.read_only
    own.isolation_level, own.read_only = database.Database.IsolationLevel.REPEATABLE_READ, True
    try:
        yield
    finally:
        if not own.closed:
            own.isolation_level, own.read_only = usual


@contextmanager
def _deferred(database: Any) -> Iterator[None]:
    """Make SQLite's transactions deferred: the usual IMMEDIATE ones lock writers out."""
    usual = database.transaction_mode
    database.transaction_mode = "DEFERRED"
    try:
        yield
    finally:
        database.transaction_mode = usual


def pages(entries: QuerySet[LedgerEntry], size: int = PAGE) -> Iterator[list[LedgerEntry]]:
    """Yield the entries by time, a page at once; each page begins where the last one ended."""
    page = list(_in_order(entries)[:size])
    while page:
        yield page
        last = page[-1]
        later = Q(created_at__gt=last.created_at) | Q(created_at=last.created_at, id__gt=last.pk)
        # The first condition is implied by the second, but it is the one that an index can use.
        page = list(_in_order(entries.filter(created_at__gte=last.created_at).filter(later))[:size])


def _in_order(entries: QuerySet[LedgerEntry]) -> QuerySet[LedgerEntry]:
    return entries.order_by("created_at", "id")
