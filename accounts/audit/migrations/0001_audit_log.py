"""The audit log's table. The database itself refuses to change or delete its rows."""

import django.core.serializers.json
import django.db.models.functions.datetime
from django.db import migrations, models

TABLE = "audit_auditentry"
FUNCTION = """
    CREATE FUNCTION audit_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ': rows are never changed or deleted', ERRCODE = 'restrict_violation';
    END $$
"""


def protect(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTION)
        schema_editor.execute(
            f"CREATE TRIGGER {TABLE}_never_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_change()"
        )
        return
    for action in ("update", "delete"):
        schema_editor.execute(
            f"CREATE TRIGGER {TABLE}_never_{action}s BEFORE {action} ON {TABLE} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE}: rows are never changed or deleted'); END"
        )


def unprotect(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP TRIGGER {TABLE}_never_changes ON {TABLE}")
        schema_editor.execute("DROP FUNCTION audit_refuse_change()")
        return
    for action in ("update", "delete"):
        schema_editor.execute(f"DROP TRIGGER {TABLE}_never_{action}s")


class Migration(migrations.Migration):

    initial = True
    dependencies = []

    operations = [
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("actor_id", models.BigIntegerField(help_text="The person's id; null: nobody who was signed in.", null=True)),
                ("actor", models.CharField(help_text="The person's user name then.", max_length=150)),
                ("address", models.GenericIPAddressField(help_text="Where the request came from.", null=True)),
                ("action", models.CharField(help_text="A verb, in the past.", max_length=40)),
                ("object_type", models.CharField(help_text="The model's label, such as accounts.project.", max_length=100)),
                ("object_id", models.CharField(max_length=128)),
                ("object_name", models.CharField(max_length=300)),
                ("organization_id", models.BigIntegerField(help_text="Whose object it is, if it is one organization's.", null=True)),
                ("changes", models.JSONField(default=dict, encoder=django.core.serializers.json.DjangoJSONEncoder)),
                ("reason", models.CharField(blank=True, max_length=500)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "indexes": [
                    models.Index(fields=["actor", "id"], name="audit_by_actor"),
                    models.Index(fields=["object_type", "id"], name="audit_by_type"),
                    models.Index(fields=["object_id", "object_type", "id"], name="audit_by_object"),
                    models.Index(fields=["organization_id", "id"], name="audit_by_organization"),
                ],
            },
        ),
        migrations.RunPython(protect, unprotect),
    ]
