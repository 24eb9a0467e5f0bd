"""Have SQLite refuse to replace ledger entries, seals and generations.

`REPLACE INTO` deletes the row that is in its way without asking a trigger, so triggers look first whether one
is. All keys that are unique count. An id of -1 is what a trigger sees when the statement names none.
PostgreSQL can't replace rows, and has nothing of this.

No statement of ours inserts into these tables with `ON CONFLICT`; a trigger would refuse before that is
asked. Migrations that have SQLite rebuild one of them must run `protect` again; `verifyledger` notices when
they do not.
"""

from django.db import migrations

MESSAGE = "rows are never changed or deleted"
_IN_THE_WAY = {
    "usage_ledgerentry": (
        "NEW.id <> -1 AND EXISTS (SELECT 1 FROM usage_ledgerentry WHERE id = NEW.id)",
        "NEW.kind IN ('charge', 'overage') AND EXISTS (SELECT 1 FROM usage_ledgerentry WHERE kind IN ('charge', 'overage') "
        "AND generation_id = NEW.generation_id AND kind = NEW.kind)",
        "NEW.reference <> '' AND EXISTS (SELECT 1 FROM usage_ledgerentry WHERE NOT (reference = '') AND reference = NEW.reference)",
    ),
    "usage_ledgerseal": (
        "NEW.id <> -1 AND EXISTS (SELECT 1 FROM usage_ledgerseal WHERE id = NEW.id)",
        "EXISTS (SELECT 1 FROM usage_ledgerseal WHERE last_id = NEW.last_id)",
        "EXISTS (SELECT 1 FROM usage_ledgerseal WHERE previous_digest = NEW.previous_digest)",
    ),
    "usage_generation": (
        "EXISTS (SELECT 1 FROM usage_generation WHERE id = NEW.id)",
        "NEW.rowid <> -1 AND EXISTS (SELECT 1 FROM usage_generation WHERE rowid = NEW.rowid)",
    ),
}


def protect(apps, schema_editor):
    if schema_editor.connection.vendor != "sqlite":
        return
    for table, conditions in _IN_THE_WAY.items():
        schema_editor.execute(
            f"CREATE TRIGGER {table}_never_replaces BEFORE INSERT ON {table} WHEN {' OR '.join(conditions)} "
            f"BEGIN SELECT RAISE(ABORT, '{table}: {MESSAGE}'); END"
        )
    # `UPDATE OR REPLACE` deletes the row whose key another one gets; the other two tables refuse any update.
    # "OF id", because that costs other updates nothing; so a row may lose its hidden `rowid` to another, and
    # is missed by verification (I15).
    schema_editor.execute(
        "CREATE TRIGGER usage_generation_never_moves BEFORE UPDATE OF id ON usage_generation "
        f"BEGIN SELECT RAISE(ABORT, 'usage_generation: {MESSAGE}'); END"
    )


def unprotect(apps, schema_editor):
    if schema_editor.connection.vendor != "sqlite":
        return
    schema_editor.execute("DROP TRIGGER usage_generation_never_moves")
    for table in _IN_THE_WAY:
        schema_editor.execute(f"DROP TRIGGER {table}_never_replaces")


class Migration(migrations.Migration):
    dependencies = [("usage", "0011_idempotency_keys_by_generation")]

    operations = [migrations.RunPython(protect, unprotect)]
