"""Days of the rollup, and a trigger that reopens a closed day when one of its hours is written after all.

An hour that is not over two hours ago is in no closed day, so the trigger costs settlements a comparison.
SQLite's tables are rebuilt by migrations that alter them, and lose their triggers by it: such a migration of
the hours must run `watch` again. `verifyledger` notices when it does not.
"""

import django.db.models.deletion
from django.db import migrations, models

FUNCTION = """
    CREATE FUNCTION usage_reopen_day() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        DELETE FROM usage_closedday WHERE day = CAST(NEW.hour AT TIME ZONE 'UTC' AS date);
        RETURN NULL;
    END $$
"""


def watch(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FUNCTION)
        schema_editor.execute(
            "CREATE TRIGGER usage_hourlyusage_reopens_its_day AFTER INSERT OR UPDATE ON usage_hourlyusage FOR EACH ROW "
            "WHEN (NEW.hour <= clock_timestamp() - interval '2 hours') EXECUTE FUNCTION usage_reopen_day()"
        )
        return
    for action in ("insert", "update"):
        schema_editor.execute(
            f"CREATE TRIGGER usage_hourlyusage_{action}_reopens_its_day AFTER {action} ON usage_hourlyusage "
            "WHEN NEW.hour <= datetime('now', '-2 hours') "
            "BEGIN DELETE FROM usage_closedday WHERE day = substr(NEW.hour, 1, 10); END"
        )


def unwatch(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP TRIGGER usage_hourlyusage_reopens_its_day ON usage_hourlyusage")
        schema_editor.execute("DROP FUNCTION usage_reopen_day()")
        return
    for action in ("insert", "update"):
        schema_editor.execute(f"DROP TRIGGER usage_hourlyusage_{action}_reopens_its_day")


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
        ('usage', '0004_generation_includes_usage_and_idempotency_keys'),
    ]

    operations = [
        migrations.CreateModel(
            name='ClosedDay',
            fields=[
                ('day', models.DateField(primary_key=True, serialize=False)),
                ('has_first_tokens', models.BooleanField(db_default=False, help_text='Whether its times to first token are counted too.')),
            ],
        ),
        migrations.CreateModel(
            name='DailyFirstTokens',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('dimension', models.CharField(choices=[('organization', 'Organization'), ('project', 'Project'), ('key', 'Key'), ('model', 'Model'), ('outcome', 'Outcome')], max_length=12)),
                ('member', models.CharField(help_text='An id or a name.', max_length=128)),
                ('bucket', models.SmallIntegerField()),
                ('requests', models.PositiveBigIntegerField()),
            ],
            options={
                'verbose_name_plural': 'daily first tokens',
                'constraints': [models.UniqueConstraint(fields=('dimension', 'day', 'member', 'bucket'), name='one_row_per_day_member_and_bucket')],
            },
        ),
        migrations.CreateModel(
            name='DailyTotals',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('requests', models.PositiveBigIntegerField(default=0)),
                ('prompt_tokens', models.PositiveBigIntegerField(default=0)),
                ('cached_tokens', models.PositiveBigIntegerField(default=0)),
                ('completion_tokens', models.PositiveBigIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveBigIntegerField(default=0)),
                ('amount_nanodollars', models.BigIntegerField(default=0)),
                ('day', models.DateField()),
                ('dimension', models.CharField(choices=[('organization', 'Organization'), ('project', 'Project'), ('key', 'Key'), ('model', 'Model'), ('outcome', 'Outcome')], max_length=12)),
                ('member', models.CharField(help_text='An id or a name.', max_length=128)),
                ('failed_requests', models.PositiveBigIntegerField(default=0, help_text='Of the requests.')),
            ],
            options={
                'verbose_name_plural': 'daily totals',
                'constraints': [models.UniqueConstraint(fields=('dimension', 'day', 'member'), name='one_row_per_day_and_member')],
            },
        ),
        migrations.CreateModel(
            name='DailyUsage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('requests', models.PositiveBigIntegerField(default=0)),
                ('prompt_tokens', models.PositiveBigIntegerField(default=0)),
                ('cached_tokens', models.PositiveBigIntegerField(default=0)),
                ('completion_tokens', models.PositiveBigIntegerField(default=0)),
                ('reasoning_tokens', models.PositiveBigIntegerField(default=0)),
                ('amount_nanodollars', models.BigIntegerField(default=0)),
                ('model', models.CharField(max_length=128)),
                ('outcome', models.CharField(choices=[('completed', 'Completed'), ('client_cancelled', 'Client Cancelled'), ('failed', 'Failed'), ('worker_lost', 'Worker Lost'), ('not_started', 'Not Started')], max_length=20)),
                ('day', models.DateField()),
                ('api_key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.apikey')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.organization')),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.project')),
            ],
            options={
                'verbose_name_plural': 'daily usage',
                'constraints': [models.UniqueConstraint(fields=('organization', 'day', 'project', 'api_key', 'model', 'outcome'), name='one_row_per_day_and_group')],
            },
        ),
        migrations.RunPython(watch, unwatch),
    ]
