"""The project of an act, with which acts on a project's limits and on deleted rows are found.

Neither database rewrites the table for it. The release before writes no project.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("audit", "0003_audit_entries_of_api_keys")]

    operations = [
        migrations.AddField(
            model_name="auditentry",
            name="project_id",
            field=models.BigIntegerField(
                help_text="The project that the object is or belongs to, if it is one project's.", null=True
            ),
        ),
    ]
