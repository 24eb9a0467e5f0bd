"""Allows endpoints without an organization, which get the events of the service. Processes of the old release
send them no events. The reverse migration deletes these endpoints with their logs.
"""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models


def delete_those_of_the_service(apps: Any, schema_editor: Any) -> None:
    apps.get_model("chatapi", "WebhookEndpoint").objects.filter(organization=None).delete()
    # PostgreSQL does not alter a table while checks of its foreign keys are pending.
    schema_editor.connection.check_constraints()


class Migration(migrations.Migration):
    dependencies = [("chatapi", "0014_deployment_retries")]

    operations = [
        migrations.AlterField(
            model_name="webhookendpoint",
            name="organization",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        migrations.RunPython(migrations.RunPython.noop, delete_those_of_the_service),
    ]
