"""End users' usage by month, which triggers write with each row of a day: code that does not know the table
keeps it too.
"""

import django.db.models.deletion
from django.db import migrations, models

TABLE, DAYS = "usage_monthlyenduserusage", "usage_dailyenduserusage"
FIRST_DAY = {"sqlite": "substr({0}day, 1, 8) || '01'", "postgresql": "date_trunc('month', {0}day)::date"}
SUMS = ("requests", "amount_nanodollars")


def _owner(model):
    return models.ForeignKey(model, on_delete=django.db.models.deletion.PROTECT, related_name="+", db_index=False)


def _statements(vendor):
    """Return what the triggers do, by action."""
    new, old = (FIRST_DAY[vendor].format(row) for row in ("NEW.", "OLD."))
    added = ", ".join(f"{name} = {TABLE}.{name} + excluded.{name}" for name in SUMS)
    changed = ", ".join(f"{name} = {name} + NEW.{name} - OLD.{name}" for name in SUMS)
    removed = ", ".join(f"{name} = {name} - OLD.{name}" for name in SUMS)
    this = f"WHERE project_id = OLD.project_id AND month = {old} AND end_user_id = OLD.end_user_id"
    return {
        "insert": f"INSERT INTO {TABLE} (project_id, month, end_user_id, requests, amount_nanodollars) "
        f"VALUES (NEW.project_id, {new}, NEW.end_user_id, NEW.requests, NEW.amount_nanodollars) "
        f"ON CONFLICT (project_id, month, end_user_id) DO UPDATE SET {added}",
        # The owner and the day of a row never change.
        "update": f"UPDATE {TABLE} SET {changed} {this}",
        "delete": f"UPDATE {TABLE} SET {removed} {this}",
    }


def begin(apps, schema_editor):
    """Write the months of the days that there are, and then with each day that changes."""
    vendor = schema_editor.connection.vendor
    if vendor == "postgresql":
        # Settlements of end users wait until both have the same sums.
        schema_editor.execute("SET LOCAL statement_timeout = 0")
        schema_editor.execute(f"LOCK TABLE {DAYS} IN SHARE ROW EXCLUSIVE MODE")
    month = FIRST_DAY[vendor].format("")
    schema_editor.execute(
        f"INSERT INTO {TABLE} (project_id, month, end_user_id, requests, amount_nanodollars) "
        f"SELECT project_id, {month}, end_user_id, SUM(requests), SUM(amount_nanodollars) FROM {DAYS} "
        f"GROUP BY project_id, {month}, end_user_id"
    )
    statements = _statements(vendor)
    if vendor == "sqlite":
        for action, statement in statements.items():
            schema_editor.execute(
                f"CREATE TRIGGER {DAYS}_{action}_in_its_month AFTER {action} ON {DAYS} BEGIN {statement}; END"
            )
        return
    schema_editor.execute(
        "CREATE FUNCTION usage_sum_month_of_end_user() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP = 'INSERT' THEN {statements['insert']}; ELSIF TG_OP = 'UPDATE' THEN {statements['update']}; "
        f"ELSE {statements['delete']}; END IF; RETURN NULL; END $$"
    )
    schema_editor.execute(
        f"CREATE TRIGGER {DAYS}_in_its_month AFTER INSERT OR UPDATE OR DELETE ON {DAYS} "
        "FOR EACH ROW EXECUTE FUNCTION usage_sum_month_of_end_user()"
    )


def end(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(f"DROP TRIGGER {DAYS}_in_its_month ON {DAYS}")
        schema_editor.execute("DROP FUNCTION usage_sum_month_of_end_user()")
        return
    for action in ("insert", "update", "delete"):
        schema_editor.execute(f"DROP TRIGGER {DAYS}_{action}_in_its_month")


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_aliases_and_end_users"), ("usage", "0016_end_users")]

    operations = [
        migrations.CreateModel(
            name="MonthlyEndUserUsage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("month", models.DateField(help_text="Its first day.")),
                ("requests", models.BigIntegerField()),
                ("amount_nanodollars", models.BigIntegerField()),
                ("end_user", _owner("accounts.enduser")),
                ("project", _owner("accounts.project")),
            ],
            options={
                "verbose_name_plural": "monthly usage of end users",
                "indexes": [
                    models.Index(
                        fields=["project", "month", "-amount_nanodollars", "-requests", "end_user"],
                        name="largest_end_users_of_a_month",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["project", "month", "end_user"], name="one_row_per_month_and_end_user"
                    )
                ],
            },
        ),
        migrations.RunPython(begin, end),
    ]
