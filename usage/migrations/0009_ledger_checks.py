"""A table of the checks of the books, so that people see when the last one was and what it found."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("usage", "0008_overages_and_corrections_by_index")]

    operations = [
        migrations.CreateModel(
            name="LedgerCheck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("checked_at", models.DateTimeField()),
                (
                    "since",
                    models.DateTimeField(
                        help_text="It left out what was settled, written or sealed before; none: it looked at everything.", null=True
                    ),
                ),
                (
                    "hour",
                    models.DateTimeField(
                        help_text="Of a reaper's check: for which hour; unique, so that one reaper makes it.", null=True, unique=True
                    ),
                ),
                ("generations", models.PositiveBigIntegerField(db_default=0, help_text="How many settled ones it looked at.")),
                ("differences", models.PositiveIntegerField(help_text="None: it is not done yet, or was given up.", null=True)),
                ("first_difference", models.CharField(blank=True, db_default="", max_length=500)),
                (
                    "resolved_at",
                    models.DateTimeField(help_text="When a later check that looked at as much found no difference.", null=True),
                ),
            ],
        ),
    ]
