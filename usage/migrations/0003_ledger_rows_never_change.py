"""Have the database itself refuse to change or delete ledger entries and seals.

SQLite's tables are rebuilt by migrations that alter them, and lose their triggers by it: such a migration of
these two tables must run `protect` again. `verifyledger` notices when it does not.
"""

from django.db import migrations

TABLES = ("usage_ledgerentry", "usage_ledgerseal")
FUNCTION = """
    CREATE FUNCTION usage_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ': rows are never changed or deleted', ERRCODE = 'restrict_violation';
    END $$
"""


def protect(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTION)
        for table in TABLES:
            schema_editor.execute(
                f"CREATE TRIGGER {table}_never_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION usage_refuse_change()"
            )
        return
    for table in TABLES:
        for action in ("update", "delete"):
            schema_editor.execute(
                f"CREATE TRIGGER {table}_never_{action}s BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table}: rows are never changed or deleted'); END"
            )


def unprotect(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        for table in TABLES:
            schema_editor.execute(f"DROP TRIGGER {table}_never_changes ON {table}")
        schema_editor.execute("DROP FUNCTION usage_refuse_change()")
        return
    for table in TABLES:
        for action in ("update", "delete"):
            schema_editor.execute(f"DROP TRIGGER {table}_never_{action}s")


class Migration(migrations.Migration):

    dependencies = [("usage", "0002_credit_corrections_and_discounts")]

    operations = [migrations.RunPython(protect, unprotect)]
