"""`manage.py refundcredit`: take unused credit back."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from accounts.audit.commands import acting_command
from usage.books import credit
from usage.formatting import usd
from usage.management import arguments, booking_commands


class Command(BaseCommand):
    help = "Take back unused credit that was paid out or granted by mistake, as a ledger entry."

    def add_arguments(self, parser: CommandParser) -> None:
        example = '--organization "Acme Inc" --usd 2.50 --reason "paid out, ticket 4"'
        parser.epilog = f"Example: manage.py refundcredit {example}"
        arguments.add_booking(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with acting_command("refundcredit", options["by"]):
            (entry, is_new), balance = booking_commands.book("refunded credit", credit.refund, options)
        outcome = (
            f"Refunded {usd(entry.amount_nanodollars)} to"
            if is_new
            else f"Already booked as ledger entry {entry.pk}:"
        )
        self.stdout.write(f"{outcome} {entry.organization}, whose balance is {usd(balance.nanodollars)}.")
