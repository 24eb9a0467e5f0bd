"""Drops PostgreSQL's foreign keys of generations and ledger entries to their owners.

SQLite keeps them, because it would have to copy both tables. Not atomic, so that the locks on the tables of
the owners are held for one constraint only.
"""

import django.db.models.deletion
from django.db import migrations, models

OWNERS = {"organization": "organization", "project": "project", "api_key": "apikey"}


class AlterFieldOnPostgreSQL(migrations.AlterField):
    """Alters the field on PostgreSQL only."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)


def _owner(model, name):
    field = models.ForeignKey(
        db_constraint=False,
        db_index=False,
        null=model == "ledgerentry" and name != "organization",
        on_delete=django.db.models.deletion.PROTECT,
        related_name="+",
        to=f"accounts.{OWNERS[name]}",
    )
    return AlterFieldOnPostgreSQL(model_name=model, name=name, field=field)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0020_bookings_by_organization")]

    operations = [_owner(model, name) for model in ("generation", "ledgerentry") for name in OWNERS]
