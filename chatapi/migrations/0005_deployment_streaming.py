from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0004_servedmodel_kind'),
    ]

    operations = [
        migrations.AddField(
            model_name='deployment',
            name='streaming',
            field=models.CharField(
                choices=[('always', 'Always'), ('without_logprobs', 'Without Logprobs'), ('never', 'Never')],
                db_default='always',
                default='always',
                help_text='When it is asked for a stream. Clients get one in any case.',
                max_length=16,
            ),
        ),
    ]
