"""Long reads: of one moment, and in nobody's way."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from accounts.models import Organization
from usage.database.snapshot import snapshot


def rename(name: str) -> None:
    """Rename it over another connection, like another process."""
    try:
        Organization.objects.update(name=name)
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_fresh", [True, False])
def test_writers_go_on_meanwhile_and_the_reader_does_not_see_it(is_fresh: bool) -> None:
    Organization.objects.create(name="before")
    if is_fresh:
        connection.close()
    with ThreadPoolExecutor(1) as other:
        with snapshot():
            assert Organization.objects.get().name == "before"
            other.submit(rename, "after").result(4)
            assert Organization.objects.get().name == "before"
        assert Organization.objects.get().name == "after"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's limit is another one")
@pytest.mark.django_db(transaction=True)
def test_a_snapshot_has_no_time_limit_unless_requested() -> None:
    limits = []
    for has_time_limit in (False, True):
        with snapshot(has_time_limit=has_time_limit), connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            limits.append(cursor.fetchone())
    assert limits == [("0",), ("5s",)]


def test_inside_a_transaction_it_is_that_one(db: None) -> None:
    Organization.objects.create(name="mine")
    with snapshot():
        assert Organization.objects.get().name == "mine"
