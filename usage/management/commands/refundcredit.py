"""`manage.py refundcredit`: take unused credit back."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from accounts.audit.commands import acting_command
from usage.books import credit
from usage.formatting import usd
from usage.management import arguments, booking_commands


class Command(BaseCommand):
    """Refunds credit."""

    help = "Take unused credit from an organization, because it was paid out or granted by mistake: an entry in the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = 'Example: manage.py refundcredit --organization "Acme Inc" --usd 2.50 --reason "paid out, ticket 4"'
        arguments.add_booking(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Book it and tell the balance; more than is unused is refused."""
        with acting_command("refundcredit", options["by"]):
            (entry, is_new), balance = booking_commands.book("refunded credit", credit.refund, options)
        told = (
            f"Refunded {usd(entry.amount_nanodollars)} to"
            if is_new
            else f"Booked before, as ledger entry {entry.pk}:"
        )
        self.stdout.write(f"{told} {entry.organization}, whose balance is {usd(balance.nanodollars)}.")
