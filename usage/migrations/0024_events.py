"""The outbox of events, and the numbers that say when credit is low.

The table is new and the columns have defaults, so processes of the old release go on. What crosses a
threshold in one of them is found by the next turn of a reaper.
"""

import django.db.models.deletion
import uuid
from django.db import migrations, models


LAST_GRANTS = """
    UPDATE usage_credit SET last_grant_nanodollars = COALESCE((
        SELECT -e.amount_nanodollars FROM usage_ledgerentry AS e
        WHERE e.organization_id = usage_credit.organization_id AND e.kind = 'grant'
        AND e.generation_id IS NULL ORDER BY e.created_at DESC, e.id DESC LIMIT 1), 0)
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0007_management_api'),
        ('usage', '0023_generation_queue_class'),
    ]

    operations = [
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('budget.reached', 'Budget reached'), ('credit.low', 'Low credit'), ('key.expiring', 'Key expires'), ('spend.unusual', 'Unusual spend'), ('failures.rising', 'Rising failures'), ('model.down', 'Model down'), ('deployment.down', 'Deployment down'), ('ledger_check.failed', 'Ledger check failed'), ('webhook.test', 'Test of a webhook')], max_length=24)),
                ('subject', models.CharField(help_text='Such as key/7/month.', max_length=200)),
                ('period', models.CharField(help_text='Such as 2026-11-01.', max_length=40)),
                ('threshold', models.CharField(blank=True, help_text='Such as 80.', max_length=16)),
                ('data', models.JSONField()),
                ('created_at', models.DateTimeField()),
                ('dispatched_at', models.DateTimeField(editable=False, help_text='When its deliveries were written; none: not yet.', null=True)),
            ],
        ),
        migrations.AddField(
            model_name='credit',
            name='last_grant_nanodollars',
            field=models.BigIntegerField(db_default=0, editable=False),
        ),
        migrations.AddField(
            model_name='credit',
            name='low_credit_nanodollars',
            field=models.BigIntegerField(blank=True, help_text='The balance below which an event says that credit is low.', null=True),
        ),
        migrations.AddConstraint(
            model_name='credit',
            constraint=models.CheckConstraint(condition=models.Q(('low_credit_nanodollars__gte', 0)), name='low_credit_not_negative'),
        ),
        migrations.AddField(
            model_name='event',
            name='organization',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.organization'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(fields=['organization', '-created_at', '-id'], name='events_of_an_organization'),
        ),
        migrations.AddIndex(
            model_name='event',
            index=models.Index(condition=models.Q(('dispatched_at__isnull', True)), fields=['created_at'], name='events_not_dispatched'),
        ),
        migrations.AddConstraint(
            model_name='event',
            constraint=models.UniqueConstraint(fields=('kind', 'subject', 'period', 'threshold'), name='one_event_per_threshold_and_period'),
        ),
        migrations.RunSQL(LAST_GRANTS, migrations.RunSQL.noop),
    ]
