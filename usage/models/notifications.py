"""The outbox of events, each written once, of which people and systems get messages."""

from collections.abc import Mapping
from uuid import uuid4

from django.db import models
from django.db.models import Q

from accounts.models import Organization
from usage.models.budget_keys import Period


class EventKind(models.TextChoices):
    """The kinds of events, as webhooks and filters name them."""

    BUDGET = "budget.reached", "Budget reached"
    CREDIT = "credit.low", "Low credit"
    KEY = "key.expiring", "Key expires"
    SPEND = "spend.unusual", "Unusual spend"
    ALERT = "spend.alert", "Spend alert"
    FAILURES = "failures.rising", "Rising failures"
    MODEL = "model.down", "Model down"
    MODEL_UP = "model.up", "Model up again"
    DEPLOYMENT = "deployment.down", "Deployment down"
    DEPLOYMENT_UP = "deployment.up", "Deployment up again"
    LEDGER = "ledger_check.failed", "Ledger check failed"
    STATEMENT = "statement.failed", "Statement not issued"
    TEST = "webhook.test", "Test of a webhook"


# The kind that ends each of those that last.
ENDS: Mapping[str, EventKind] = {
    EventKind.MODEL: EventKind.MODEL_UP,
    EventKind.DEPLOYMENT: EventKind.DEPLOYMENT_UP,
}
OUTAGES_KINDS = (*ENDS, *ENDS.values())
# The kinds of the service: its operators get them, organizations do not.
OPERATORS_KINDS = (
    EventKind.DEPLOYMENT, EventKind.DEPLOYMENT_UP, EventKind.LEDGER, EventKind.STATEMENT,
)  # fmt: skip
TENANTS_KINDS = (
    EventKind.BUDGET, EventKind.CREDIT, EventKind.KEY, EventKind.SPEND, EventKind.FAILURES, EventKind.MODEL,
    EventKind.MODEL_UP, EventKind.ALERT,
)  # fmt: skip
# Of these, members choose whether they get mail; that of a spend alert goes to the members whom it names.
CHOSEN_KINDS = tuple(kind for kind in TENANTS_KINDS if kind != EventKind.ALERT)


MAX_SUBJECT_CHARS = 200
# The others stay: without its event, a threshold of a period without an end would be reached anew.
WITH_AN_END = ~Q(period=Period.EVER) & ~Q(kind=EventKind.CREDIT)
# The newest event of each outage, and older ones that an older release has followed.
NEWEST_OF_OUTAGE = Q(kind__in=sorted(OUTAGES_KINDS), followed_at__isnull=True)


class Event(models.Model):
    """A threshold that was crossed, or something that was found: one row per threshold and period.

    It is written in the transaction that crosses the threshold, and delivered afterwards.
    """

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    organization = models.ForeignKey(
        Organization, null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    kind = models.CharField(max_length=24, choices=EventKind.choices)
    subject = models.CharField(max_length=MAX_SUBJECT_CHARS, help_text="Such as key/7/month.")
    period = models.CharField(max_length=40, help_text="Such as 2026-11-01.")
    threshold = models.CharField(max_length=16, blank=True, help_text="Such as 80.")
    data = models.JSONField()
    created_at = models.DateTimeField()
    dispatched_at = models.DateTimeField(
        null=True, editable=False, help_text="When its deliveries were written; none: not yet."
    )
    followed_at = models.DateTimeField(
        null=True, editable=False, help_text="When the next event of its outage was written; none: not yet."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject", "period", "threshold"], name="one_event_per_threshold_and_period"
            )
        ]
        indexes = [
            models.Index(fields=["organization", "-created_at", "-id"], name="events_of_an_organization"),
            models.Index(
                fields=["created_at"], condition=Q(dispatched_at__isnull=True), name="events_not_dispatched"
            ),
            models.Index(
                fields=["kind", "created_at"],
                condition=Q(followed_at__isnull=True),
                name="events_not_followed",
            ),
            # The operators' list, and that of one kind.
            models.Index(fields=["-created_at", "-id"], name="events_by_time"),
            models.Index(fields=["kind", "-created_at", "-id"], name="events_of_a_kind"),
            # Without those that are never deleted, of which there may be very many.
            models.Index(fields=["created_at"], condition=WITH_AN_END, name="events_to_delete"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject}"

    @property
    def webhook_id(self) -> str:
        """Return the id by which receivers know it, however often it is sent."""
        return f"evt_{self.pk.hex}"
