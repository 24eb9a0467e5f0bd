"""Bookings of the credit commands: ledger entry and audit entry in one transaction."""

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from accounts.audit import recorder
from accounts.audit.changes import Changes
from accounts.models import Organization
from usage.books import credit
from usage.books.credit import Balance, Booking, Note
from usage.errors import NotBooked
from usage.management import arguments
from usage.models import Credit


def book(
    verb: str, how: Callable[[Organization, int, Note], Booking], options: dict[str, Any]
) -> tuple[Booking, Balance]:
    """Book the options of `arguments.add_booking`, and require credit if they say so. Return the new balance
    too.

    A reference that was booked before is neither booked nor recorded again. Raises `CommandError`.
    """
    organization = arguments.organization(options["organization"])
    with transaction.atomic():
        try:
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
            recorder.record(verb, Credit.objects.get(pk=organization.pk), moved, booking.entry.reason)
        if options.get("require"):
            credit.require(organization)
    return booking, after
