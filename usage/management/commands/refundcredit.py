"""`manage.py refundcredit`: take unused credit back."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from usage.books import credit
from usage.management import arguments, booking_commands


class Command(BaseCommand):
    help = "Take back unused credit that was paid out or granted by mistake, as a ledger entry."

    def add_arguments(self, parser: CommandParser) -> None:
        example = '--organization "Acme Inc" --usd 2.50 --reason "paid out, ticket 4"'
        parser.epilog = f"Example: manage.py refundcredit {example}"
        arguments.add_booking(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(booking_commands.book("refundcredit", "refunded", credit.refund, options))
