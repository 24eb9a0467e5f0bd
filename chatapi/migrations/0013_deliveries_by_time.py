"""Adds indexes of deliveries by time: of all, for deleting old ones, and of those that have failed."""

from django.db import migrations, models

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("chatapi", "0012_mail_of_ends_of_outages")]

    operations = [
        AddIndexBesideWriters(
            model_name="delivery",
            index=models.Index(
                fields=["begun_at"], condition=models.Q(state="failed"), name="deliveries_failed"
            ),
        ),
        AddIndexBesideWriters(
            model_name="delivery",
            index=models.Index(fields=["begun_at"], name="deliveries_by_time"),
        ),
    ]
