"""Indexes in the order of the list of budgets, without those of end users and of one scope, and of the requests
of an end user.
"""

from django.db import migrations, models

from usage.database.index_beside_writers import AddIndexBesideWriters

class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0017_months_of_end_users")]

    operations = [
        AddIndexBesideWriters(
            model_name="generation",
            index=models.Index(
                fields=["organization", "end_user", "-admitted_at"],
                condition=models.Q(end_user__isnull=False),
                name="end_user_generations",
            ),
        ),
        AddIndexBesideWriters(
            model_name="budget",
            index=models.Index(
                fields=["-period_start", "scope", "scope_id"],
                condition=~models.Q(scope="end_user"),
                name="budgets_by_period",
            ),
        ),
        AddIndexBesideWriters(
            model_name="budget",
            index=models.Index(
 fields=["scope", "-period_start", "scope_id"], name="budgets_of_a_scope_by_period"
 ),
        ),
    ]
