"""Indexes of the few ledger entries that are overages or corrections: they can be added up without a look at
all charges.

They have all that is added up, and charges are not in them, so they cost settlements nothing. `kind` comes
first, though it is the same in all of them: SQLite takes an index for a condition on its first column.
"""

from django.db import migrations, models

from usage.database.index_beside_writers import AddIndexBesideWriters


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
