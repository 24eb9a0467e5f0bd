from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0008_stored_responses'),
    ]

    operations = [
        migrations.AddField(
            model_name='deployment',
            name='max_concurrent',
            field=models.PositiveIntegerField(
                blank=True,
                help_text='Requests in flight, of all workers together; empty: no limit.',
                null=True,
                validators=[MinValueValidator(1), MaxValueValidator(2147483647)],
            ),
        ),
    ]
