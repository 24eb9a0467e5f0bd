"""An index by generation: the key of one that did not come about is given back in the transaction for which
others wait.
"""

from django.db import migrations, models

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0010_generation_attempt_log")]

    operations = [
        AddIndexBesideWriters(
            model_name="idempotencykey", index=models.Index(fields=["generation_id"], name="idempotency_keys_by_generation")
        ),
    ]
