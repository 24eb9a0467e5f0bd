"""A migration operation that adds an index while others write."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.migrations import AddIndex


class AddIndexBesideWriters(AddIndex):
    """Adds an index concurrently on PostgreSQL, so that settlements do not wait.

    SQLite has one writer anyway, and needs 0.2 s for a million rows.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        # An interrupted migration may have left the index; on PostgreSQL it is invalid then.
        if schema_editor.connection.vendor != "postgresql":
            schema_editor.execute(f"DROP INDEX IF EXISTS {self.index.name}")
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        with no_time_limit(schema_editor):
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.index.name}")
            schema_editor.add_index(model, self.index, concurrently=True)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        model = from_state.apps.get_model(app_label, self.model_name)
        with no_time_limit(schema_editor):
            schema_editor.remove_index(model, self.index, concurrently=True)


@contextmanager
def no_time_limit(schema_editor: Any) -> Iterator[None]:
    """Lift the time limits: a concurrent index waits for all transactions that began before it."""
    limits = ("statement_timeout", "lock_timeout")
    for limit in limits:
        schema_editor.execute(f"SET {limit} = 0")
    try:
        yield
    finally:
        for limit in limits:
            schema_editor.execute(f"RESET {limit}")
