"""The names that clients give to a model and to the people who ask; budgets and daily usage of these. Null
elsewhere, so code that does not know them may write too.

Neither database rebuilds a table for it, so the triggers of the generations and the ledger stay. The index of
the end users is made by 0018: beside columns, it could not be made again after an interruption.
"""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Value

SCOPES = [
    ("organization", "Organization"),
    ("project", "Project"),
    ("key", "Api Key"),
    ("end_user", "End User"),
    ("project_user", "each end user of a project"),
    ("org_user", "each end user of an organization"),
]


def _owner(model):
    return models.ForeignKey(model, on_delete=django.db.models.deletion.PROTECT, related_name="+", db_index=False)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_aliases_and_end_users"), ("usage", "0015_cache_writes")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="requested_model",
            field=models.CharField(max_length=128, null=True, help_text="The alias that the client sent for the model."),
        ),
        migrations.AddField(
            model_name="generation",
            name="end_user",
            field=models.CharField(max_length=128, null=True, help_text="The project's name for the person who asks."),
        ),
        migrations.AddField(
            model_name="generation",
            name="end_user_id",
            field=models.BigIntegerField(null=True, help_text="The end user in whose budgets it counts, if its project counts them."),
        ),
        migrations.AddField(
            model_name="generation",
            name="metadata",
            field=models.JSONField(null=True, help_text="The client's own pairs, if its project keeps them."),
        ),
        migrations.AddField(
            model_name="ledgerentry",
            name="end_user_id",
            field=models.BigIntegerField(null=True, help_text="The end user in whose budgets it counts."),
        ),
        # Choices only: no column changes.
        migrations.AlterField(model_name="budget", name="scope", field=models.CharField(max_length=12, choices=SCOPES)),
        migrations.AlterField(model_name="budgetlimit", name="scope", field=models.CharField(max_length=12, choices=SCOPES)),
        migrations.CreateModel(
            name="DailyEndUserUsage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("requests", models.PositiveBigIntegerField(default=0)),
                ("prompt_tokens", models.PositiveBigIntegerField(default=0)),
                ("cached_tokens", models.PositiveBigIntegerField(default=0)),
                ("completion_tokens", models.PositiveBigIntegerField(default=0)),
                ("reasoning_tokens", models.PositiveBigIntegerField(default=0)),
                ("amount_nanodollars", models.BigIntegerField(default=0)),
                ("cache_write_tokens", models.PositiveBigIntegerField(null=True, db_default=Value(0))),
                ("cache_write_1h_tokens", models.PositiveBigIntegerField(null=True, db_default=Value(0))),
                ("day", models.DateField()),
                ("model", models.CharField(max_length=128)),
                ("end_user", _owner("accounts.enduser")),
                ("organization", _owner("accounts.organization")),
                ("project", _owner("accounts.project")),
            ],
            options={
                "verbose_name_plural": "daily usage of end users",
                "indexes": [models.Index(fields=["end_user", "day"], name="days_of_an_end_user")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["organization", "day", "project", "end_user", "model"],
                        name="one_row_per_day_end_user_and_model",
                    )
                ],
            },
        ),
    ]
