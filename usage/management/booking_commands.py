"""Bookings of the credit commands: ledger entry and audit entry in one transaction."""

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from accounts.audit import recorder
from accounts.audit.changes import Changes
from accounts.audit.commands import acting_command
from accounts.models import Organization
from usage.books import credit
from usage.books.credit import Booking, Note
from usage.errors import NotBooked
from usage.formatting import usd
from usage.management import arguments
from usage.models import Credit
from usage.payment import metered_usage


def book(
    command: str, verb: str, how: Callable[[Organization, int, Note], Booking], options: dict[str, Any]
) -> str:
    """Book the options of `arguments.add_booking`, and require credit if they say so; return a report.

    A reference that was booked before is neither booked nor recorded again. Raises `CommandError`.
    """
    organization = arguments.organization(options["organization"])
    with acting_command(command, options["by"]), transaction.atomic():
        try:
            if options.get("require"):
                metered_usage.refuse_billed(organization)
            booking = how(organization, options["usd"], arguments.note(options))
        except NotBooked as error:
            raise CommandError(str(error)) from error
        after = credit.balance(organization)
        if booking.is_new:
            # Computed, because a balance read before the row's lock may miss another booking. Grants are
            # negative in the ledger.
            before_nanodollars = after.nanodollars + booking.entry.amount_nanodollars
            moved: Changes = {
                "balance_nanodollars": [before_nanodollars, after.nanodollars],
                "ledger_entry": [None, booking.entry.pk],
            }
            recorder.record(
                f"{verb} credit", Credit.objects.get(pk=organization.pk), moved, booking.entry.reason
            )
        if options.get("require"):
            credit.require(organization)
    entry = booking.entry
    outcome = f"Already booked as ledger entry {entry.pk}:"
    if booking.is_new:
        outcome = f"{verb.capitalize()} {usd(abs(entry.amount_nanodollars))} to"
    return f"{outcome} {entry.organization}, whose balance is {usd(after.nanodollars)}."
