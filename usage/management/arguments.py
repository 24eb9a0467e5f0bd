"""What several commands about the books ask for."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from accounts.models import Organization
from usage import pricing
from usage.books.credit import Note


def moment(text: str) -> datetime:
    """A date or time as in ISO 8601, in UTC; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(
            UTC
        )  # before the year 1 and after 9999 there is none
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is not a date such as 2026-11-01 or a time such as 2026-11-01T06:00:00Z"
        ) from None


def day(text: str) -> datetime:
    """The first moment of a day in UTC."""
    with suppress(ArgumentTypeError):
        if (found := moment(text)).time() == time.min:
            return found
    raise ArgumentTypeError(
        f"{text!r} is not the start of a day in UTC: bills are compared by whole days, such as 2026-11-01"
    )


def text(max_chars: int) -> Callable[[str], str]:
    """A text that its column can hold, on every database."""

    def checked(value: str) -> str:
        if len(value) > max_chars:
            raise ArgumentTypeError(
                f"{value[:20]!r}… has {len(value)} characters; at most {max_chars} are kept"
            )
        if (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)) or "\0" in value:
            raise ArgumentTypeError(f"{value!r} is not a text in UTF-8")
        return value

    return checked


def folder(max_chars: int) -> Callable[[str], Path]:
    """A folder, complete, whose name is kept."""

    def checked(value: str) -> Path:
        return Path(text(max_chars)(str(Path(value).absolute())))

    return checked


def digest(text: str) -> str:
    """A SHA-256 as it is printed, in either case."""
    if len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef"):
        raise ArgumentTypeError(f"{text[:70]!r} is not a digest: it has 64 hexadecimal digits")
    return text.lower()


def usd(text: str) -> int:
    """US dollars in nanodollars."""
    try:
        return pricing.from_usd(text.removeprefix("$"))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_period(parser: CommandParser) -> None:
    """`--from` and `--to`: from a moment up to, and not including, another."""
    parser.add_argument(
        "--from",
        dest="since",
        required=True,
        type=moment,
        metavar="TIME",
        help="first moment; a date is its start in UTC",
    )
    parser.add_argument(
        "--to",
        dest="until",
        required=True,
        type=moment,
        metavar="TIME",
        help="first moment that is not meant any more",
    )


def add_days(parser: CommandParser) -> None:
    """`--from` and `--to`: from a day in UTC up to, and not including, another."""
    parser.add_argument(
        "--from", dest="since", required=True, type=day, metavar="DAY", help="first day, in UTC"
    )
    parser.add_argument(
        "--to",
        dest="until",
        required=True,
        type=day,
        metavar="DAY",
        help="first day that is not meant any more",
    )


def period(options: dict[str, Any]) -> tuple[datetime, datetime]:
    """The period of `add_period`; raises `CommandError` where it is none."""
    since, until = options["since"], options["until"]
    if since >= until:
        raise CommandError(
            f"The period from {since.isoformat()} to {until.isoformat()} is none: --from comes before --to."
        )
    return since, until


def add_booking(parser: CommandParser) -> None:
    """Who gets or gives how much credit, and why."""
    parser.add_argument("--organization", required=True, type=text(200), metavar="NAME", help="whose credit")
    parser.add_argument("--usd", required=True, type=usd, metavar="AMOUNT", help="US dollars, such as 10.00")
    parser.add_argument(
        "--reason", required=True, type=text(500), metavar="TEXT", help="why; it is kept in the ledger"
    )
    parser.add_argument(
        "--by", default="manage.py", type=text(150), metavar="NAME", help="who books it (default: manage.py)"
    )
    parser.add_argument(
        "--reference",
        default="",
        type=text(128),
        metavar="ID",
        help="such as a payment's id: what has it is booked once, however often it is asked for",
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
