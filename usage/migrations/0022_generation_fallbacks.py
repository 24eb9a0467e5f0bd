"""Other models that may answer a request. Null elsewhere, so code that does not know it may write too, and
runs the first model.

Neither database rebuilds the table for it, so the triggers of the generations stay.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("usage", "0021_owners_without_constraints")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="fallbacks",
            field=models.JSONField(help_text="Other models that may answer: `Candidate` of `usage/books/candidates.py` each.", null=True),
        ),
        migrations.AlterField(
            model_name="generation",
            name="requested_model",
            field=models.CharField(max_length=128, null=True, help_text="The name that the client sent: an alias of the model, or the model that did not answer."),
        ),
    ]
