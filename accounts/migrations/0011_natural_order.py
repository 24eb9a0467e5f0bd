"""Lists of organizations and projects are in natural order. The tables stay as they are."""

from django.db import migrations

from accounts.natural_order import NaturalOrder


class Migration(migrations.Migration):
    dependencies = [("accounts", "0010_api_keys_by_expiry")]

    operations = [
        migrations.AlterModelOptions(
            name="organization",
            options={"ordering": [NaturalOrder("name"), "name"]},
        ),
        migrations.AlterModelOptions(
            name="project",
            options={"ordering": ["organization_id", NaturalOrder("name"), "name"]},
        ),
    ]
