"""An index of when keys expire, without those that never do: reapers look for those that expire soon.

A million rows take about a second, in which PostgreSQL lets others read keys, but not change them.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0009_organization_default_dialect")]

    operations = [
        migrations.AddIndex(
            model_name="apikey",
            index=models.Index(
                fields=["expires_at"],
                condition=models.Q(expires_at__isnull=False),
                name="api_keys_by_expiry",
            ),
        ),
    ]
