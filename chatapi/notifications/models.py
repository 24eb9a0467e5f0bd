"""Webhook endpoints, deliveries to them and by mail, the log of attempts, and people's choices of mail."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from accounts.models import Organization
from usage.models import Event, EventKind

MAX_URL_CHARS = 500
MAX_ANSWER_CHARS = 500
MAX_ERROR_CHARS = 200


class WebhookEndpoint(models.Model):
    """A URL that receives the events of its organization or, without one, of the service, signed with the
    endpoint's secret.
    """

    organization = models.ForeignKey(Organization, null=True, on_delete=models.CASCADE, related_name="+")
    url = models.CharField(max_length=MAX_URL_CHARS)
    kinds = models.JSONField(default=list, blank=True, help_text="The kinds that it gets; none: all of them.")
    # `webhooks.py` reads and writes them.
    encrypted_secret = models.BinaryField(editable=False)
    previous_encrypted_secret = models.BinaryField(null=True, editable=False)
    previous_expires_at = models.DateTimeField(
        null=True, editable=False, help_text="Until then, messages have signatures by both secrets."
    )
    is_enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.url

    def wants(self, kind: str) -> bool:
        """Return whether it gets events of this kind."""
        return not self.kinds or kind in self.kinds


class Delivery(models.Model):
    """One event for one endpoint, or for one person by mail."""

    class State(models.TextChoices):
        """DUE is still tried; DELIVERED and FAILED are not."""

        DUE = "due"
        DELIVERED = "delivered"
        FAILED = "failed"

    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, null=True, on_delete=models.CASCADE, db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=9, choices=State.choices, default=State.DUE)
    begun_at = models.DateTimeField(
        help_text="When it was first due, or replayed: it fails three days later."
    )
    due_at = models.DateTimeField(help_text="The next attempt; while one runs, the end of its lease.")
    attempts = models.PositiveIntegerField(default=0, help_text="The number of attempts since `begun_at`.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["event", "endpoint"], name="one_delivery_per_event_and_endpoint"),
            models.UniqueConstraint(fields=["event", "user"], name="one_delivery_per_event_and_person"),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(state="due"), name="deliveries_due"),
            models.Index(fields=["begun_at"], condition=Q(state="failed"), name="deliveries_failed"),
            # For deleting old ones.
            models.Index(fields=["begun_at"], name="deliveries_by_time"),
            models.Index(fields=["endpoint", "-id"], name="deliveries_of_an_endpoint"),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.endpoint_id or self.user_id}"


class DeliveryAttempt(models.Model):
    """One message to an endpoint, and its answer."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="log")
    at = models.DateTimeField()
    duration_ms = models.PositiveIntegerField()
    status = models.PositiveSmallIntegerField(null=True, help_text="The HTTP status; none without an answer.")
    answer = models.CharField(max_length=MAX_ANSWER_CHARS, blank=True, help_text="How the answer begins.")
    error = models.CharField(max_length=MAX_ERROR_CHARS, blank=True)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}: {self.status or self.error}"


class MailPreference(models.Model):
    """Whether a person wants mail of a kind, of one organization or, without one, of the whole service."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    organization = models.ForeignKey(Organization, null=True, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=24, choices=EventKind.choices)
    is_wanted = models.BooleanField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "organization", "kind"], name="one_preference_per_person_and_kind"
            ),
            models.UniqueConstraint(
                fields=["user", "kind"],
                condition=Q(organization__isnull=True),
                name="one_preference_per_operator_and_kind",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {'yes' if self.is_wanted else 'no'}"
