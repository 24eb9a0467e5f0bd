"""`manage.py rollup`: rebuild the hourly usage from the ledger."""

from typing import Any

from django.core.management.base import BaseCommand

from usage import rollups


class Command(BaseCommand):
    """Rebuilds the hourly usage table."""

    help = "Drop the hourly usage and rebuild it from the ledger, in one transaction; settlements wait meanwhile. Safe to repeat."

    def handle(self, *args: Any, **options: Any) -> None:
        """Rebuild and say how many rows there were and are."""
        before, after = rollups.rebuild()
        self.stdout.write(f"Rebuilt the hourly usage from the ledger: {before} rows before, {after} now.")
