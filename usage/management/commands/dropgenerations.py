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
from usage.retention.dropping import Order
from usage.retention.readiness import MIN_AGE

EVERY_S = 2.0


class Command(BaseCommand):
    """Exports and drops generations."""

    help = (
        "Make room: export the rows of requests that were settled before a day of UTC into a new folder, signed and checked, then drop "
        "them from the database, a few at once, while the service runs. What they cost stays in the books for ever: ledger entries, seals, "
        "budgets, and all sums by hour and day. What goes is each request's own page, receipt and timings, and with them corrections, "
        "re-rating and reconciling of that time. There is no way back. "
        "It refuses, and drops nothing, when a request of before is still open, a day is not added up, or verifyledger finds a difference. "
        "When it is interrupted, run it again: it goes on where it was. Exits with 1 when it has refused or failed, else with 0."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = (
            "Example: manage.py dropgenerations --before 2026-09-01 --to /backup/requests-2026-08 --dry-run. "
            "Then the same without --dry-run."
        )
        kept = f"drop what was settled before this day begins (UTC); {MIN_AGE.days} days ago or earlier"
        parser.add_argument("--before", required=True, type=_day, metavar="YYYY-MM-DD", help=kept)
        where = "a folder that is not there yet, for the export"
        parser.add_argument("--to", required=True, type=arguments.folder(1_000), metavar="DIR", help=where)
        parser.add_argument(
            "--by",
            default="manage.py",
            type=arguments.text(150),
            metavar="NAME",
            help="who asks for it, for the audit log (default: manage.py)",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="only check, and say what would be exported and dropped"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Finish what an earlier run has left, then do what is asked for."""
        order = Order(options["before"], options["to"], options["by"])
        try:
            if begun := dropping.unfinished():
                self._go_on(begun, is_dry_run=options["dry_run"])
            self._do(order, is_dry_run=options["dry_run"])
        except NotDropped as error:
            raise CommandError(str(error)) from error

    def _go_on(self, begun: RetentionHorizon, *, is_dry_run: bool) -> None:
        left = begun.generations_count - begun.dropped_count
        self.stdout.write(
            f"An earlier run has exported what was settled before {begun.day} to {begun.export}; {left:,} rows are left to drop."
        )
        if not is_dry_run:
            self._drop(begun)

    def _do(self, order: Order, *, is_dry_run: bool) -> None:
        self._say("Checking the books …")
        ready = dropping.prepare(order)
        if ready is None:
            self._say(f"There is nothing to drop before {order.day}.")
            return
        what = f"{ready.generations:,} generations settled before {order.day}, with {ready.entries:,} ledger entries"
        if is_dry_run:
            self._say(
                f"Would export {what}, to {order.folder}, and drop the generations. Nothing was written."
            )
            return
        self._say(f"Exporting {what} …")
        manifest = dropping.export(ready.spec, order.folder)
        self._say(f"{order.folder} is written and checked.")
        self._drop(dropping.record(order, ready.spec, manifest))

    def _drop(self, horizon: RetentionHorizon) -> None:
        self._told = time.monotonic()
        dropping.drop(horizon, lambda done: self._tell(done, horizon.generations_count))
        self._say(
            f"Dropped {horizon.generations_count:,} generations settled before {horizon.day}. Keep {horizon.export}: nothing else has them."
        )

    def _tell(self, done: int, of: int) -> None:
        """How far it is, every now and then."""
        if time.monotonic() - self._told >= EVERY_S:
            self._told = time.monotonic()
            self._say(f"{done:,} of {of:,} dropped")

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day such as 2026-09-01") from None
