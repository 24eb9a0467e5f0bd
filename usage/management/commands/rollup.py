"""`manage.py rollup`: rebuild the hourly and daily usage from the ledger."""

from typing import Any

from django.core.management.base import BaseCommand

from usage import rollups
from usage.statements import itemizing


class Command(BaseCommand):
    help = (
        "Rebuild the hourly usage from the ledger in one transaction. Requests can't begin or end meanwhile: "
        "run it in a quiet hour. Then add up all days that are over, with their times to first token and the "
        "items of statements; statements that are issued stay as they are. Safe to repeat."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        done = rollups.rebuild()
        itemizing.itemize_anew()
        self.stdout.write(
            f"Rebuilt the hourly usage from the ledger: {done.hours_before} rows before, {done.hours} now. "
            f"The days that are over: {done.days_before} rows before, {done.days} now."
        )
