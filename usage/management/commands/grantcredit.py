"""`manage.py grantcredit`: book prepaid credit of an organization."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from usage.books import credit
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
        self.stdout.write(booking_commands.book("grantcredit", "granted", credit.grant, options))
