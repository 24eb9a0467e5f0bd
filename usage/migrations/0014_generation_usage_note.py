"""What the worker needs to judge an upstream's usage, and what it has found. Null elsewhere, so code that
does not know it may write too.

Neither database rebuilds the table for it, so the triggers of the generations stay.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("usage", "0013_refused_requests_by_hour")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="sampled_count",
            field=models.PositiveSmallIntegerField(null=True, help_text="Choices that are generated, of which some may not be shown."),
        ),
        migrations.AddField(
            model_name="generation",
            name="max_prompt_tokens",
            field=models.PositiveBigIntegerField(null=True, help_text="What fits the context: an upstream is believed no more."),
        ),
        migrations.AddField(
            model_name="generation",
            name="usage_note",
            field=models.CharField(
                max_length=24,
                choices=[
                    ("upstream_implausible", "the upstream told more than the request can have used"),
                    ("upstream_added", "the upstream told each choice's by itself, and they are added"),
                ],
                null=True,
                blank=True,
            ),
        ),
    ]
