"""`manage.py grantcredit`: book what an organization has paid in advance."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from usage import credit
from usage.errors import NotBooked
from usage.management import arguments
from usage.pages.shown import usd


class Command(BaseCommand):
    """Grants credit."""

    help = "Grant an organization prepaid credit: an entry in the ledger. With --require, what it can't cover is refused from now on."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = 'Example: manage.py grantcredit --organization "Acme Inc" --usd 10.00 --reason "invoice 17" --require'
        arguments.add_booking(parser)
        parser.add_argument("--require", action="store_true", help="refuse from now on what the balance can't cover")

    def handle(self, *args: Any, **options: Any) -> None:
        """Book it and tell the balance; a reference that was booked before changes nothing."""
        organization = arguments.organization(options["organization"])
        try:
            entry, is_new = credit.grant(organization, options["usd"], arguments.note(options))
        except NotBooked as error:
            raise CommandError(str(error)) from error
        if options["require"]:
            credit.require(organization)
        balance = usd(credit.balance(organization).nanodollars)
        told = f"Granted {usd(-entry.amount_nanodollars)} to" if is_new else f"Booked before, as ledger entry {entry.pk}:"
        self.stdout.write(f"{told} {organization}, whose balance is {balance}.")
