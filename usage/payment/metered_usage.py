"""The outbox of usage: for each organization that Stripe bills, a row for what an hour adds to its sum there.

An hour is reported a few minutes after its end. If its sum in the ledger changes later, the next revision
has the difference. Rows, their running sum and the mark up to which hours are reported are written in one
transaction, so a process that dies leaves all or nothing.

Stripe takes whole numbers only. The unit is a millionth of a dollar, and an event's value is the running sum
after it less the running sum before it, both rounded down: so all values together are the ledger's sum,
rounded down once.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import date, datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, Sum

from accounts.models import Organization
from usage.books import credit
from usage.database.clock import database_now, hour_of
from usage.errors import NotBooked
from usage.failpoints import failpoint
from usage.formatting import usd
from usage.models import Credit, DailyTotals, Dimension, HourlyUsage
from usage.payment import stripe_api
from usage.payment.models import MeterEvent, Payment, State, StripeCustomer
from usage.rollups import closed_days

UNIT_NANODOLLARS = 1_000
HOUR = timedelta(hours=1)
# Stripe's documentation leaves open whether a minute's sum has the first second of the next minute.
BETWEEN_EVENTS = timedelta(minutes=2)
# An entry carries the time at which its transaction began, and transactions end within seconds.
GRACE = timedelta(minutes=5)
# With each new hour, the hours of the last day are compared with what was reported; once a day, the last 30
# days.
RECENT, WINDOW = timedelta(days=1), timedelta(days=30)
# Hours that one transaction reports first.
MOST_HOURS = 1_000


@transaction.atomic
def bill(organization: Organization, customer_id: str) -> StripeCustomer:
    """Report the organization's usage from this hour on. If its customer changes, hours that are not reported
    yet go to the new one.

    Raises `NotBooked` if the organization pays in advance or has credit left, or if the customer is another
    organization's, or was in an hour that is not reported yet.
    """
    _lock(organization)
    if Credit.objects.filter(organization=organization, is_required=True).exists():
        raise NotBooked(f"{organization} is prepaid only: it would pay twice.")
    if StripeCustomer.objects.filter(customer_id=customer_id).exclude(organization=organization).exists():
        raise NotBooked(f"The customer {customer_id} is another organization's.")
    hour = hour_of(database_now())
    known = StripeCustomer.objects.select_for_update().filter(organization=organization).first()
    if known is None:
        _refuse_prepaid(organization)
    since = min(hour, known.reported_until) if known else hour
    # Stripe would take this organization's event of an hour for a repetition of the other one's.
    events = MeterEvent.objects.filter(customer_id=customer_id, hour__gte=since)
    if events.exclude(organization=organization).exists():
        raise NotBooked(
            f"{customer_id} was another organization's in an hour that {organization} has not reported yet: "
            f"try again after {hour + HOUR + GRACE:%H:%M} UTC."
        )
    customer, _ = StripeCustomer.objects.update_or_create(
        organization=organization,
        defaults={"customer_id": customer_id},
        create_defaults={"customer_id": customer_id, "billed_from": hour, "reported_until": hour},
    )
    return customer


def _refuse_prepaid(organization: Organization) -> None:
    """Raise `NotBooked` if the organization has credit left, or may still pay for some."""
    now = database_now()
    # A payment without a session never got a URL to pay at; after `OPEN_FOR` its request to Stripe has ended,
    # too.
    is_over = Q(session_id="", created_at__lte=now - stripe_api.OPEN_FOR)
    is_over |= Q(created_at__lte=now - stripe_api.PENDING_FOR)
    if Payment.objects.filter(organization=organization, state=State.OPEN).exclude(is_over).exists():
        raise NotBooked(f"A payment of {organization} is open: try again when it is paid or has ended.")
    # After the payments: one that is booked in between is in the balance then.
    left = credit.balance(organization).nanodollars
    if left > 0:
        raise NotBooked(
            f"{organization} has {usd(left)} of credit left and would pay twice: give it back first, "
            "as docs/payment.md says."
        )


@transaction.atomic
def end(organization: Organization) -> None:
    """Report the organization's usage up to now, and no more.

    Raises `NotBooked` if Stripe does not bill it.
    """
    customer = StripeCustomer.objects.select_for_update().filter(organization=organization).first()
    if customer is None:
        raise NotBooked(f"{organization} has no customer at Stripe.")
    _write(customer, hour_of(database_now()) + HOUR)
    customer.delete()


def refuse_billed(organization: Organization) -> None:
    """Raise `NotBooked` if Stripe bills the organization's usage; in a transaction, which keeps it so."""
    _lock(organization)
    if is_billed(organization):
        raise NotBooked(f"Stripe bills the usage of {organization}: if it were prepaid, it would pay twice.")


def is_billed(organization: Organization) -> bool:
    """Return whether Stripe bills the organization's usage, so that it pays nothing in advance."""
    return StripeCustomer.objects.filter(organization=organization).exists()


