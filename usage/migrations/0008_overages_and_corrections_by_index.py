"""Indexes of the few ledger entries that are overages or corrections: they can be added up without a look at all charges.

They have all that is added up, and charges are not in them, so they cost settlements nothing. `kind` comes first, though it is the
same in all of them: SQLite takes an index for a condition on its first column.
"""

from django.db import migrations, models


class AddIndexBesideWriters(migrations.AddIndex):
    """Adds it on PostgreSQL without keeping settlements waiting; SQLite has one writer anyway, and needs a fifth of a second a million."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        # One that was interrupted is there, and not valid.
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {self.index.name}")
        schema_editor.add_index(model, self.index, concurrently=True)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor != "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)
            return
        schema_editor.remove_index(from_state.apps.get_model(app_label, self.model_name), self.index, concurrently=True)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0007_retention_horizons")]

    operations = [
        AddIndexBesideWriters(
            model_name="ledgerentry",
            index=models.Index(
                fields=["kind", "created_at", "model", "amount_nanodollars"], condition=models.Q(kind="overage"), name="overages"
            ),
        ),
        AddIndexBesideWriters(
            model_name="ledgerentry",
            index=models.Index(fields=["kind", "model", "amount_nanodollars"], condition=models.Q(kind="correction"), name="corrections"),
        ),
    ]
