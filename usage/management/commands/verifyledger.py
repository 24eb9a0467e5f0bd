"""`manage.py verifyledger`: check the books; exit 1 on any difference."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, transaction
from django.template.defaultfilters import pluralize

from usage.database.clock import database_now
from usage.management import arguments
from usage.models import LedgerCheck, LedgerSeal
from usage.verification import Report, ledger_checks, verify
from usage.verification.ledger_checks import Found


class Command(BaseCommand):
    help = (
        "Check the books: one charge per generation, amounts that recompute, budgets, credit and hourly "
        "usage equal to the ledger, nothing stuck, nothing changed since it was sealed. The Overview shows "
        "the time and the result. Safe on a live system. Prints each difference, and exits with 1 if there "
        "is any."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        since = (
            "only rows settled, written or sealed since then, and budgets of days and months that began since"
        )
        parser.add_argument("--since", type=arguments.moment, metavar="TIME", help=since)
        parser.add_argument(
            "--seal",
            type=arguments.digest,
            metavar="DIGEST",
            help="a seal noted earlier or found in an export, which must still exist: 64 hexadecimal digits",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        since, now = options["since"], database_now()
        if since is not None and since >= now:
            raise CommandError(f"--since {since.isoformat()} is in the future: nothing would be checked.")
        report = verify(since=since, now=now)
        if options["seal"] is not None and not LedgerSeal.objects.filter(digest=options["seal"]).exists():
            report = replace(
                report, differences=[ledger_checks.missing_seal(options["seal"]), *report.differences]
            )
        self._record(now, since, report)
        for note in report.notes:
            self.stdout.write(f"Note: {note}.")
        for difference in report.differences:
            self.stderr.write(str(difference))
        summary = _summary(report, since)
        if not (found := len(report.differences)):
            self.stdout.write(f"The books are right: {summary}, no difference.")
        # A backup of books with a difference needs it, too.
        if report.newest_seal:
            self.stdout.write(f"Newest seal: {report.newest_seal}")
        if found:
            count = f"{'At least ' if report.is_cut else ''}{found} difference{pluralize(found)}"
            raise CommandError(f"{count} in {summary}.")

    def _record(self, now: datetime, since: datetime | None, report: Report) -> None:
        """Record the check for the Overview. Without the right to write, or on a busy database, only warn."""
        try:
            generations = report.generations if since is None else ledger_checks.settled_since(since)
            with transaction.atomic():
                ledger_checks.record(
                    now, [Found(LedgerCheck(checked_at=now), since, generations, report.differences)]
                )
        except DatabaseError as error:
            self.stderr.write(f"The check is not on record, so the Overview won't show it: {error}")


def _summary(report: Report, since: datetime | None) -> str:
    generations = (
        f"{report.generations} generation{pluralize(report.generations)} ({report.open_generations} open)"
    )
    entries = (
        f"{report.entries} ledger entr{pluralize(report.entries, 'y,ies')} ({report.sealed_entries} sealed)"
    )
    dropped = (
        f", {report.dropped_generations} more exported and dropped" if report.dropped_generations else ""
    )
    return f"{generations}{dropped}, {entries}{f', all since {since.isoformat()}' if since else ''}"