def _lock(organization: Organization) -> None:
    """Let one transaction at a time decide how the organization pays."""
    Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)


def waiting(most: int, others: Collection[int] = ()) -> list[int]:
    """Return up to `most` organizations with hours to report and without these others, those that wait the
    longest first.
    """
    rows = StripeCustomer.objects.filter(reported_until__lt=_over_until()).order_by("reported_until")
    return list(rows.exclude(organization__in=others).values_list("organization_id", flat=True)[:most])


@transaction.atomic
def write(organization_id: int) -> None:
    """Report the hours of the organization that are over."""
    until = _over_until()
    rows = StripeCustomer.objects.filter(organization=organization_id, reported_until__lt=until)
    # Another process may have reported them meanwhile: then the lock waits, and nothing is left to report.
    if (customer := rows.select_for_update().first()) is not None:
        _write(customer, min(until, customer.reported_until + MOST_HOURS * HOUR))
        failpoint("meter.in_tx")


def _over_until() -> datetime:
    """Return the end of the hours that are over, and get no more entries."""
    return hour_of(database_now() - GRACE)


def _write(customer: StripeCustomer, until: datetime) -> None:
    """Write the events of all hours before `until` that differ."""
    is_new_day = customer.reported_until.date() != until.date()
    since = min(customer.reported_until, until - (WINDOW if is_new_day else RECENT))
    since = max(since, customer.billed_from)
    minutes = FreeMinutes(customer.organization_id, since)
    for hour, revision, nanodollars in list(_differences(customer, since, until)):
        total = customer.reported_nanodollars + nanodollars
        value = total // UNIT_NANODOLLARS - customer.reported_nanodollars // UNIT_NANODOLLARS
        MeterEvent.objects.create(
            organization_id=customer.organization_id,
            customer_id=customer.customer_id,
            meter=settings.STRIPE_METER,
            hour=hour,
            revision=revision,
            stamped_at=minutes.take(hour),
            amount_nanodollars=nanodollars,
            value=value,
            due_at=database_now() if value else None,
        )
        customer.reported_nanodollars = total
    customer.reported_until = until
    customer.save(update_fields=["reported_until", "reported_nanodollars"])


def _differences(
    customer: StripeCustomer, since: datetime, until: datetime
) -> Iterator[tuple[datetime, int, int]]:
    """Yield the hours whose sum is not what was reported: hour, next revision, and what is missing."""
    mine = {"organization": customer.organization_id}
    events = MeterEvent.objects.filter(**mine, hour__gte=since, hour__lt=until).order_by().values_list("hour")
    reported = {
        hour: (count, nanodollars)
        for hour, count, nanodollars in events.annotate(Count("pk"), Sum("amount_nanodollars"))
    }
    for start, end in _spans_to_compare(customer, since, until, reported):
        usage = HourlyUsage.objects.filter(**mine, hour__gte=start, hour__lt=end).order_by()
        sums = dict(usage.values_list("hour").annotate(Sum("amount_nanodollars")))
        for hour in sorted(sums.keys() | {hour for hour in reported if start <= hour < end}):
            count, before = reported.get(hour, (0, 0))
            if missing := sums.get(hour, 0) - before:
                yield hour, count + 1, missing


def _spans_to_compare(
    customer: StripeCustomer, since: datetime, until: datetime, reported: Mapping[datetime, tuple[int, int]]
) -> list[tuple[datetime, datetime]]:
    """Return the spans whose hours may differ from what was reported. A closed day whose sum does not is left
    out: with thousands of keys, its hours are too many rows to be read each day.
    """
    by_day: Counter[date] = Counter()
    for hour, (_, nanodollars) in reported.items():
        by_day[hour.date()] += nanodollars
    of_it = DailyTotals.objects.filter(dimension=Dimension.ORGANIZATION, member=str(customer.organization_id))
    spans = closed_days.spans(since, until)
    found = list(spans.open)
    for first, last in spans.closed:
        totals = of_it.filter(day__gte=first, day__lt=last)
        sums = dict(totals.values_list("day", "amount_nanodollars"))
        days = sums.keys() | {day for day in by_day if first <= day < last}
        found += [
            (closed_days.midnight(day), closed_days.midnight(day + closed_days.DAY))
            for day in days
            if sums.get(day, 0) != by_day[day]
        ]
    return sorted(found)


class FreeMinutes:
    """The minutes that no event of the organization has yet."""

    def __init__(self, organization_id: int, since: datetime) -> None:
        events = MeterEvent.objects.filter(organization=organization_id, stamped_at__gte=since)
        self._taken = set(events.values_list("stamped_at", flat=True))

    def take(self, since: datetime) -> datetime:
        """Return the first free minute of `since`, an hour, or after it, which is taken then."""
        while since in self._taken:
            since += BETWEEN_EVENTS
        self._taken.add(since)
        return since
