"""A migration that was interrupted goes on when it is run again (docs/operations.md)."""

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection

from usage.database.index_beside_writers import AddIndexBesideWriters
from usage.models import DailyTotals, Event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def old_schema() -> Iterator[None]:
    """Leave out what the release has added; restore the newest schema at the end."""
    call_command("migrate", "usage", "0029", verbosity=0)
    yield
    call_command("migrate", verbosity=0)


def indexes(table: str) -> set[str]:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, table)
    return {name for name, each in found.items() if each["index"]}


def test_an_index_that_was_interrupted_is_built_the_next_time(
    old_schema: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise DatabaseError("the server is going down")

    with monkeypatch.context() as patch:
        patch.setattr(AddIndexBesideWriters, "database_forwards", interrupt)
        with pytest.raises(DatabaseError):
            call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0)
    assert "events_not_followed" in indexes(Event._meta.db_table)
    assert "totals_of_a_member" in indexes(DailyTotals._meta.db_table)
    assert not Event.objects.filter(followed_at=None).exists()
