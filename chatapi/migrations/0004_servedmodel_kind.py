"""Adds the kind of a model. The database has a default, so that processes of the old release can add rows."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("chatapi", "0003_deployment_weight_at_least_one")]

    operations = [
        migrations.AddField(
            model_name="servedmodel",
            name="kind",
            field=models.CharField(
                max_length=16,
                choices=[("chat", "Chat"), ("embeddings", "Embeddings")],
                default="chat",
                db_default="chat",
                help_text="The requests that it answers: chat and text completions, or embeddings. It can't "
                "change: the model's usage is reported by it.",
            ),
        ),
    ]
