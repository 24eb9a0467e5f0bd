"""Adds weeks to the periods of limits, and an index of these limits; no column changes."""

from django.db import migrations, models
from django.db.models import Q

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0034_events_of_failed_statements")]

    operations = [
        migrations.AlterField(
            model_name="budgetlimit",
            name="period",
            field=models.CharField(
                choices=[("day", "Day"), ("week", "Week"), ("month", "Month"), ("ever", "Ever")], max_length=5
            ),
        ),
        AddIndexBesideWriters(
            model_name="budgetlimit",
            index=models.Index(fields=["id"], condition=Q(period="week"), name="limits_of_weeks"),
        ),
    ]
