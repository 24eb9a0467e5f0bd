from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='deployment',
            name='allow_remote_media',
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text='It may receive addresses of pictures, which the upstream then fetches.',
            ),
        ),
    ]
