"""`manage.py verifyledger`: check the books; exit 1 on any difference."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from usage.verification import verify


class Command(BaseCommand):
    """Checks every invariant of the books on the live database."""

    help = (
        "Check the books: one charge per generation, amounts that recompute, budgets and hourly usage equal to the ledger. "
        "Safe on a live system. Exits with 1 and prints each difference when anything does not add up."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the report; raise `CommandError` (exit 1) on a difference."""
        report = verify()
        for difference in report.differences:
            self.stderr.write(f"{difference.invariant}: {difference.subject}: expected {difference.expected}, found {difference.found}")
        summary = f"{report.generations} generations ({report.open_generations} open), {report.entries} ledger entries"
        if report.differences:
            raise CommandError(f"{len(report.differences)} differences in {summary}.")
        self.stdout.write(f"The books are right: {summary}, no difference.")
