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
    help = (
        "Fill this installation with made-up usage, to try out and measure the pages: "
        f"{seeding.ORGANIZATIONS} organizations with {seeding.KEYS_EACH} keys each, and their requests of "
        "the last days, with prices, discounts, failures, ledger entries, seals, budgets and rollups. The "
        "books stay consistent: verifyledger finds no difference. Nobody can use the keys. Ledger entries "
        "are never deleted, so this cannot be undone, and the command refuses a database that already has "
        "usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = (
            "Example: manage.py seedusage --generations 1000000. A million takes a minute or two. If it is "
            "interrupted before it seals the ledger, nothing is kept; after that, the running service seals "
            "the rest."
        )
        parser.add_argument(
            "--generations", type=int, default=10_000, metavar="N", help="how many requests (default: 10000)"
        )
        parser.add_argument(
            "--days", type=int, default=90, metavar="N", help="over how many days (default: 90)"
        )
        parser.add_argument(
            "--until", type=arguments.moment, metavar="TIME", help="when these days end (default: now)"
        )
        parser.add_argument(
            "--seed",
            type=int,
            default=1,
            metavar="N",
            help="the same seed and --until create the same requests (default: 1)",
        )
        unsealed = "let the running service seal the ledger in the background; for very many requests"
        parser.add_argument("--unsealed", action="store_true", help=unsealed)
        parser.add_argument(
            "--add",
            action="store_true",
            help="also if there is usage already; all sums then include the made-up usage for ever",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        now = database_now()
        plan = Plan(options["generations"], options["days"], options["seed"], options["until"] or now)
        if plan.generations < 1 or plan.days < 1 or plan.until > now:
            raise CommandError(
                "Give at least one generation and one day, and an --until that is not in the future."
            )
        if not 0 <= plan.seed <= seeding.MAX_SEED:
            raise CommandError(f"Give a --seed from 0 to {seeding.MAX_SEED}.")
        if Generation.objects.order_by("id").first() and not options["add"]:
            raise CommandError(
                "This database already has usage. To mix made-up requests with it for ever, add --add."
            )
        if Organization.objects.filter(name__startswith=f"{plan.name} organization").exists():
            raise CommandError(f"The requests of seed {plan.seed} exist already; choose another --seed.")
        _check_begin(plan)
        self._began = self._reported = time.monotonic()
        self.stdout.write(f"Writing to {connection.vendor}, {connection.settings_dict['NAME']}")
        seeding.seed(plan, lambda done: self._report(f"{done:,} of {plan.generations:,} generations"))
        seeding.analyze()
        last_id = LedgerEntry.objects.order_by("-id").values_list("id", flat=True).first()
        while not options["unsealed"] and (sealed := seals.seal(timedelta(0))):
            self._report(f"{sealed.last_id:,} of {last_id:,} ledger entries sealed")
        seconds = time.monotonic() - self._began
        self.stdout.write(f"Made {plan.generations:,} generations and their books in {seconds:.0f} s.")

    def _report(self, done: str) -> None:
        now = time.monotonic()
        if now - self._reported >= EVERY_S:
            self._reported = now
            self.stdout.write(f"{now - self._began:5.0f} s  {done}")
            self.stdout.flush()


def _check_begin(plan: Plan) -> None:
    """Refuse a period that reaches before the first possible id or before the retention horizon."""
    try:
        retention_horizon.refuse_before(plan.begin)
        is_too_early = plan.begin < seeding.EARLIEST
    except OverflowError:
        is_too_early = True
    except Dropped as error:
        raise CommandError(f"{error} Give fewer --days.") from error
    if is_too_early:
        raise CommandError(
            "Give fewer --days: a request's id holds its time, which cannot be before "
            f"{seeding.EARLIEST:%Y-%m-%d}."
        )
