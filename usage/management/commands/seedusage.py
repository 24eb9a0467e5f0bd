"""`manage.py seedusage`: fill the books with made-up usage."""

import time
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from accounts.models import Organization
from usage.database.clock import database_now
from usage.errors import Dropped
from usage.management import arguments, seeding
from usage.management.seeding import Plan
from usage.models import Generation, LedgerEntry
from usage.rollups import retention_horizon
from usage.verification import seals

EVERY_S = 2.0


class Command(BaseCommand):
    """Makes usage up."""

    help = (
        f"Fill this installation with made-up usage, to try the pages and measure them: {seeding.ORGANIZATIONS} organizations with "
        f"{seeding.KEYS_EACH} keys each, and their requests of the last days with prices, discounts, failures, ledger entries, seals, "
        "budgets and rollups. The books stay right: verifyledger finds no difference. Nobody can use the keys. "
        "There is no command that takes it back: ledger entries are never deleted. So it refuses where there is usage already."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = (
            "Example: manage.py seedusage --generations 1000000. A million takes a minute or two. When it is interrupted before it seals "
            "the ledger, nothing stays; after that, the running service seals the rest."
        )
        parser.add_argument(
            "--generations", type=int, default=10_000, metavar="N", help="how many requests (default: 10000)"
        )
        parser.add_argument(
            "--days", type=int, default=90, metavar="N", help="in the last so many days (default: 90)"
        )
        parser.add_argument(
            "--until", type=arguments.moment, metavar="TIME", help="when these days end (default: now)"
        )
        parser.add_argument(
            "--seed",
            type=int,
            default=1,
            metavar="N",
            help="the same seed and --until make the same requests (default: 1)",
        )
        unsealed = "leave the ledger's seals to the running service, which makes them in the background; for very many requests"
        parser.add_argument("--unsealed", action="store_true", help=unsealed)
        parser.add_argument(
            "--add",
            action="store_true",
            help="also where there is usage already: it is in all sums from then on, for ever",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Write it, seal it, and say what there is."""
        now = database_now()
        plan = Plan(options["generations"], options["days"], options["seed"], options["until"] or now)
        if plan.generations < 1 or plan.days < 1 or plan.until > now:
            raise CommandError("Give one generation and one day at least, and no end that is still to come.")
        if not 0 <= plan.seed <= seeding.MAX_SEED:
            raise CommandError(f"Give a --seed from 0 to {seeding.MAX_SEED}.")
        if Generation.objects.order_by("id").first() and not options["add"]:
            raise CommandError(
                "There is usage in this database already. If made-up requests may be mixed with it for ever, add --add."
            )
        if Organization.objects.filter(name__startswith=f"{plan.name} organization").exists():
            raise CommandError(f"What seed {plan.seed} makes is here already; take another --seed.")
        _check_begin(plan)
        self._begin()
        seeding.sow(plan, lambda done: self._tell(f"{done:,} of {plan.generations:,} generations"))
        seeding.analyze()
        entries = LedgerEntry.objects.count()
        while not options["unsealed"] and (sealed := seals.seal(timedelta(0))):
            self._tell(f"{sealed.last_id:,} of about {entries:,} ledger entries sealed")
        seconds = time.monotonic() - self._began
        self.stdout.write(f"Made {plan.generations:,} generations and their books in {seconds:.0f} s.")

    def _begin(self) -> None:
        self._began = self._told = time.monotonic()
        where = connection.settings_dict["NAME"]
        self.stdout.write(f"Writing to {connection.vendor}, {where}")

    def _tell(self, done: str) -> None:
        """How far it is, every now and then."""
        now = time.monotonic()
        if now - self._told >= EVERY_S:
            self._told = now
            self.stdout.write(f"{now - self._began:5.0f} s  {done}")
            self.stdout.flush()


def _check_begin(plan: Plan) -> None:
    """Rows of a time without ids could be written, and neither be read nor taken back."""
    try:
        retention_horizon.refuse_before(plan.begin)
        is_too_early = plan.begin < seeding.EARLIEST
    except OverflowError:
        is_too_early = True
    except Dropped as error:
        raise CommandError(f"{error} That is: fewer --days.") from error
    if is_too_early:
        raise CommandError(
            f"Give fewer --days: the id of a request has its time, and none before {seeding.EARLIEST:%Y-%m-%d}."
        )
