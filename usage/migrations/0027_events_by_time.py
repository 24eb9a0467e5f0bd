"""Indexes of events in the order of their lists, of all and of one kind, and for deleting old ones."""

from django.db import migrations, models
from django.db.models import Q

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0026_ends_of_outages")]

    operations = [
        AddIndexBesideWriters(
            model_name="event",
            index=models.Index(fields=["-created_at", "-id"], name="events_by_time"),
        ),
        AddIndexBesideWriters(
            model_name="event",
            index=models.Index(fields=["kind", "-created_at", "-id"], name="events_of_a_kind"),
        ),
        AddIndexBesideWriters(
            model_name="event",
            index=models.Index(
                fields=["created_at"],
                condition=~Q(period="ever") & ~Q(kind="credit.low"),
                name="events_to_delete",
            ),
        ),
    ]
