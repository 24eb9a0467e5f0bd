"""What became of a request's attempts, where one failed. Null elsewhere, so code that does not know it may
write too.

Neither database rebuilds the table for it, so the triggers of the generations stay.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("usage", "0009_ledger_checks")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="attempt_log",
            field=models.JSONField(help_text="The last attempts, where one failed: `Attempt` of `usage/books/settlement.py` each.", null=True),
        ),
    ]
