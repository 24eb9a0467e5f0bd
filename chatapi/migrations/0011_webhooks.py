"""Adds tables for webhook endpoints, deliveries with their attempts, and the choice of kinds of mail."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0007_management_api'),
        ('chatapi', '0010_deployment_encrypted_api_key'),
        ('usage', '0024_events'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('due', 'Due'), ('delivered', 'Delivered'), ('failed', 'Failed')], default='due', max_length=9)),
                ('begun_at', models.DateTimeField(help_text='When it was first due, or replayed: it fails three days later.')),
                ('due_at', models.DateTimeField(help_text='The next attempt; while one runs, the end of its lease.')),
                ('attempts', models.PositiveIntegerField(default=0, help_text='Since it begun.')),
                ('event', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='usage.event')),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='DeliveryAttempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('duration_ms', models.PositiveIntegerField()),
                ('status', models.PositiveSmallIntegerField(help_text='The HTTP status; none without an answer.', null=True)),
                ('answer', models.CharField(blank=True, help_text='How the answer begins.', max_length=500)),
                ('error', models.CharField(blank=True, max_length=200)),
                ('delivery', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='log', to='chatapi.delivery')),
            ],
        ),
        migrations.CreateModel(
            name='WebhookEndpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(max_length=500)),
                ('kinds', models.JSONField(blank=True, default=list, help_text='The kinds that it gets; none: all of them.')),
                ('encrypted_secret', models.BinaryField()),
                ('previous_encrypted_secret', models.BinaryField(null=True)),
                ('previous_expires_at', models.DateTimeField(editable=False, help_text='Until then, messages have signatures by both secrets.', null=True)),
                ('is_enabled', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.organization')),
            ],
            options={
                'ordering': ['pk'],
            },
        ),
        migrations.AddField(
            model_name='delivery',
            name='endpoint',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, to='chatapi.webhookendpoint'),
        ),
        migrations.CreateModel(
            name='MailPreference',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('budget.reached', 'Budget reached'), ('credit.low', 'Low credit'), ('key.expiring', 'Key expires'), ('spend.unusual', 'Unusual spend'), ('failures.rising', 'Rising failures'), ('model.down', 'Model down'), ('deployment.down', 'Deployment down'), ('ledger_check.failed', 'Ledger check failed'), ('webhook.test', 'Test of a webhook')], max_length=24)),
                ('is_wanted', models.BooleanField()),
                ('organization', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.organization')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'organization', 'kind'), name='one_preference_per_person_and_kind'), models.UniqueConstraint(condition=models.Q(('organization__isnull', True)), fields=('user', 'kind'), name='one_preference_per_operator_and_kind')],
            },
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('state', 'due')), fields=['due_at'], name='deliveries_due'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['endpoint', '-id'], name='deliveries_of_an_endpoint'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('event', 'endpoint'), name='one_delivery_per_event_and_endpoint'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('event', 'user'), name='one_delivery_per_event_and_person'),
        ),
    ]
