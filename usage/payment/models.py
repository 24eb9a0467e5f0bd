"""Payments, organizations whose usage Stripe bills, and the outbox of their usage."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from accounts.models import Organization


class State(models.TextChoices):
    """State of a payment."""

    OPEN = "open"
    PAID = "paid"
    EXPIRED = "expired"
    REFUSED = "refused", "not what was asked for"


class Payment(models.Model):
    """A top-up: written before the person is sent to Stripe, so that nobody else chooses owner and amount.

    Stripe gets the id. It is random, because a restored database would give numbers again.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    amount_cents = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=State.choices, default=State.OPEN)
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())
    session_id = models.CharField(max_length=255, blank=True, help_text="Stripe's Checkout Session.")
    payment_intent = models.CharField(max_length=255, blank=True)
    receipt_url = models.CharField(max_length=1000, blank=True)
    returned_cents = models.PositiveIntegerField(default=0, help_text="Refunded or disputed at Stripe.")
    # What the ledger has of it, and in how many entries, whose references they number.
    booked_cents = models.PositiveIntegerField(default=0)
    bookings_count = models.PositiveIntegerField(default=0)
    look_at = models.DateTimeField(null=True, help_text="When Stripe is asked next; null: not again.")
    looks_count = models.PositiveIntegerField(
        default=0,
        help_text="The number of looks; an answer of Stripe is booked only if no later look has begun.",
    )

    class Meta:
        indexes = [
            models.Index(fields=["organization", "-created_at"], name="payments_of_an_organization"),
            models.Index(fields=["look_at"], condition=Q(look_at__isnull=False), name="payments_to_look_at"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["session_id"], condition=~Q(session_id=""), name="one_payment_per_session"
            ),
            models.UniqueConstraint(
                fields=["payment_intent"], condition=~Q(payment_intent=""), name="one_payment_per_intent"
            ),
            models.CheckConstraint(
                condition=Q(booked_cents__lte=models.F("amount_cents")), name="booked_at_most_once"
            ),
        ]

    def __str__(self) -> str:
        return f"${self.amount_cents / 100:.2f} of {self.organization}"


class StripeCustomer(models.Model):
    """An organization whose usage is reported to Stripe, which bills it."""

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, related_name="+", primary_key=True
    )
    customer_id = models.CharField(max_length=60, unique=True)
    billed_from = models.DateTimeField(help_text="The first hour that is reported.")
    reported_until = models.DateTimeField(help_text="All hours before it are in the outbox.")
    reported_nanodollars = models.BigIntegerField(default=0, help_text="The sum of the outbox.")

    def __str__(self) -> str:
        return f"{self.customer_id} of {self.organization}"


class MeterEvent(models.Model):
    """The difference between an hour's usage and what was reported of it before: sent until Stripe has it.

    The sum of an organization's `value` is its sum of nanodollars in whole units, rounded down once.
    """

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    customer_id = models.CharField(max_length=60)
    meter = models.CharField(max_length=30, help_text="The meter's event name.")
    hour = models.DateTimeField()
    revision = models.PositiveIntegerField()
    # No two events of an organization have the same minute, so that a minute's sum at Stripe says whether one
    # event is there.
    stamped_at = models.DateTimeField(help_text="The event's time at Stripe, a full minute.")
    amount_nanodollars = models.BigIntegerField()
    value = models.BigIntegerField(help_text="In the meter's unit.")
    due_at = models.DateTimeField(null=True, help_text="When it is sent next; null: Stripe has it.")
    tries = models.PositiveIntegerField(default=0)
    # Since when Stripe may have it. Null: since its hour, because the database may be a restored one.
    first_tried_at = models.DateTimeField(null=True)
    last_tried_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        indexes = [models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="events_to_send")]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "hour", "revision"], name="one_event_per_hour_and_revision"
            ),
            models.UniqueConstraint(fields=["organization", "stamped_at"], name="one_event_per_minute"),
        ]

    def __str__(self) -> str:
        return self.identifier

    @property
    def identifier(self) -> str:
        """Return the name by which Stripe knows repetitions.

        The customer stands for the organization, whose number another installation may have, too.
        """
        return f"{self.customer_id}:{self.meter}:{self.hour:%Y-%m-%dT%H}:{self.revision}"
