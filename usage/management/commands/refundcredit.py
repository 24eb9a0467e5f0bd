"""`manage.py refundcredit`: take unused credit back."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from usage import credit
from usage.errors import NotBooked
from usage.management import arguments
from usage.pages.shown import usd


class Command(BaseCommand):
    """Refunds credit."""

    help = "Take unused credit from an organization, because it was paid out or granted by mistake: an entry in the ledger."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = 'Example: manage.py refundcredit --organization "Acme Inc" --usd 2.50 --reason "paid out, ticket 4"'
        arguments.add_booking(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Book it and tell the balance; more than is unused is refused."""
        organization = arguments.organization(options["organization"])
        try:
            entry, is_new = credit.refund(organization, options["usd"], arguments.note(options))
        except NotBooked as error:
            raise CommandError(str(error)) from error
        balance = usd(credit.balance(organization).nanodollars)
        told = f"Refunded {usd(entry.amount_nanodollars)} to" if is_new else f"Booked before, as ledger entry {entry.pk}:"
        self.stdout.write(f"{told} {organization}, whose balance is {balance}.")
