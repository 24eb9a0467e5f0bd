"""A migration that was interrupted goes on when it is run again (docs/operations.md)."""

from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection

from usage.database.index_beside_writers import AddIndexBesideWriters
from usage.models import DailyTotals, Event


def indexes(table: str) -> set[str]:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table)
    return {name for name, each in found.items() if each["index"]}


def test_an_index_that_was_interrupted_is_built_the_next_time(
    migrate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise DatabaseError("the server is going down")

    migrate("usage", "0029")
    with monkeypatch.context() as patch:
        patch.setattr(AddIndexBesideWriters, "database_forwards", interrupt)
        with pytest.raises(DatabaseError):
            migrate()
    migrate()
    assert "events_not_followed" in indexes(Event._meta.db_table)
    assert "totals_of_a_member" in indexes(DailyTotals._meta.db_table)
    assert not Event.objects.filter(followed_at=None).exists()
