"""Generations, one row for each request, with their outcomes, public ids and idempotency keys."""

from collections.abc import Callable
from functools import cache
from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.module_loading import import_string

from accounts.models import MAX_END_USER_CHARS, APIKey, Organization, Project
from usage.pricing import Price as PriceValue


class Outcome(models.TextChoices):
    """Outcome of a generation."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    FAILED = "failed"
    WORKER_LOST = "worker_lost"
    NOT_STARTED = "not_started"


# The outcomes that count as errors; a client that left does not.
FAILED = (Outcome.FAILED, Outcome.WORKER_LOST, Outcome.NOT_STARTED)
# As a filter of requests: any of `FAILED`.
ANY_ERROR = "any_error"


class State(models.TextChoices):
    """State of a generation; admitted and running ones are open."""

    ADMITTED = "admitted"
    RUNNING = "running"
    SETTLED = "settled"


# Open generations, written as in the condition of their partial index, which is used only then.
OPEN = ~Q(state=State.SETTLED)


class UsageSource(models.TextChoices):
    """Origin of a generation's token counts."""

    UPSTREAM = "upstream"
    COUNTED = "counted"
    NONE = "none"


class UsageNote(models.TextChoices):
    """Peculiarity of an upstream's token counts."""

    IMPLAUSIBLE = "upstream_implausible", "the upstream reported more tokens than the request can have used"
    ADDED = "upstream_added", "the upstream reported tokens of each choice, and this is their sum"
    LOW = "upstream_low", "the upstream reported less than half of the tokens that were counted"


