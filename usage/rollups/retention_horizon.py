"""How long generations are kept: their rows are exported and dropped after a while, the ledger and its sums
are for ever.

`horizon` is the moment before which they are gone; it moves by `manage.py dropgenerations` alone. What needs
the rows themselves asks `refuse_before`; what reads the ledger, its seals, budgets or rollups needs to know
nothing of it.
"""

from datetime import date, datetime

from django.db.models import Max

from usage.errors import Dropped
from usage.models import RetentionHorizon
from usage.rollups.closed_days import midnight


def horizon() -> datetime | None:
    """The moment before which settled generations are dropped, or are being dropped; None: all are kept."""
    day: date | None = RetentionHorizon.objects.aggregate(day=Max("day"))["day"]
    return None if day is None else midnight(day)


def refuse_before(since: datetime) -> None:
    """Raises `Dropped` for what needs the generations of a period that begins before the horizon."""
    kept_since = horizon()
    if kept_since is not None and since < kept_since:
        raise Dropped(
            f"Requests that were settled before {kept_since:%Y-%m-%d} (UTC) were exported and dropped. This needs their rows: "
            f"give a period that begins on {kept_since:%Y-%m-%d} or later."
        )
