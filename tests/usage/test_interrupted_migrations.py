"""A migration that was interrupted goes on when it is run again (docs/operations.md)."""

from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection
from django.db.models import Model

from usage.database.index_beside_writers import AddIndexBesideWriters
from usage.models import Budget, DailyTotals, Event, Generation


def indexes(table: str) -> set[str]:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table)
    return {name for name, each in found.items() if each["index"]}


@pytest.mark.parametrize(
    ("before", "model", "index"),
    [
        ("0015", Generation, "end_user_generations"),
        ("0015", Budget, "budgets_by_period"),
        ("0029", Event, "events_not_followed"),
        ("0029", DailyTotals, "totals_of_a_member"),
    ],
)
def test_an_index_that_was_interrupted_is_built_the_next_time(
    migrate: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    model: type[Model],
    index: str,
) -> None:
    def interrupt(*_: object) -> None:
        raise DatabaseError("the server is going down")

    migrate("usage", before)
    with monkeypatch.context() as patch:
        patch.setattr(AddIndexBesideWriters, "database_forwards", interrupt)
        with pytest.raises(DatabaseError):
            migrate()
    migrate()
    assert index in indexes(model._meta.db_table)
    assert not Event.objects.filter(followed_at=None).exists()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no such index")
def test_an_index_that_is_not_valid_is_not_kept(migrate: Callable[..., None]) -> None:
    """An interrupted CREATE INDEX CONCURRENTLY leaves one that no query uses."""
    migrate("usage", "0005")
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX generations_by_time ON usage_generation USING brin (settled_at)")
        cursor.execute(
            "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'generations_by_time'::regclass"
        )
    migrate()
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid")
        assert cursor.fetchall() == []
