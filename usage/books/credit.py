"""Prepaid credit: grants, refunds and the balance.

The balance is all grants, minus refunds, minus all that the organization has spent. Where credit is required,
`budgets.hold` admits no request that the balance, less the holds of running requests, does not cover.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from django.db import IntegrityError, transaction

from accounts.audit import recorder
from accounts.models import Organization
from usage import pricing
from usage.books import budgets, outbox
from usage.database.clock import database_now, local_day
from usage.database.sql import fetch_all
from usage.errors import NotBooked
from usage.formatting import usd
from usage.models import OWED_SIGNS, Budget, Credit, Kind, LedgerEntry


@dataclass(frozen=True, slots=True)
class Note:
    """The reason and the author of a booking. A `reference`, such as a payment's id, is booked only once."""

    reason: str
    recorded_by: str
    reference: str = ""


class Booking(NamedTuple):
    """A grant, refund or correction in the ledger; `is_new` is False if its reference was booked before."""

    entry: LedgerEntry
    is_new: bool


@dataclass(frozen=True, slots=True)
class Balance:
    """An organization's credit and spending; if it `is_required`, requests beyond it are refused."""

    is_required: bool
    credited_nanodollars: int
    spent_nanodollars: int
    held_nanodollars: int

    @property
    def nanodollars(self) -> int:
        """Return the balance without holds; negative if credit is not required and more was spent."""
        return self.credited_nanodollars - self.spent_nanodollars

    @property
    def available_nanodollars(self) -> int:
        return self.nanodollars - self.held_nanodollars


def grant(organization: Organization, nanodollars: int, note: Note) -> Booking:
    """Add credit; raises `NotBooked`."""
    return _book(organization, Kind.GRANT, nanodollars, note)


def refund(organization: Organization, nanodollars: int, note: Note) -> Booking:
    """Take back unused credit; raises `NotBooked` if the amount exceeds the available credit."""
    return _book(organization, Kind.REFUND, nanodollars, note)


def reclaim(organization: Organization, nanodollars: int, note: Note) -> Booking:
    """Take back credit whose payment was given back, also if it is spent: then the balance is negative.

    Raises `NotBooked` if the amount exceeds all credit that was ever granted and not taken back.
    """
    return _book(organization, Kind.REFUND, nanodollars, note, is_spendable=False)


def require(organization: Organization, is_required: bool = True) -> None:
    """Refuse from now on requests that the balance does not cover, or stop refusing them."""
    Credit.objects.update_or_create(organization=organization, defaults={"is_required": is_required})


def set_low(organization: Organization, nanodollars: int | None) -> None:
    """Set the balance below which an event says that credit is low; None: a tenth of the last grant."""
    recorder.update(Credit.objects.filter(organization=organization), low_credit_nanodollars=nanodollars)


def balance(organization: Organization) -> Balance:
    """Return the balance; an organization without credit or spending has no rows of them."""
    found = fetch_all(
        """SELECT c.is_required, c.credited_nanodollars, b.posted_nanodollars, b.pending_nanodollars
        FROM accounts_organization AS o LEFT JOIN usage_credit AS c ON c.organization_id = o.id
        LEFT JOIN usage_budget AS b ON b.id = %s WHERE o.id = %s""",
        [Credit(organization=organization).budget_id, organization.pk],
    )
    is_required, *amounts = found[0]
    return Balance(bool(is_required), *(amount or 0 for amount in amounts))


def describe(entry: LedgerEntry) -> str:
    """Return the entry in words. Credit is shown as positive, though the ledger has what is owed."""
    amount = OWED_SIGNS.get(entry.kind, 1) * entry.amount_nanodollars
    subject = entry.request_id or entry.organization
    return f"ledger entry {entry.pk}, a {entry.kind} of {usd(amount)} for {subject}"


@contextmanager
def booking(note: Note) -> Iterator[None]:
    """Run the block in a transaction; raises `NotBooked` if its reference is booked meanwhile."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        # Two bookings of one reference that lock different rows happened at the same time.
        raise NotBooked(f"The reference {note.reference!r} is booked already.") from error


def earlier_booking(note: Note, **columns: object) -> Booking | None:
    """Return the booking with the note's reference, if there is one.

    Raises `NotBooked` if it has other columns than these: a reference that was used for something else is a
    mistake of the caller, and silence would hide it.
    """
    known = LedgerEntry.objects.filter(reference=note.reference).first() if note.reference else None
    if known is None:
        return None
    if any(getattr(known, name) != value for name, value in columns.items()):
        raise NotBooked(f"The reference {note.reference!r} belongs to something else: {describe(known)}.")
    return Booking(known, is_new=False)


def _book(
    organization: Organization, kind: Kind, nanodollars: int, note: Note, *, is_spendable: bool = True
) -> Booking:
    if nanodollars <= 0:
        raise NotBooked(f"The amount of a {kind} must be positive.")
    if not note.reason.strip():
        raise NotBooked(f"A {kind} needs a reason.")
    with booking(note):
        return _book_once(organization, kind, nanodollars, note, is_spendable)


def _book_once(
    organization: Organization, kind: Kind, nanodollars: int, note: Note, is_spendable: bool
) -> Booking:
    # The lock on this row makes bookings of one organization run one after the other, so that the look for
    # a known reference and the balance below hold until the commit. It must exist to be locked.
    Credit.objects.get_or_create(organization=organization)
    credit = Credit.objects.select_for_update().get(organization=organization)
    owed = OWED_SIGNS[kind] * nanodollars
    known = earlier_booking(note, organization_id=organization.pk, kind=kind, amount_nanodollars=owed)
    if known is not None:
        return known
    if owed > 0:
        # Requests that are being admitted wait for the budget's lock, and then see the lower credit.
        budgets.ensure([credit.budget_id])
        Budget.objects.select_for_update().get(id=credit.budget_id)
        found = balance(organization)
        available = found.available_nanodollars if is_spendable else found.credited_nanodollars
        if nanodollars > available:
            which = "unused" if is_spendable else "there"
            raise NotBooked(f"Only ${pricing.to_usd(max(available, 0))} of the credit is {which}.")
    credit.credited_nanodollars -= owed
    if owed < 0:
        credit.last_grant_nanodollars = nanodollars
    outbox.credited(database_now(), organization.pk, credit.credited_nanodollars)
    # Only these columns: `is_required` may be changed by a request that holds no lock.
    credit.save(update_fields=["credited_nanodollars", "last_grant_nanodollars"])
    return Booking(_entry(organization, kind, owed, note), is_new=True)


def _entry(organization: Organization, kind: Kind, owed_nanodollars: int, note: Note) -> LedgerEntry:
    now = database_now()
    return LedgerEntry.objects.create(
        kind=kind,
        organization=organization,
        # Credit is in no daily budget, but each entry has a day for exports.
        budget_day=local_day(now, organization.time_zone),
        created_at=now,
        amount_nanodollars=owed_nanodollars,
        reason=note.reason,
        recorded_by=note.recorded_by,
        reference=note.reference,
    )
