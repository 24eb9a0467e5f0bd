"""Top-ups: begun here, paid at Stripe, and booked as Stripe says.

1. `begin` writes the payment and makes a Checkout Session.
2. `claim` chooses payments whose state at Stripe is to be looked at: a webhook came, or it is time.
3. `book` makes the ledger agree with what Stripe says: paid, less what was refunded or is disputed.

A webhook books nothing by itself, so it may come twice, late, in any order or never. Of two looks, only the
later one is booked, and each in one transaction with its ledger entry.
"""

import logging
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import F

from accounts.audit import recorder
from accounts.audit.changes import Changes
from accounts.audit.recorder import Actor
from accounts.models import Organization
from usage.books import credit
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.errors import NotBooked
from usage.failpoints import failpoint
from usage.models import Credit
from usage.payment import stripe_api
from usage.payment.metered_usage import refuse_billed
from usage.payment.models import Payment, State
from usage.payment.stripe_api import CURRENCY, PaymentState

LEAST_CENTS, MOST_CENTS = 500, 500_000
PRESETS_CENTS = (1_000, 2_000, 5_000, 10_000)
NANODOLLARS_PER_CENT = 10_000_000
# Of an organization, in the time for which a session is open.
MAX_OPEN = 20
BATCH = 20
# How long a process may take for a look; then another one takes the payment.
LEASE = timedelta(minutes=1)
FIRST_LOOK = timedelta(seconds=30)
# A quarter of the payment's age passes between two looks, within these limits: a lost webhook delays by that.
OPEN_PAUSES = (timedelta(seconds=30), timedelta(hours=6))
PAID_PAUSES = (timedelta(minutes=10), timedelta(days=7))
# Later refunds and disputes are found by their webhooks only.
WATCHED_FOR = timedelta(days=400)
AFTER_A_REFUSAL = timedelta(hours=6)

log = logging.getLogger(__name__)


class Claimed(NamedTuple):
    """A payment that this process is to look at, until `until`."""

    id: UUID
    session_id: str
    fence: int
    until: datetime


def begin(organization: Organization, amount_cents: int, by: str, return_url: str) -> str:
    """Begin a payment and return the URL at which to pay; Stripe sends the person back to `return_url`.

    Raises `NotBooked` if too many are open or Stripe bills the organization's usage, `StripeUnavailable` or
    `StripeRefused`.
    """
    now = database_now()
    with transaction.atomic():
        refuse_billed(organization)
        lately = Payment.objects.filter(organization=organization, created_at__gt=now - stripe_api.OPEN_FOR)
        # One without a session began while Stripe was away: nobody can finish it.
        if lately.filter(state=State.OPEN).exclude(session_id="").count() >= MAX_OPEN:
            raise NotBooked(f"{MAX_OPEN} payments are open. Finish one of them, or try again in an hour.")
        payment = Payment.objects.create(
            organization=organization, amount_cents=amount_cents, requested_by=by[:150], created_at=now
        )
    failpoint("payment.after_row")
    checkout = stripe_api.begin_checkout(payment, return_url)
    failpoint("payment.after_session")
    Payment.objects.filter(pk=payment.pk).update(session_id=checkout.session_id, look_at=now + FIRST_LOOK)
    return checkout.url


def claim(most: int = BATCH) -> list[Claimed]:
    """Claim up to `most` payments that are due to be looked at."""
    now = database_now()
    until = now + LEASE
    due = Payment.objects.filter(look_at__lte=now).exclude(session_id="").order_by("look_at")
    claimed = []
    for payment_id, session_id, count in due.values_list("pk", "session_id", "looks_count")[:most]:
        same = Payment.objects.filter(pk=payment_id, looks_count=count)
        if same.update(looks_count=count + 1, look_at=until):
            claimed.append(Claimed(payment_id, session_id, count + 1, until))
    return claimed


def look_now(payment: Payment) -> None:
    """Have the payment looked at as soon as a reaper has time."""
    Payment.objects.filter(pk=payment.pk).exclude(session_id="").update(look_at=database_now())


def postpone(claimed: Claimed) -> None:
    """Look again later at a payment that Stripe does not know."""
    same = Payment.objects.filter(pk=claimed.id, looks_count=claimed.fence, look_at=claimed.until)
    same.update(look_at=F("look_at") + AFTER_A_REFUSAL)


def book(claimed: Claimed, found: PaymentState) -> None:
    """Make state and ledger agree with what Stripe says."""
    failpoint("payment.before_tx")
    with transaction.atomic():
        payment = Payment.objects.select_for_update().get(pk=claimed.id)
        if payment.looks_count != claimed.fence:
            return
        asked = (str(payment.pk), CURRENCY, payment.amount_cents)
        if (found.reference, found.currency, found.amount_cents) != asked:
            log.error("%s is not booked: Stripe says %s, %s, %s", payment.pk, *found[:3])
            payment.state = State.REFUSED
        elif found.is_paid:
            _book_paid(payment, found)
        elif found.is_over:
            payment.state = State.EXPIRED
        # A webhook may have come since: then another look is due.
        if payment.look_at == claimed.until:
            payment.look_at = _next_look(payment, database_now())
        payment.save()
        failpoint("payment.in_tx")
    failpoint("payment.after_commit")


def _book_paid(payment: Payment, found: PaymentState) -> None:
    payment.state = State.PAID
    payment.payment_intent = found.payment_intent
    payment.receipt_url = found.receipt_url if found.receipt_url.startswith("https://") else ""
    payment.returned_cents = found.returned_cents
    right_cents = max(payment.amount_cents - found.returned_cents, 0)
    missing_cents = right_cents - payment.booked_cents
    if not missing_cents:
        return
    number = payment.bookings_count + 1
    reason = "Paid by Stripe" if missing_cents > 0 else "Refunded or disputed at Stripe"
    reference = f"{found.payment_intent}/{number}" if number > 1 else found.payment_intent
    note = Note(f"{reason}: {found.payment_intent}", recorded_by="Stripe", reference=reference)
    how = credit.grant if missing_cents > 0 else credit.reclaim
    try:
        booking = how(payment.organization, abs(missing_cents) * NANODOLLARS_PER_CENT, note)
    except NotBooked as error:
        log.error("%s of the payment %s is not booked: %s", reason, payment.pk, error)
        return
    # Otherwise an operator has booked it by hand, under Stripe's reference.
    if booking.is_new:
        moved: Changes = {"ledger_entry": [None, booking.entry.pk]}
        verb = "granted credit" if missing_cents > 0 else "took back credit"
        credit_row = Credit.objects.get(pk=payment.organization_id)
        recorder.write(Actor(None, "Stripe"), verb, credit_row, moved, reason)
    payment.booked_cents, payment.bookings_count = right_cents, number


def _next_look(payment: Payment, now: datetime) -> datetime | None:
    age = now - payment.created_at
    if payment.state in (State.EXPIRED, State.REFUSED) or age > WATCHED_FOR:
        return None
    shortest, longest = PAID_PAUSES if payment.state == State.PAID else OPEN_PAUSES
    return now + min(max(age / 4, shortest), longest)
