"""Let generations be dropped, and nothing else: entries of the ledger outlive them, and the database asks for
a horizon instead.

The foreign key of the ledger's entries to their generations is no constraint any more; a trigger refuses to
delete a generation that is open, or that was settled after the last horizon. Code that does not know of
horizons deletes no generations, so it may go on.

SQLite rebuilds the ledger's table for it and would lose its triggers. They are made again as they were, in
the same transaction. Later migrations that alter the table of the generations must run `guard` again;
`verifyledger` notices when they do not.
"""

import django.db.models.deletion
from django.db import migrations, models

MESSAGE = "usage_generation: only what was settled before the retention horizon is dropped"
FUNCTION = f"""
    CREATE FUNCTION usage_keep_generation() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF COALESCE(OLD.settled_at < (SELECT CAST(max(day) AS timestamp) AT TIME ZONE 'UTC' FROM usage_retentionhorizon), FALSE) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION USING MESSAGE = '{MESSAGE}', ERRCODE = 'restrict_violation';
    END $$
"""


def guard(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTION)
        schema_editor.execute(
            "CREATE TRIGGER usage_generation_never_deletes BEFORE DELETE ON usage_generation "
            "FOR EACH ROW EXECUTE FUNCTION usage_keep_generation()"
        )
        schema_editor.execute(
            "CREATE TRIGGER usage_generation_never_truncates BEFORE TRUNCATE ON usage_generation "
            "FOR EACH STATEMENT EXECUTE FUNCTION usage_refuse_change()"
        )
        return
    # Times and days are text there: the first moment of a day is its date and more, so it is not before that
    # day.
    schema_editor.execute(
        "CREATE TRIGGER usage_generation_never_deletes BEFORE DELETE ON usage_generation "
        "WHEN NOT COALESCE(OLD.settled_at < (SELECT max(day) FROM usage_retentionhorizon), 0) "
        f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
    )


def unguard(apps, schema_editor):
    if apps.get_model("usage", "RetentionHorizon").objects.exists():
        raise RuntimeError("Generations were dropped: entries of the ledger name some that are not there, so there is no way back.")
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP TRIGGER usage_generation_never_truncates ON usage_generation")
        schema_editor.execute("DROP TRIGGER usage_generation_never_deletes ON usage_generation")
        schema_editor.execute("DROP FUNCTION usage_keep_generation()")
        return
    schema_editor.execute("DROP TRIGGER usage_generation_never_deletes")


class AlterFieldAndKeepTriggers(migrations.AlterField):
    """Makes the table's triggers again where the database has rebuilt the table; backwards too, which is the
    same with other fields.
    """

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        if schema_editor.connection.vendor != "sqlite":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        table = to_state.apps.get_model(app_label, self.model_name)._meta.db_table
        with schema_editor.connection.cursor() as cursor:
            cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s ORDER BY name", [table])
            triggers = [sql for (sql,) in cursor.fetchall()]
        super().database_forwards(app_label, schema_editor, from_state, to_state)
        for sql in triggers:
            schema_editor.execute(sql)


class Migration(migrations.Migration):

    dependencies = [("usage", "0006_generations_by_time")]

    operations = [
        migrations.CreateModel(
            name="RetentionHorizon",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("after", models.DateField(help_text="The horizon before; unique, so that none overlaps another.", unique=True)),
                ("generations_count", models.PositiveBigIntegerField(help_text="How many were exported, and are dropped.")),
                ("dropped_count", models.PositiveBigIntegerField(db_default=0, help_text="Of them so far.")),
                ("dropped_until", models.DateTimeField(help_text="What was settled before this moment is dropped.", null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("export", models.CharField(help_text="The folder it was written to.", max_length=1000)),
                ("export_digest", models.CharField(help_text="SHA-256 of its manifest, which has those of its files.", max_length=64)),
                ("recorded_by", models.CharField(max_length=150)),
                ("recorded_at", models.DateTimeField()),
            ],
        ),
        AlterFieldAndKeepTriggers(
            model_name="ledgerentry",
            name="generation",
            field=models.ForeignKey(
                db_constraint=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="ledger_entries",
                to="usage.generation",
            ),
        ),
        migrations.RunPython(guard, unguard),
    ]
