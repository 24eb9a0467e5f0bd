"""On PostgreSQL a BRIN index of when generations were settled: for reads of all that is newer, or older, than
some moment.

Rows lie in the order of their time, so a few bytes for each megabyte of the table will do, and it costs
settlements nothing.
"""

from django.db import migrations

from usage.database.index_beside_writers import no_time_limit


def add(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        with no_time_limit(schema_editor):
            # An interruption may have left one that is not valid.
            schema_editor.execute("DROP INDEX CONCURRENTLY IF EXISTS generations_by_time")
            schema_editor.execute(
                "CREATE INDEX CONCURRENTLY generations_by_time ON usage_generation USING brin (settled_at) WITH (autosummarize = on)"
            )


def remove(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP INDEX CONCURRENTLY IF EXISTS generations_by_time")


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0005_closed_days")]

    operations = [migrations.RunPython(add, remove)]
