"""An index of what people booked: corrections and credit, which are rare among an organization's entries."""

from django.db import migrations, models
from django.db.models import Q

from usage.database.index_beside_writers import AddIndexBesideWriters


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("usage", "0019_statements")]

    operations = [
        AddIndexBesideWriters(
            model_name="ledgerentry",
            index=models.Index(
                fields=["organization", "created_at"],
                condition=Q(generation__isnull=True) | Q(corrects__isnull=False),
                name="bookings_of_an_organization",
            ),
        ),
    ]
