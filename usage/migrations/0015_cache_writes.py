"""Add the tokens that were written to a prompt cache, and their prices.

Every column is nullable or has its default in the database, so code that does not know it may write too.
Neither database rebuilds a table with triggers for it, so the triggers stay.
"""

from django.db import migrations, models
from django.db.models import Q, Value

SUMS = ("hourlyusage", "dailyusage", "dailytotals")
TOKENS = ("cache_write_tokens", "cache_write_1h_tokens")
PRICES = {
    "cache_write_per_mtok_nanodollars": "Of the prompt tokens written to the cache; without it they cost what input costs.",
    "cache_write_1h_per_mtok_nanodollars": "Of those kept for an hour; without it they cost what those kept for 5 minutes cost.",
}


class Migration(migrations.Migration):

    dependencies = [("usage", "0014_generation_usage_note")]

    operations = [
        *(
            migrations.AddField(model, name, models.PositiveBigIntegerField(null=True, db_default=Value(0)))
            for model in SUMS for name in TOKENS
        ),
        *(
            migrations.AddField("ledgerentry", name, models.PositiveIntegerField(null=True, db_default=Value(0)))
            for name in TOKENS
        ),
        *(migrations.AddField("generation", name, models.PositiveIntegerField(null=True)) for name in TOKENS),
        *(migrations.AddField("generation", name, models.BigIntegerField(null=True)) for name in PRICES),
        *(
            migrations.AddField("price", name, models.BigIntegerField(null=True, blank=True, help_text=text))
            for name, text in PRICES.items()
        ),
        migrations.AddConstraint(
            "price",
            models.CheckConstraint(
                condition=Q(cache_write_per_mtok_nanodollars__gte=0), name="cache_write_price_not_negative"
            ),
        ),
        migrations.AddConstraint(
            "price",
            models.CheckConstraint(
                condition=Q(cache_write_1h_per_mtok_nanodollars__gte=0), name="cache_write_1h_price_not_negative"
            ),
        ),
        migrations.AlterField(
            "generation",
            "usage_note",
            models.CharField(
                max_length=24,
                choices=[
                    ("upstream_implausible", "the upstream told more than the request can have used"),
                    ("upstream_added", "the upstream told each choice's by itself, and they are added"),
                    ("upstream_low", "the upstream told less than half of what we count"),
                ],
                null=True,
                blank=True,
            ),
        ),
    ]
