"""A migration's operation: an index that is added while others write."""

from typing import Any

from django.db.migrations import AddIndex


class AddIndexBesideWriters(AddIndex):
    """Adds it on PostgreSQL without keeping settlements waiting; SQLite has one writer anyway, and needs a fifth of a second a million."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        # One that was interrupted is there, and not valid.
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.index.name}")
        schema_editor.add_index(model, self.index, concurrently=True)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        schema_editor.remove_index(from_state.apps.get_model(app_label, self.model_name), self.index, concurrently=True)
