"""`manage.py rerate`: correct a period's charges after a change of its prices or discounts."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import pluralize

from accounts.audit.commands import acting_command
from usage.books.rerating import ReratingSpec, has_history, rerate
from usage.errors import Dropped
from usage.formatting import usd
from usage.management import arguments


class Command(BaseCommand):
    help = (
        "Compare a period's charges of a model with its price rows and the organizations' discounts as they "
        "are now, and correct each charge that differs by one more ledger entry. A second run finds nothing "
        "to correct. Corrections made by hand stay."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Example: manage.py rerate --model small --from 2026-11-01 --to 2026-12-01 --dry-run"
        parser.add_argument(
            "--model",
            required=True,
            type=arguments.text(128),
            metavar="ID",
            help="the served model, as clients name it",
        )
        arguments.add_period(parser)
        arguments.add_by(parser, "the name in the ledger and the audit log")
        parser.add_argument("--dry-run", action="store_true", help="only report what would be corrected")

    def handle(self, *args: Any, **options: Any) -> None:
        spec = ReratingSpec(options["model"], *arguments.period(options), options["by"])
        if not has_history(spec.model):
            raise CommandError(f"There is no model {spec.model!r}: it never had a price or a charge.")
        try:
            with acting_command("rerate", spec.recorded_by):
                done = rerate(spec, is_dry_run=options["dry_run"])
        except Dropped as error:
            raise CommandError(str(error)) from error
        verb = "would be corrected" if options["dry_run"] else "corrected"
        charges = f"{done.corrected} of {done.charges} charge{pluralize(done.charges)}"
        self.stdout.write(f"{charges} {verb}, by {usd(done.difference_nanodollars)} in sum.")
