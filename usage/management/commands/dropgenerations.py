"""`manage.py dropgenerations`: export the generations that were settled before a day, then drop them."""

import time
from argparse import ArgumentTypeError
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from usage.errors import NotDropped
from usage.management import arguments
from usage.models import RetentionHorizon
from usage.retention import dropping
from usage.retention.dropping import DropJob
from usage.retention.readiness import MIN_AGE

EVERY_S = 2.0


class Command(BaseCommand):
    help = (
        "Make room: export the rows of requests that were settled before a day of UTC into a new folder, "
        "signed and checked, then drop them from the database in small batches, while the service runs. "
        "Their costs stay in the books for ever: ledger entries, seals, budgets, and all sums by hour and "
        "day. Each request's page, receipt and timings go, and with them corrections, re-rating and "
        "reconciliation of that time. This cannot be undone. The command refuses, and drops nothing, if an "
        "earlier request is still open, a day is not summed up yet, or verifyledger finds a difference. "
        "After an interruption, run it again: it continues. Exits with 1 if it refused or failed, else with "
        "0."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = (
            "Example: manage.py dropgenerations --before 2026-09-01 --to /backup/requests-2026-08 --dry-run. "
            "Then the same without --dry-run."
        )
        before = f"drop requests settled before this day begins (UTC), at least {MIN_AGE.days} days ago"
        parser.add_argument("--before", required=True, type=_day, metavar="YYYY-MM-DD", help=before)
        folder = "a new folder for the export"
        parser.add_argument("--to", required=True, type=arguments.folder(1_000), metavar="DIR", help=folder)
        arguments.add_by(parser, "the name in the audit log")
        parser.add_argument(
            "--dry-run", action="store_true", help="only check, and report what would be exported and dropped"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Finish what an earlier run left, then drop the requested generations."""
        job = DropJob(options["before"], options["to"], options["by"])
        try:
            # First what an earlier run has exported: its rows are on disk and checked, and a new export
            # must not contain them again.
            if begun := dropping.unfinished():
                left = begun.generations_count - begun.dropped_count
                self.stdout.write(
                    f"An earlier run has exported what was settled before {begun.day} to {begun.export}; "
                    f"{left:,} rows are left to drop."
                )
                if not options["dry_run"]:
                    self._drop(begun)
            self._do(job, is_dry_run=options["dry_run"])
        except NotDropped as error:
            raise CommandError(str(error)) from error

    def _do(self, job: DropJob, *, is_dry_run: bool) -> None:
        ready = None
        if (spec := dropping.period_of(job)) is not None:
            self._say("Checking the books …")
            ready = dropping.prepare(spec)
        if ready is None:
            self._say(f"There is nothing to drop before {job.day}.")
            return
        rows = f"{ready.generations:,} generations settled before {job.day}, {ready.entries:,} ledger entries"
        if is_dry_run:
            self._say(f"Would export {rows}, to {job.folder}, and drop the generations. Nothing was written.")
            return
        self._say(f"Exporting {rows} …")
        manifest = dropping.export(ready.spec, job.folder)
        self._say(f"{job.folder} is written and checked.")
        self._drop(dropping.record(job, ready.spec, manifest))

    def _drop(self, horizon: RetentionHorizon) -> None:
        self._reported = time.monotonic()
        dropping.drop(horizon, lambda done: self._report(done, horizon.generations_count))
        self._say(
            f"Dropped {horizon.generations_count:,} generations settled before {horizon.day}. "
            f"Keep {horizon.export}: it is the only copy."
        )

    def _report(self, done: int, of: int) -> None:
        if time.monotonic() - self._reported >= EVERY_S:
            self._reported = time.monotonic()
            self._say(f"{done:,} of {of:,} dropped")

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day such as 2026-09-01") from None
