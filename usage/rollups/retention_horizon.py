"""The retention horizon: the moment before which settled generations were exported and dropped.

Only `manage.py dropgenerations` moves it. Code that needs generations of a period asks `refuse_before`; the
ledger, its seals, the budgets and the rollups are kept for ever.
"""

from datetime import date, datetime

from django.db.models import Max

from usage.errors import Dropped
from usage.models import RetentionHorizon
from usage.rollups.closed_days import midnight


def horizon() -> datetime | None:
    """Return the moment before which settled generations are dropped, or being dropped; None: none are."""
    day: date | None = RetentionHorizon.objects.aggregate(day=Max("day"))["day"]
    return None if day is None else midnight(day)


def is_dropped(day: date) -> bool:
    """Return whether the generations that were settled on that day are dropped, or being dropped."""
    kept_since = horizon()
    return kept_since is not None and midnight(day) < kept_since


def refuse_before(since: datetime) -> None:
    """Raise `Dropped` if the period begins before the horizon."""
    kept_since = horizon()
    if kept_since is not None and since < kept_since:
        raise Dropped(
            f"Requests that were settled before {kept_since:%Y-%m-%d} (UTC) were exported and dropped. "
            f"This needs their rows: give a period that begins on {kept_since:%Y-%m-%d} or later."
        )
