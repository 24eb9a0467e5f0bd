"""`manage.py grantcredit`: book prepaid credit of an organization."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from accounts.audit.commands import acting_command
from usage.books import credit
from usage.formatting import usd
from usage.management import arguments, booking_commands


class Command(BaseCommand):
    help = (
        "Grant an organization prepaid credit, as a ledger entry. With --require, requests that the credit "
        "does not cover are refused from now on."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        example = '--organization "Acme Inc" --usd 10.00 --reason "invoice 17" --require'
        parser.epilog = f"Example: manage.py grantcredit {example}"
        arguments.add_booking(parser)
        parser.add_argument(
            "--require",
            action="store_true",
            help="refuse from now on requests that the balance does not cover",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        with acting_command("grantcredit", options["by"]):
            (entry, is_new), balance = booking_commands.book("granted credit", credit.grant, options)
        outcome = (
            f"Granted {usd(-entry.amount_nanodollars)} to"
            if is_new
            else f"Already booked as ledger entry {entry.pk}:"
        )
        self.stdout.write(f"{outcome} {entry.organization}, whose balance is {usd(balance.nanodollars)}.")
