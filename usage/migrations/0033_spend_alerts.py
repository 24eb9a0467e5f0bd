"""Adds spend alerts and their kind of events; the kind changes no column."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0010_api_keys_by_expiry'),
        ('usage', '0032_index_of_events_not_followed'),
    ]

    operations = [
        migrations.AlterField(
            model_name='event',
            name='kind',
            field=models.CharField(choices=[('budget.reached', 'Budget reached'), ('credit.low', 'Low credit'), ('key.expiring', 'Key expires'), ('spend.unusual', 'Unusual spend'), ('spend.alert', 'Spend alert'), ('failures.rising', 'Rising failures'), ('model.down', 'Model down'), ('model.up', 'Model up again'), ('deployment.down', 'Deployment down'), ('deployment.up', 'Deployment up again'), ('ledger_check.failed', 'Ledger check failed'), ('webhook.test', 'Test of a webhook')], max_length=24),
        ),
        migrations.CreateModel(
            name='SpendAlert',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('threshold_nanodollars', models.BigIntegerField()),
                ('recipients', models.JSONField(help_text='The ids of the people who get the mail.')),
                ('subject_prefix', models.CharField(blank=True, max_length=100)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.organization')),
                ('project', models.ForeignKey(help_text='None: the organization.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.project')),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('threshold_nanodollars__gt', 0)), name='spend_alert_above_zero')],
            },
        ),
    ]
