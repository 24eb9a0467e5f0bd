"""Arguments that several commands share."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from accounts.audit.commands import NOBODY
from accounts.models import Organization
from usage import pricing
from usage.books.credit import Note


def moment(text: str) -> datetime:
    """Parse an ISO 8601 date or time into UTC; without a time zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
        # Overflows before the year 1 and after 9999.
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r} is not a date such as 2026-11-01 or a time such as 2026-11-01T06:00:00Z"
        ) from None


def day(text: str) -> datetime:
    """Parse a day, and return its start in UTC."""
    with suppress(ArgumentTypeError):
        if (found := moment(text)).time() == time.min:
            return found
    raise ArgumentTypeError(
        f"{text!r} is not the start of a day in UTC, such as 2026-11-01: bills are compared by whole days"
    )


def text(max_chars: int) -> Callable[[str], str]:
    """Return a parser for texts that fit their column in every database."""

    def checked(value: str) -> str:
        if len(value) > max_chars:
            raise ArgumentTypeError(
                f"{value[:20]!r}… has {len(value)} characters; at most {max_chars} are stored"
            )
        # Python decodes bad bytes of the command line as half surrogates, and PostgreSQL stores no NUL.
        if (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)) or "\0" in value:
            raise ArgumentTypeError(f"{value!r} is not UTF-8 text")
        return value

    return checked


def folder(max_chars: int) -> Callable[[str], Path]:
    """Return a parser for folders, as absolute paths that fit their column."""

    def checked(value: str) -> Path:
        return Path(text(max_chars)(str(Path(value).absolute())))

    return checked


def digest(text: str) -> str:
    """Parse a printed SHA-256 digest, in either case."""
    if len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef"):
        raise ArgumentTypeError(f"{text[:70]!r} is not a digest, which has 64 hexadecimal digits")
    return text.lower()


def positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def usd(text: str) -> int:
    """Parse US dollars into nanodollars."""
    try:
        return pricing.from_usd(text.removeprefix("$"))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def add_period(parser: CommandParser) -> None:
    """Add `--from` and `--to`, a period whose end is not included."""
    start, end = "start of the period; a date means its start in UTC", "end of the period, not included"
    _add_ends(parser, start, end, type=moment, metavar="TIME")


def add_days(parser: CommandParser) -> None:
    """Add `--from` and `--to` as days in UTC; the last one is not included."""
    _add_ends(parser, "first day, in UTC", "day after the last one", type=day, metavar="DAY")


def _add_ends(parser: CommandParser, start: str, end: str, **options: Any) -> None:
    parser.add_argument("--from", dest="since", required=True, help=start, **options)
    parser.add_argument("--to", dest="until", required=True, help=end, **options)


def period(options: dict[str, Any]) -> tuple[datetime, datetime]:
    """Return the period of `add_period`; raises `CommandError` if it is empty."""
    since, until = options["since"], options["until"]
    if since >= until:
        raise CommandError(
            f"The period from {since.isoformat()} to {until.isoformat()} is empty: --from must be before "
            "--to."
        )
    return since, until


def add_by(parser: CommandParser, purpose: str) -> None:
    """Add `--by`, the name of the person who calls the command."""
    named = f"{purpose} (default: {NOBODY})"
    parser.add_argument("--by", default=NOBODY, type=text(150), metavar="NAME", help=named)


def add_booking(parser: CommandParser) -> None:
    parser.add_argument(
        "--organization", required=True, type=text(200), metavar="NAME", help="the organization"
    )
    parser.add_argument("--usd", required=True, type=usd, metavar="AMOUNT", help="US dollars, such as 10.00")
    parser.add_argument(
        "--reason", required=True, type=text(500), metavar="TEXT", help="why; written to the ledger"
    )
    add_by(parser, "the person who books it")
    parser.add_argument(
        "--reference",
        default="",
        type=text(128),
        metavar="ID",
        help="such as a payment's id: an entry with this reference is booked only once",
    )


def note(options: dict[str, str]) -> Note:
    return Note(options["reason"], options["by"], options["reference"])


def organization(name: str) -> Organization:
    """Return the organization; raises `CommandError` if it does not exist."""
    found = Organization.objects.filter(name=name).first()
    if found is None:
        raise CommandError(f"There is no organization {name!r}.")
    return found
