"""Checks whether the usage that Stripe bills is written down and sent."""

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Q
from django.template.defaultfilters import pluralize

from chatapi.doctor.finding import Finding, ok, wrong
from usage.database.clock import database_now
from usage.payment.models import MeterEvent, StripeCustomer

# An hour is reported soon after its end, and what fails is tried again once an hour or more often.
LATE = timedelta(hours=3)


def check_reported_usage() -> Iterator[Finding]:
    """Yield which usage is not written down for Stripe, or not sent; nothing if Stripe bills none."""
    before, is_right = database_now() - LATE, True
    behind = StripeCustomer.objects.filter(reported_until__lt=before)
    if first := behind.select_related("organization").order_by("reported_until").first():
        is_right, others = False, behind.count() - 1
        since = f"{first.reported_until:%Y-%m-%d %H:%M} UTC"
        yield wrong(
            "payment",
            f"The usage of {first.organization} since {since} is not written down for Stripe"
            f"{f', nor that of {others} more' if others else ''}.",
            "Set CHATAPI_STRIPE_METER and Stripe's other variables for the reapers, and start one.",
        )
    has_failed = Q(hour__lt=before, due_at__isnull=False) & ~Q(error="")
    waiting = MeterEvent.objects.filter(Q(due_at__lt=before) | has_failed).order_by("hour")
    if oldest := waiting.first():
        is_right = False
        error = waiting.exclude(error="").values_list("error", flat=True).first()
        yield wrong(
            "payment",
            f"Usage since {oldest.hour:%Y-%m-%d %H:%M} UTC waits for Stripe (reports: {waiting.count()}): "
            f"{error.rstrip('.') if error else 'no reaper sends them'}.",
            "Set Stripe's variables for the reapers, start one, and correct what Stripe says.",
        )
    if is_right and (customers := StripeCustomer.objects.count()):
        yield ok(
            "payment", f"The usage of {customers} organization{pluralize(customers)} is reported to Stripe."
        )