class Generation(models.Model):
    """One request from its admission to its settlement; its id is the public request id."""

    id = models.UUIDField(primary_key=True, editable=False)
    # Without constraints, here and in the ledger: PostgreSQL would look up and lock the three owners for each
    # row, though they are never deleted. Those of the hours remain, and refuse to delete an owner.
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    api_key = models.ForeignKey(
        APIKey, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    is_test = models.BooleanField(default=False)
    model = models.CharField(max_length=128)
    # Null, as `usage_note`.
    requested_model = models.CharField(  # noqa: DJ001
        max_length=128,
        null=True,
        help_text="The name that the client sent: an alias of the model, or the model that did not answer.",
    )
    end_user = models.CharField(  # noqa: DJ001
        max_length=MAX_END_USER_CHARS, null=True, help_text="The project's name for the person who asks."
    )
    end_user_id = models.BigIntegerField(
        null=True, help_text="The end user in whose budgets it counts, if its project counts them."
    )
    metadata = models.JSONField(null=True, help_text="The client's own pairs, if its project keeps them.")
    endpoint = models.CharField(max_length=32)
    dialect = models.CharField(max_length=16)
    is_stream = models.BooleanField()
    includes_usage = models.BooleanField(
        db_default=False, help_text="Its client asked for the usage inside the stream."
    )
    choices_count = models.PositiveSmallIntegerField(db_default=1)
    max_output_tokens = models.PositiveIntegerField(
        help_text="Per choice: the cap sent upstream and held for."
    )
    sampled_count = models.PositiveSmallIntegerField(
        null=True, help_text="Choices that are generated, of which some may not be shown."
    )
    max_prompt_tokens = models.PositiveBigIntegerField(
        null=True, help_text="What fits the context: an upstream is believed no more."
    )
    fallbacks = models.JSONField(
        null=True, help_text="Other models that may answer: `Candidate` of `usage/books/candidates.py` each."
    )

    input_per_mtok_nanodollars = models.BigIntegerField()
    cached_input_per_mtok_nanodollars = models.BigIntegerField()
    output_per_mtok_nanodollars = models.BigIntegerField()
    reasoning_per_mtok_nanodollars = models.BigIntegerField(null=True)
    cache_write_per_mtok_nanodollars = models.BigIntegerField(null=True)
    cache_write_1h_per_mtok_nanodollars = models.BigIntegerField(null=True)
    reserved_nanodollars = models.BigIntegerField()
    budget_day = models.DateField(
        help_text="The organization's local day of admission: which budgets it counts in."
    )

    queue_class = models.SmallIntegerField(
        null=True, help_text="The lower, the earlier it is served; null if an earlier release admitted it."
    )
    state = models.CharField(max_length=10, choices=State.choices, db_default=State.ADMITTED)
    fence = models.PositiveIntegerField(
        db_default=0, help_text="Grows with each claim; only its holder may publish and settle."
    )
    lease_expires_at = models.DateTimeField()
    worker = models.CharField(max_length=64, blank=True, db_default="")
    admitted_at = models.DateTimeField()
    claimed_at = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)

    outcome = models.CharField(max_length=20, choices=Outcome.choices, blank=True, db_default="")
    error_code = models.CharField(max_length=64, blank=True, db_default="")
    error_message = models.CharField(max_length=500, blank=True, db_default="")
    finish_reason = models.CharField(
        max_length=2_048,
        blank=True,
        db_default="",
        help_text="Of several choices that differ: each, by index, with commas.",
    )
    deployment = models.CharField(max_length=128, blank=True, db_default="")
    """The last one tried; while running: as of the last heartbeat."""
    attempts = models.PositiveSmallIntegerField(db_default=0, help_text="Deployments tried.")
    attempt_log = models.JSONField(
        null=True,
        help_text="The last attempts, where one failed: `Attempt` of `usage/books/settlement.py` each.",
    )
    usage_source = models.CharField(max_length=10, choices=UsageSource.choices, db_default=UsageSource.NONE)
    # Null and not empty: adding a column that is not null rebuilds SQLite's table, which drops its triggers.
    usage_note = models.CharField(  # noqa: DJ001
        max_length=24, choices=UsageNote.choices, null=True, blank=True
    )
    prompt_tokens = models.PositiveIntegerField(db_default=0)
    cached_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(
        db_default=0, help_text="While running: as of the last heartbeat."
    )
    reasoning_tokens = models.PositiveIntegerField(null=True)
    cache_write_tokens = models.PositiveIntegerField(null=True)
    cache_write_1h_tokens = models.PositiveIntegerField(null=True)
    is_waived = models.BooleanField(
        db_default=False, help_text="Ended without output and not completed: nothing is charged."
    )
    amount_nanodollars = models.BigIntegerField(db_default=0)
    first_token_ms = models.PositiveIntegerField(null=True, help_text="From the claim to the first delta.")
    last_token_ms = models.PositiveIntegerField(null=True, help_text="From the claim to the last delta.")

    class Meta:
        indexes = [
            models.Index(fields=["lease_expires_at"], name="open_generations", condition=~Q(state="settled")),
            models.Index(fields=["organization", "-admitted_at"], name="organization_generations"),
            models.Index(fields=["api_key", "-admitted_at"], name="api_key_generations"),
            models.Index(
                fields=["organization", "end_user", "-admitted_at"],
                condition=Q(end_user__isnull=False),
                name="end_user_generations",
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(reserved_nanodollars__gte=0, amount_nanodollars__gte=0),
                name="generation_amounts_not_negative",
            )
        ]

    def __str__(self) -> str:
        return public_id(self.id, self.endpoint, self.dialect)

    @property
    def is_fallback(self) -> bool:
        """Return whether another model than the requested one answers."""
        return any(each["model"] == self.model for each in self.fallbacks or ())

    @property
    def finish_reasons(self) -> list[str]:
        """Return the finish reason of each choice, by its index."""
        known = self.finish_reason.split(",")
        return known if len(known) == self.choices_count else [known[0] or "stop"] * self.choices_count

    @property
    def price(self) -> PriceValue:
        """Return the price at its admission, less the organization's discount."""
        return PriceValue.of(self)


class IdempotencyKey(models.Model):
    """A client's `Idempotency-Key` and the one generation that it names; both digests are SHA-256."""

    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    digest = models.CharField(max_length=64, help_text="Of the key.")
    request_digest = models.CharField(
        max_length=64, help_text="Of what was asked: the same key may not ask for something else."
    )
    generation_id = models.UUIDField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["api_key", "digest"], name="one_generation_per_idempotency_key")
        ]
        indexes = [models.Index(fields=["generation_id"], name="idempotency_keys_by_generation")]

    def __str__(self) -> str:
        return f"{self.digest[:8]}… of key {self.api_key_id}"


def public_id(generation_id: UUID, endpoint: str, dialect: str) -> str:
    """Return the id that the client of a generation with this endpoint and dialect saw."""
    return _public_id_writer()(generation_id, endpoint, dialect)


# The form of an id belongs to the protocol of the request, and this package knows no protocol.
@cache
def _public_id_writer() -> Callable[[UUID, str, str], str]:
    writer: Callable[[UUID, str, str], str] = import_string(settings.PUBLIC_ID)
    return writer
