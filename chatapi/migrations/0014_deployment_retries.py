"""Adds how often a failed request is sent to a deployment again. The database has a default, so that
processes of the old release can add rows.
"""

from django.core.validators import MaxValueValidator
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("chatapi", "0013_deliveries_by_time")]

    operations = [
        migrations.AddField(
            model_name="deployment",
            name="retries",
            field=models.PositiveSmallIntegerField(
                db_default=3,
                default=3,
                help_text="How often a request that failed may be sent again, 0 to 10.",
                validators=[MaxValueValidator(10)],
            ),
        ),
    ]
