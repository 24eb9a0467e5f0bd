import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('sign_in', '0002_e_mail_domains'),
    ]

    operations = [
        migrations.AddField(
            model_name='identityprovider',
            name='extra_scopes',
            field=models.CharField(blank=True, db_default='', default='', help_text="Names of scopes, separated by spaces, to ask for besides openid, profile and email. Some providers send a person's groups only for a scope, such as groups.", max_length=255, validators=[django.core.validators.RegexValidator('^[\\x21\\x23-\\x5B\\x5D-\\x7E]+( +[\\x21\\x23-\\x5B\\x5D-\\x7E]+)*\\Z', 'Use names of scopes, separated by spaces.')]),
        ),
    ]
