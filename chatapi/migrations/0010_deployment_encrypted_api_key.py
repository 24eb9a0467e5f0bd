from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0009_deployment_max_concurrent'),
    ]

    operations = [
        migrations.AddField(
            model_name='deployment',
            name='encrypted_api_key',
            field=models.BinaryField(
                blank=True,
                help_text="The upstream's key, if it was entered in the admin.",
                null=True,
            ),
        ),
    ]
