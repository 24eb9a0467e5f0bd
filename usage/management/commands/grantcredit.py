"""`manage.py grantcredit`: book what an organization has paid in advance."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from accounts.audit.commands import acting_command
from usage.books import credit
from usage.formatting import usd
from usage.management import arguments, booking_commands


class Command(BaseCommand):
    """Grants credit."""

    help = "Grant an organization prepaid credit: an entry in the ledger. With --require, what it can't cover is refused from now on."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = 'Example: manage.py grantcredit --organization "Acme Inc" --usd 10.00 --reason "invoice 17" --require'
        arguments.add_booking(parser)
        parser.add_argument(
            "--require", action="store_true", help="refuse from now on what the balance can't cover"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Book it and tell the balance; a reference that was booked before changes nothing."""
        with acting_command("grantcredit", options["by"]):
            (entry, is_new), balance = booking_commands.book("granted credit", credit.grant, options)
        told = (
            f"Granted {usd(-entry.amount_nanodollars)} to"
            if is_new
            else f"Booked before, as ledger entry {entry.pk}:"
        )
        self.stdout.write(f"{told} {entry.organization}, whose balance is {usd(balance.nanodollars)}.")
