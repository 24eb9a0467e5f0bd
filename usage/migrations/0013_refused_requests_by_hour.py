"""A table of the requests that were refused: how many of which key, by hour, status and error code."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0004_say_what_admin_keys_may_do'),
        ('usage', '0012_ledger_rows_never_replaced'),
    ]

    operations = [
        migrations.CreateModel(
            name='RefusedRequests',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField()),
                ('status', models.PositiveSmallIntegerField(help_text='The HTTP status; 0 for the code `other`, which has several.')),
                ('code', models.CharField(help_text="The error's code as the client gets it.", max_length=64)),
                ('requests', models.PositiveBigIntegerField()),
                ('api_key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.apikey')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.organization')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'refused requests',
                'indexes': [models.Index(fields=['organization', '-hour'], name='organization_refused'), models.Index(fields=['api_key', '-hour'], name='api_key_refused')],
                'constraints': [models.UniqueConstraint(fields=('hour', 'api_key', 'status', 'code'), name='one_row_per_hour_key_and_refusal')],
            },
        ),
    ]
