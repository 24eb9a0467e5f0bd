"""A migration's operation: an index that is added while others write."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.migrations import AddIndex


class AddIndexBesideWriters(AddIndex):
    """Adds it on PostgreSQL without keeping settlements waiting; SQLite has one writer anyway, and needs a
    fifth of a second a million.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        # A migration that was interrupted has left it, on PostgreSQL not valid.
        if schema_editor.connection.vendor != "postgresql":
            schema_editor.execute(f"DROP INDEX IF EXISTS {self.index.name}")
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        with _all_the_time_it_takes(schema_editor):
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.index.name}")
            schema_editor.add_index(model, self.index, concurrently=True)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        model = from_state.apps.get_model(app_label, self.model_name)
        with _all_the_time_it_takes(schema_editor):
            schema_editor.remove_index(model, self.index, concurrently=True)


@contextmanager
def _all_the_time_it_takes(schema_editor: Any) -> Iterator[None]:
    """Without the time limits of a request: it waits for all transactions that have begun before it, and
    keeps nobody waiting.
    """
    limits = ("statement_timeout", "lock_timeout")
    for limit in limits:
        schema_editor.execute(f"SET {limit} = 0")
    try:
        yield
    finally:
        for limit in limits:
            schema_editor.execute(f"RESET {limit}")
