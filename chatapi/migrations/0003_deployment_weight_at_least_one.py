import django.core.validators
from django.db import migrations, models


def raise_weights_of_zero(apps, schema_editor):
    """Set weights of 0, which have always counted as 1, to 1: a catalog file refuses 0."""
    apps.get_model("chatapi", "Deployment").objects.filter(weight=0).update(weight=1)


POSITIVE = [django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(2147483647)]


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0002_deployment_allow_remote_media'),
    ]

    operations = [
        migrations.RunPython(raise_weights_of_zero, migrations.RunPython.noop),
        # Validators only: no column changes.
        migrations.AlterField(
            model_name='deployment',
            name='priority',
            field=models.PositiveIntegerField(default=0, help_text='Lower ones are tried first.', validators=[django.core.validators.MaxValueValidator(2147483647)]),
        ),
        migrations.AlterField(
            model_name='deployment',
            name='weight',
            field=models.PositiveIntegerField(default=1, help_text='The share among deployments of one priority.', validators=POSITIVE),
        ),
        migrations.AlterField(
            model_name='servedmodel',
            name='context_window',
            field=models.PositiveIntegerField(default=128000, help_text='Tokens.', validators=POSITIVE),
        ),
        migrations.AlterField(
            model_name='servedmodel',
            name='max_output_tokens',
            field=models.PositiveIntegerField(default=16384, help_text='The cap per choice, also when the client names none.', validators=POSITIVE),
        ),
    ]
