"""Add credit, discounts, reasoning prices, soft limits and seals; let entries be about more than requests.

Code that does not know of these columns can go on writing: each is nullable or has its default in the
database.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
        ('usage', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Credit',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='+', serialize=False, to='accounts.organization')),
                ('is_required', models.BooleanField(default=False, help_text="Requests that the balance can't cover are refused.")),
                ('credited_nanodollars', models.BigIntegerField(default=0)),
            ],
            options={
                'verbose_name_plural': 'credit',
            },
        ),
        migrations.CreateModel(
            name='Discount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.organization')),
                ('effective_from', models.DateTimeField()),
                ('basis_points', models.PositiveSmallIntegerField(help_text='Hundredths of a percent: 1500 is 15 %. 0 ends a discount.')),
            ],
            options={
                'ordering': ['organization', '-effective_from'],
            },
        ),
        migrations.CreateModel(
            name='LedgerSeal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('first_id', models.BigIntegerField()),
                ('last_id', models.BigIntegerField(unique=True)),
                ('entries_count', models.PositiveIntegerField()),
                ('sum_nanodollars', models.BigIntegerField()),
                ('previous_digest', models.CharField(help_text='Unique, so that the chain never forks.', max_length=64, unique=True)),
                ('digest', models.CharField(max_length=64)),
                ('fingerprints', models.BinaryField(help_text="The first 8 bytes of each entry's hash: they tell which entry is not what it was.")),
                ('sealed_at', models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='ledgerentry',
            name='one_entry_per_generation_and_kind',
        ),
        migrations.AddField(
            model_name='budget',
            name='soft_limit_reached_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='budgetlimit',
            name='soft_limit_nanodollars',
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='generation',
            name='reasoning_per_mtok_nanodollars',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='corrects',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='corrections', to='usage.ledgerentry'),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='is_rerating',
            field=models.BooleanField(db_default=False, help_text='A correction that follows a change of price, of `rerate`.'),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='reason',
            field=models.CharField(blank=True, db_default='', help_text='Of what a person booked: why.', max_length=500),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='recorded_by',
            field=models.CharField(blank=True, db_default='', help_text='Who booked it; empty: the service.', max_length=150),
        ),
        migrations.AddField(
            model_name='ledgerentry',
            name='reference',
            field=models.CharField(blank=True, db_default='', help_text="What must not be booked twice, such as a payment's id.", max_length=128),
        ),
        migrations.AddField(
            model_name='price',
            name='reasoning_per_mtok_nanodollars',
            field=models.BigIntegerField(blank=True, help_text='Of the completion tokens that are reasoning; without it they cost what output costs.', null=True),
        ),
        migrations.AlterField(
            model_name='budgetlimit',
            name='limit_nanodollars',
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='api_key',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.apikey'),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='generation',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='ledger_entries', to='usage.generation'),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='kind',
            field=models.CharField(choices=[('charge', 'Charge'), ('overage', 'Overage'), ('correction', 'Correction'), ('grant', 'Grant'), ('refund', 'Refund')], max_length=10),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='model',
            field=models.CharField(blank=True, max_length=128),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='outcome',
            field=models.CharField(blank=True, choices=[('completed', 'Completed'), ('client_cancelled', 'Client Cancelled'), ('failed', 'Failed'), ('worker_lost', 'Worker Lost'), ('not_started', 'Not Started')], max_length=20),
        ),
        migrations.AlterField(
            model_name='ledgerentry',
            name='project',
            field=models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.project'),
        ),
        migrations.AddIndex(
            model_name='ledgerentry',
            index=models.Index(fields=['created_at', 'id'], name='ledger_by_time'),
        ),
        migrations.AddConstraint(
            model_name='budgetlimit',
            constraint=models.CheckConstraint(condition=models.Q(('soft_limit_nanodollars__gte', 0)), name='soft_limit_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.UniqueConstraint(condition=models.Q(('kind__in', ('charge', 'overage'))), fields=('generation', 'kind'), name='one_entry_per_generation_and_kind'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.UniqueConstraint(condition=models.Q(('reference', ''), _negated=True), fields=('reference',), name='one_entry_per_reference'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('amount_nanodollars__gte', 0), ('kind__in', ('charge', 'overage'))), models.Q(('amount_nanodollars__lt', 0), ('kind', 'grant')), models.Q(('amount_nanodollars__gt', 0), ('kind', 'refund')), ('kind', 'correction'), _connector='OR'), name='amounts_have_their_kinds_sign'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('api_key__isnull', False), ('generation__isnull', False), ('kind__in', ('charge', 'overage', 'correction')), ('project__isnull', False)), models.Q(('api_key__isnull', True), ('generation__isnull', True), ('kind__in', ['grant', 'refund']), ('project__isnull', True)), _connector='OR'), name='what_is_spent_names_its_request'),
        ),
        migrations.AddConstraint(
            model_name='ledgerentry',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('corrects__isnull', False), ('kind', 'correction')), models.Q(models.Q(('kind', 'correction'), _negated=True), ('corrects__isnull', True)), _connector='OR'), name='corrections_name_their_entry'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('reasoning_per_mtok_nanodollars__gte', 0)), name='reasoning_price_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='credit',
            constraint=models.CheckConstraint(condition=models.Q(('credited_nanodollars__gte', 0)), name='credit_not_negative'),
        ),
        migrations.AddConstraint(
            model_name='discount',
            constraint=models.UniqueConstraint(fields=('organization', 'effective_from'), name='one_discount_per_organization_and_start'),
        ),
        migrations.AddConstraint(
            model_name='discount',
            constraint=models.CheckConstraint(condition=models.Q(('basis_points__lte', 10000)), name='discount_at_most_all'),
        ),
    ]
