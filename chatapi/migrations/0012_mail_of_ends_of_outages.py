"""Adds the ends of outages, of a model and of a deployment, to the kinds of mail; no column changes."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chatapi', '0011_webhooks'),
    ]

    operations = [
        migrations.AlterField(
            model_name='mailpreference',
            name='kind',
            field=models.CharField(choices=[('budget.reached', 'Budget reached'), ('credit.low', 'Low credit'), ('key.expiring', 'Key expires'), ('spend.unusual', 'Unusual spend'), ('failures.rising', 'Rising failures'), ('model.down', 'Model down'), ('model.up', 'Model up again'), ('deployment.down', 'Deployment down'), ('deployment.up', 'Deployment up again'), ('ledger_check.failed', 'Ledger check failed'), ('webhook.test', 'Test of a webhook')], max_length=24),
        ),
    ]
