from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0005_deployment_streaming'),
    ]

    operations = [
        # Choices only: no column changes.
        migrations.AlterField(
            model_name='deployment',
            name='engine',
            field=models.CharField(choices=[('openai_compatible', 'OpenAI-compatible'), ('anthropic', 'Anthropic'), ('sandbox', 'Sandbox')], max_length=32),
        ),
    ]
