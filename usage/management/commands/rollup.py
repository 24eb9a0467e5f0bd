"""`manage.py rollup`: rebuild the usage by hour and by day from the ledger."""

from typing import Any

from django.core.management.base import BaseCommand

from usage import rollups
from usage.rollups import daily_first_tokens


class Command(BaseCommand):
    """Rebuilds the rollups."""

    help = (
        "Drop the hourly usage and rebuild it from the ledger, and from it all days that are over, in one transaction; settlements wait "
        "meanwhile. Then count anew how soon requests of those days began to answer. Safe to repeat."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Rebuild and say how many rows there were and are."""
        done = rollups.rebuild()
        while daily_first_tokens.count_next():
            pass
        self.stdout.write(
            f"Rebuilt the hourly usage from the ledger: {done.hours_before} rows before, {done.hours} now. "
            f"The days that are over: {done.days_before} rows before, {done.days} now."
        )
