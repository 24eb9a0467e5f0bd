"""Have SQLite refuse to replace the audit log's rows.

`REPLACE INTO` deletes the row that is in its way without asking a trigger, so one looks first whether there
is any. An id of -1 is what a trigger sees when the statement names none. PostgreSQL can't replace rows, and
has nothing of this.
"""

from django.db import migrations

TABLE = "audit_auditentry"


def protect(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        schema_editor.execute(
            f"CREATE TRIGGER {TABLE}_never_replaces BEFORE INSERT ON {TABLE} "
            f"WHEN NEW.id <> -1 AND EXISTS (SELECT 1 FROM {TABLE} WHERE id = NEW.id) "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE}: rows are never changed or deleted'); END"
        )


def unprotect(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        schema_editor.execute(f"DROP TRIGGER {TABLE}_never_replaces")


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_audit_log")]

    operations = [migrations.RunPython(protect, unprotect)]
