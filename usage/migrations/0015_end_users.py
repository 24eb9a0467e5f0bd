"""The names that clients give to a model and to the people who ask. Null elsewhere, so code that does not know
them may write too.

Neither database rebuilds the table for it, so the triggers of the generations stay.
"""

from django.db import migrations, models

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0014_generation_usage_note")]

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
        AddIndexBesideWriters(
            model_name="generation",
            index=models.Index(
                fields=["organization", "end_user", "-admitted_at"],
                condition=models.Q(end_user__isnull=False),
                name="end_user_generations",
            ),
        ),
    ]
