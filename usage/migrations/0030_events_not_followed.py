"""Which events of outages have a later one, and an index of the others.

A column that may be null changes no row. Processes of the old release leave it null: a look reads the newest
of these.
"""

from django.db import migrations, models
from django.db.models import Q

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0029_labels_of_usage_notes")]

    operations = [
        migrations.AddField(
            model_name="event",
            name="followed_at",
            field=models.DateTimeField(
                editable=False,
                help_text="When the next event of its outage was written; none: not yet.",
                null=True,
            ),
        ),
        AddIndexBesideWriters(
            model_name="event",
            index=models.Index(
                fields=["kind", "created_at"],
                condition=Q(followed_at__isnull=True),
                name="events_not_followed",
            ),
        ),
    ]
