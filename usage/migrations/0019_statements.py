"""Tables for statements, and seals that cover them.

A seal may have statements and no new ledger entry, so `last_id` is unique among seals with entries only.
SQLite rebuilds the table for that, which drops its triggers: they are made anew.
"""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

SEAL, STATEMENT = "usage_ledgerseal", "usage_statement"
MESSAGE = "rows are never changed or deleted"
_IN_THE_WAY = {
    SEAL: (
        f"NEW.id <> -1 AND EXISTS (SELECT 1 FROM {SEAL} WHERE id = NEW.id)",
        f"NEW.entries_count > 0 AND EXISTS (SELECT 1 FROM {SEAL} WHERE entries_count > 0 AND last_id = NEW.last_id)",
        f"EXISTS (SELECT 1 FROM {SEAL} WHERE previous_digest = NEW.previous_digest)",
    ),
    STATEMENT: (
        f"NEW.id <> -1 AND EXISTS (SELECT 1 FROM {STATEMENT} WHERE id = NEW.id)",
        f"EXISTS (SELECT 1 FROM {STATEMENT} WHERE organization_id = NEW.organization_id AND month = NEW.month)",
    ),
}
# As in migration 0012.
_IN_THE_WAY_BEFORE = {
    SEAL: (
        _IN_THE_WAY[SEAL][0],
        f"EXISTS (SELECT 1 FROM {SEAL} WHERE last_id = NEW.last_id)",
        _IN_THE_WAY[SEAL][2],
    )
}


def _protect(schema_editor, conditions_by_table):
    for table, conditions in conditions_by_table.items():
        for action in ("update", "delete"):
            schema_editor.execute(
                f"CREATE TRIGGER {table}_never_{action}s BEFORE {action} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table}: {MESSAGE}'); END"
            )
        schema_editor.execute(
            f"CREATE TRIGGER {table}_never_replaces BEFORE INSERT ON {table} WHEN {' OR '.join(conditions)} "
            f"BEGIN SELECT RAISE(ABORT, '{table}: {MESSAGE}'); END"
        )


def _unprotect(schema_editor, *tables):
    for table in tables:
        for name in ("updates", "deletes", "replaces"):
            schema_editor.execute(f"DROP TRIGGER {table}_never_{name}")


def unprotect_seals(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        _unprotect(schema_editor, SEAL)


def protect_seals_as_before(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        _protect(schema_editor, _IN_THE_WAY_BEFORE)


def protect(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        _protect(schema_editor, _IN_THE_WAY)
        return
    schema_editor.execute(
        f"CREATE TRIGGER {STATEMENT}_never_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON {STATEMENT} "
        "FOR EACH STATEMENT EXECUTE FUNCTION usage_refuse_change()"
    )


def unprotect(apps, schema_editor):
    if schema_editor.connection.vendor == "sqlite":
        _unprotect(schema_editor, SEAL, STATEMENT)
        return
    schema_editor.execute(f"DROP TRIGGER {STATEMENT}_never_changes ON {STATEMENT}")


KINDS = [
    ("input", "Input"),
    ("cached_input", "Cached input"),
    ("cache_write", "Cache write"),
    ("cache_write_1h", "Cache write, 1 hour"),
    ("output", "Output"),
    ("reasoning", "Reasoning"),
    ("all_tokens", "All tokens"),
    ("correction", "Correction"),
    ("rerating", "Re-rating"),
    ("grant", "Credit granted"),
    ("refund", "Credit refunded"),
]


def _owner(model, **changes):
    return models.ForeignKey(
        db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to=model, **changes
    )


def _id():
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
        ("usage", "0018_budgets_by_period"),
    ]

    operations = [
        migrations.CreateModel(
            name="ItemizedDay",
            fields=[("day", models.DateField(primary_key=True, serialize=False))],
        ),
        migrations.CreateModel(
            name="DailyItem",
            fields=[
                ("id", _id()),
                ("organization", _owner("accounts.organization")),
                ("day", models.DateField()),
                ("project", _owner("accounts.project", null=True)),
                ("model", models.CharField(blank=True, max_length=128)),
                ("kind", models.CharField(choices=KINDS, max_length=16)),
                ("corrected_month", models.DateField(help_text="First day of the month in which the corrected charges were written.", null=True)),
                ("list_per_mtok_nanodollars", models.BigIntegerField(help_text="The price before the organization's discount; null if no price is known.", null=True)),
                ("per_mtok_nanodollars", models.BigIntegerField(help_text="The price that was charged.", null=True)),
                ("entries", models.PositiveBigIntegerField(help_text="Number of requests, corrections or bookings.")),
                ("tokens", models.PositiveBigIntegerField()),
                ("list_nanodollars", models.BigIntegerField(help_text="The amount before the organization's discount.")),
                ("amount_nanodollars", models.BigIntegerField(help_text="With the sign of the ledger: grants are negative.")),
            ],
            options={"indexes": [models.Index(fields=["organization", "day"], name="items_of_an_organization")]},
        ),
        migrations.CreateModel(
            name="Statement",
            fields=[
                ("id", _id()),
                ("organization", _owner("accounts.organization")),
                ("month", models.DateField(help_text="Its first day.")),
                ("charged_nanodollars", models.BigIntegerField(help_text="Usage and corrections.")),
                ("closing_balance_nanodollars", models.BigIntegerField(help_text="Credit at the end of the month; negative if the organization owes.")),
                ("content", models.TextField(help_text="JSON: `StatementDocument` of `usage/statements/document.py`.")),
                ("digest", models.CharField(help_text="SHA-256 of the content in UTF-8.", max_length=64)),
                ("issued_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["-month", "organization"], name="statements_by_month")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["organization", "month"], name="one_statement_per_organization_and_month"
                    )
                ],
            },
        ),
        migrations.RunPython(unprotect_seals, protect_seals_as_before),
        migrations.AddField(
            "ledgerseal",
            "last_statement_id",
            models.BigIntegerField(help_text="Of the last sealed statement; 0: none.", null=True),
        ),
        migrations.AlterField(
            "ledgerseal",
            "last_id",
            models.BigIntegerField(help_text="Of the last sealed entry, also if the block has none."),
        ),
        migrations.AlterField(
            "ledgerseal",
            "fingerprints",
            models.BinaryField(help_text="The first 8 bytes of each hash: they tell which entry or statement is not what it was."),
        ),
        migrations.AddConstraint(
            "ledgerseal",
            models.UniqueConstraint(
                condition=Q(entries_count__gt=0), fields=["last_id"], name="one_seal_per_last_entry"
            ),
        ),
        migrations.RunPython(protect, unprotect),
    ]
