"""`manage.py rollup`: rebuild the hourly and daily usage from the ledger."""

from typing import Any

from django.core.management.base import BaseCommand

from usage import rollups
from usage.rollups import daily_first_tokens


class Command(BaseCommand):
    help = (
        "Rebuild the hourly usage from the ledger, and from it the usage of all past days, in one "
        "transaction; settlements wait meanwhile. Then count the times to first token of those days anew. "
        "Safe to repeat."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        done = rollups.rebuild()
        while daily_first_tokens.count_next():
            pass
        self.stdout.write(
            f"Rebuilt the hourly usage from the ledger: {done.hours_before} rows before, {done.hours} now. "
            f"The days that are over: {done.days_before} rows before, {done.days} now."
        )
