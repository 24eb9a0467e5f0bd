"""Lets the id of a budget hold any key, such as one with the name of a model.

PostgreSQL widens the column without reading a row. SQLite ignores the length, and would copy the table.
"""

from django.db import migrations, models


class AlterFieldOnPostgreSQL(migrations.AlterField):
    """Alters the field on PostgreSQL only."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    dependencies = [("usage", "0024_events")]

    operations = [
        AlterFieldOnPostgreSQL(
            "budget", "id", models.CharField(max_length=255, primary_key=True, serialize=False)
        ),
    ]
