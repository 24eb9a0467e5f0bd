"""What several commands about the books ask for."""

from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from accounts.models import Organization
from usage import pricing
from usage.credit import Note


def moment(text: str) -> datetime:
    """A date or time as in ISO 8601; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        found.astimezone(UTC)  # before the year 1 and after 9999 there is none
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a date such as 2026-11-01 or a time such as 2026-11-01T06:00:00Z") from None
    return found


def usd(text: str) -> int:
    """US dollars in nanodollars."""
    try:
        return pricing.from_usd(text.removeprefix("$"))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_period(parser: CommandParser) -> None:
    """`--from` and `--to`: from a moment up to, and not including, another."""
    parser.add_argument("--from", dest="since", required=True, type=moment, metavar="TIME", help="first moment; a date is its start in UTC")
    parser.add_argument("--to", dest="until", required=True, type=moment, metavar="TIME", help="first moment that is not meant any more")


def period(options: dict[str, Any]) -> tuple[datetime, datetime]:
    """The period of `add_period`; raises `CommandError` where it is none."""
    since, until = options["since"], options["until"]
    if since >= until:
        raise CommandError(f"The period from {since.isoformat()} to {until.isoformat()} is none: --from comes before --to.")
    return since, until


def add_booking(parser: CommandParser) -> None:
    """Who gets or gives how much credit, and why."""
    parser.add_argument("--organization", required=True, metavar="NAME", help="whose credit")
    parser.add_argument("--usd", required=True, type=usd, metavar="AMOUNT", help="US dollars, such as 10.00")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; it is kept in the ledger")
    parser.add_argument("--by", default="manage.py", metavar="NAME", help="who books it (default: manage.py)")
    parser.add_argument(
        "--reference", default="", metavar="ID", help="such as a payment's id: what has it is booked once, however often it is asked for"
    )


def note(options: dict[str, str]) -> Note:
    """The note of `add_booking`."""
    return Note(options["reason"], options["by"], options["reference"])


def organization(name: str) -> Organization:
    """The organization of that name; raises `CommandError`."""
    found = Organization.objects.filter(name=name).first()
    if found is None:
        raise CommandError(f"There is no organization {name!r}.")
    return found
