"""Adds failed statements to the kinds of events; no column changes."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0019_streaming_as_requested'),
    ]

    operations = [
        migrations.AlterField(
            model_name='mailpreference',
            name='kind',
            field=models.CharField(choices=[('budget.reached', 'Budget reached'), ('credit.low', 'Low credit'), ('key.expiring', 'Key expires'), ('spend.unusual', 'Unusual spend'), ('spend.alert', 'Spend alert'), ('failures.rising', 'Rising failures'), ('model.down', 'Model down'), ('model.up', 'Model up again'), ('deployment.down', 'Deployment down'), ('deployment.up', 'Deployment up again'), ('ledger_check.failed', 'Ledger check failed'), ('statement.failed', 'Statement not issued'), ('webhook.test', 'Test of a webhook')], max_length=24),
        ),
    ]
