"""Which events of outages have a later one.

A column that may be null changes no row. Processes of the old release leave it null: a look reads the newest
of these.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
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
    ]
