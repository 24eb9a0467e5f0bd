"""Indexes of the sums of days, for reports about one key, outcome or other member."""

from django.db import migrations, models

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0030_events_not_followed")]

    operations = [
        AddIndexBesideWriters(model_name=model, index=models.Index(fields=fields, name=name))
        for model, fields, name in (
            ("dailyusage", ["organization", "api_key", "day"], "days_of_a_key"),
            ("dailyusage", ["organization", "outcome", "day"], "days_of_an_outcome"),
            ("dailytotals", ["dimension", "member", "day"], "totals_of_a_member"),
            ("dailyfirsttokens", ["dimension", "member", "day"], "first_tokens_of_a_member"),
        )
    ]
