"""An index of the events that no later one of their outage has followed.

It is apart from its column: a migration that was interrupted runs again from its first operation, and a column
is not added twice.
"""

from django.db import migrations, models
from django.db.models import Q

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0031_days_of_one_member")]

    operations = [
        AddIndexBesideWriters(
            model_name="event",
            index=models.Index(
                fields=["kind", "created_at"],
                condition=Q(followed_at__isnull=True),
                name="events_not_followed",
            ),
        ),
    ]
