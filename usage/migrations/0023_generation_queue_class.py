"""The class of a generation in the queue; null in rows of processes that do not know it, which may write too.

No table is rebuilt and no row is read, so the triggers stay, and others wait for a moment only.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("usage", "0022_generation_fallbacks")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="queue_class",
            field=models.SmallIntegerField(
                help_text="The lower, the earlier it is served; null if an earlier release admitted it.",
                null=True,
            ),
        )
    ]
