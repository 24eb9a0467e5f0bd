"""What was used and what it cost: generations, prices, budgets, credit, the ledger, its seals and its rollups.

Amounts are integer nanodollars; prices are nanodollars per million tokens. Times are the database's clock. Rows keep names
and prices as values, so that history survives renames and price changes.
"""

from django.db import models
from django.db.models import Q

from accounts.models import APIKey, Organization, Project
from usage.outcome import Outcome
from usage.pricing import Price as PriceValue
from usage.refused_request_models import RefusedRequests
from usage.retention_models import RetentionHorizon
from usage.rollup_models import ClosedDay, DailyFirstTokens, DailyTotals, DailyUsage, Dimension, HourlyUsage
from usage.verification_models import LedgerCheck

__all__ = [
    "CHARGED", "SPENT", "Budget", "BudgetLimit", "ClosedDay", "Credit", "DailyFirstTokens", "DailyTotals", "DailyUsage", "Dimension",
    "Discount", "Generation", "HourlyUsage", "IdempotencyKey", "Kind", "LedgerCheck", "LedgerEntry", "LedgerSeal", "Outcome", "Period",
    "Price", "RefusedRequests", "RetentionHorizon", "Scope", "State", "UsageNote", "UsageSource",
]  # fmt: skip


class Price(models.Model):
    """What a served model costs from `effective_from` on; rows are added, never changed."""

    model = models.CharField(max_length=128)
    effective_from = models.DateTimeField()
    input_per_mtok_nanodollars = models.BigIntegerField()
    cached_input_per_mtok_nanodollars = models.BigIntegerField()
    output_per_mtok_nanodollars = models.BigIntegerField()
    reasoning_per_mtok_nanodollars = models.BigIntegerField(
        null=True, blank=True, help_text="Of the completion tokens that are reasoning; without it they cost what output costs."
    )

    class Meta:
        ordering = ["model", "-effective_from"]
        constraints = [
            models.UniqueConstraint(fields=["model", "effective_from"], name="one_price_per_model_and_start"),
            models.CheckConstraint(
                condition=Q(
                    input_per_mtok_nanodollars__gte=0, cached_input_per_mtok_nanodollars__gte=0, output_per_mtok_nanodollars__gte=0
                ),
                name="prices_are_not_negative",
            ),
            models.CheckConstraint(condition=Q(reasoning_per_mtok_nanodollars__gte=0), name="reasoning_price_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.effective_from:%Y-%m-%d %H:%M}"

    @property
    def value(self) -> PriceValue:
        """The price as a pure value."""
        return _price_of(self)


class Discount(models.Model):
    """What an organization pays less than the price from `effective_from` on; rows are added, never changed."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    effective_from = models.DateTimeField()
    basis_points = models.PositiveSmallIntegerField(help_text="Hundredths of a percent: 1500 is 15 %. 0 ends a discount.")

    class Meta:
        ordering = ["organization", "-effective_from"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "effective_from"], name="one_discount_per_organization_and_start"),
            models.CheckConstraint(condition=Q(basis_points__lte=10_000), name="discount_at_most_all"),
        ]

    def __str__(self) -> str:
        return f"{self.basis_points / 100:g} % for {self.organization} from {self.effective_from:%Y-%m-%d %H:%M}"


class State(models.TextChoices):
    """Where a generation stands; admitted and running ones are open."""

    ADMITTED = "admitted"
    RUNNING = "running"
    SETTLED = "settled"


OPEN = ~Q(state=State.SETTLED)
"""A generation that is admitted or runs, as the index of the open ones says it."""


class UsageSource(models.TextChoices):
    """Where the token counts come from."""

    UPSTREAM = "upstream"
    COUNTED = "counted"
    NONE = "none"


class UsageNote(models.TextChoices):
    """What is to be known of the token counts beside their source."""

    IMPLAUSIBLE = "upstream_implausible", "the upstream told more than the request can have used"
    ADDED = "upstream_added", "the upstream told each choice's by itself, and they are added"


class Generation(models.Model):
    """One request's run, from its admission to its settlement; its id is the public request id."""

    id = models.UUIDField(primary_key=True, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    is_test = models.BooleanField(default=False)
    model = models.CharField(max_length=128)
    endpoint = models.CharField(max_length=32)
    dialect = models.CharField(max_length=16)
    is_stream = models.BooleanField()
    includes_usage = models.BooleanField(db_default=False, help_text="Its client asked for the usage inside the stream.")
    choices_count = models.PositiveSmallIntegerField(db_default=1)
    max_output_tokens = models.PositiveIntegerField(help_text="Per choice: the cap sent upstream and held for.")
    sampled_count = models.PositiveSmallIntegerField(null=True, help_text="Choices that are generated, of which some may not be shown.")
    max_prompt_tokens = models.PositiveBigIntegerField(null=True, help_text="What fits the context: an upstream is believed no more.")

    input_per_mtok_nanodollars = models.BigIntegerField()
    cached_input_per_mtok_nanodollars = models.BigIntegerField()
    output_per_mtok_nanodollars = models.BigIntegerField()
    reasoning_per_mtok_nanodollars = models.BigIntegerField(null=True)
    reserved_nanodollars = models.BigIntegerField()
    budget_day = models.DateField(help_text="The organization's local day of admission: which budgets it counts in.")

    state = models.CharField(max_length=10, choices=State.choices, db_default=State.ADMITTED)
    fence = models.PositiveIntegerField(db_default=0, help_text="Grows with each claim; only its holder may publish and settle.")
    lease_expires_at = models.DateTimeField()
    worker = models.CharField(max_length=64, blank=True, db_default="")
    admitted_at = models.DateTimeField()
    claimed_at = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)

    outcome = models.CharField(max_length=20, choices=Outcome.choices, blank=True, db_default="")
    error_code = models.CharField(max_length=64, blank=True, db_default="")
    error_message = models.CharField(max_length=500, blank=True, db_default="")
    finish_reason = models.CharField(
        max_length=2_048, blank=True, db_default="", help_text="Of several choices that differ: each, by index, with commas."
    )
    deployment = models.CharField(max_length=128, blank=True, db_default="")
    """The last that was asked; while running: as of the last heartbeat."""
    attempts = models.PositiveSmallIntegerField(db_default=0, help_text="Deployments tried.")
    attempt_log = models.JSONField(null=True, help_text="The last attempts, where one failed: `Attempt` of `usage/settlement.py` each.")
    usage_source = models.CharField(max_length=10, choices=UsageSource.choices, db_default=UsageSource.NONE)
    usage_note = models.CharField(  # noqa: DJ001  a column that is not null would rebuild SQLite's table, without its triggers
        max_length=24, choices=UsageNote.choices, null=True, blank=True
    )
    prompt_tokens = models.PositiveIntegerField(db_default=0)
    cached_tokens = models.PositiveIntegerField(null=True)
    completion_tokens = models.PositiveIntegerField(db_default=0, help_text="While running: as of the last heartbeat.")
    reasoning_tokens = models.PositiveIntegerField(null=True)
    is_waived = models.BooleanField(db_default=False, help_text="Ended without output and not completed: nothing is charged.")
    amount_nanodollars = models.BigIntegerField(db_default=0)
    first_token_ms = models.PositiveIntegerField(null=True, help_text="From the claim to the first delta.")
    last_token_ms = models.PositiveIntegerField(null=True, help_text="From the claim to the last delta.")

    class Meta:
        indexes = [
            models.Index(fields=["lease_expires_at"], name="open_generations", condition=~Q(state="settled")),
            models.Index(fields=["organization", "-admitted_at"], name="organization_generations"),
            models.Index(fields=["api_key", "-admitted_at"], name="api_key_generations"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(reserved_nanodollars__gte=0, amount_nanodollars__gte=0), name="generation_amounts_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"chatcmpl-{self.id.hex}"

    @property
    def finish_reasons(self) -> list[str]:
        """Each choice's finish reason, by index."""
        known = self.finish_reason.split(",")
        return known if len(known) == self.choices_count else [known[0] or "stop"] * self.choices_count

    @property
    def price(self) -> PriceValue:
        """The price at its admission, less the organization's discount."""
        return _price_of(self)


class IdempotencyKey(models.Model):
    """A client's `Idempotency-Key` and the one generation that it stands for; both digests are SHA-256."""

    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    digest = models.CharField(max_length=64, help_text="Of the key.")
    request_digest = models.CharField(max_length=64, help_text="Of what was asked: the same key may not ask for something else.")
    generation_id = models.UUIDField()
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["api_key", "digest"], name="one_generation_per_idempotency_key")]
        indexes = [models.Index(fields=["generation_id"], name="idempotency_keys_by_generation")]

    def __str__(self) -> str:
        return f"{self.digest[:8]}… of key {self.api_key_id}"


class Kind(models.TextChoices):
    """What a ledger entry is for."""

    CHARGE = "charge"
    OVERAGE = "overage"
    CORRECTION = "correction"
    GRANT = "grant"
    REFUND = "refund"


CHARGED = (Kind.CHARGE, Kind.OVERAGE)
"""What settling writes."""
SPENT = (*CHARGED, Kind.CORRECTION)
"""What counts in budgets and in the rollup; the others move credit."""


class LedgerEntry(models.Model):
    """One movement of money, written once and never changed: the database refuses it.

    An entry's amount is what the organization owes more by it: charges and refunds are positive, grants negative, corrections either.
    Every settled generation has exactly one charge, of zero too; an overage is the part of an amount that the hold did not cover. A
    correction names the charge or overage that it corrects and counts where that one counts.
    """

    kind = models.CharField(max_length=10, choices=Kind.choices)
    # No constraint: entries are for ever, and outlive the generations that `usage/retention/` drops. Verification misses all others.
    generation = models.ForeignKey(Generation, on_delete=models.PROTECT, related_name="ledger_entries", null=True, db_constraint=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False, null=True)
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False, null=True)
    model = models.CharField(max_length=128, blank=True)
    outcome = models.CharField(max_length=20, choices=Outcome.choices, blank=True)
    budget_day = models.DateField()
    created_at = models.DateTimeField()
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    amount_nanodollars = models.BigIntegerField()
    corrects = models.ForeignKey("self", on_delete=models.PROTECT, related_name="corrections", db_index=False, null=True)
    is_rerating = models.BooleanField(db_default=False, help_text="A correction that follows a change of price, of `rerate`.")
    reason = models.CharField(max_length=500, blank=True, db_default="", help_text="Of what a person booked: why.")
    recorded_by = models.CharField(max_length=150, blank=True, db_default="", help_text="Who booked it; empty: the service.")
    reference = models.CharField(
        max_length=128, blank=True, db_default="", help_text="What must not be booked twice, such as a payment's id."
    )

    class Meta:
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["organization", "-created_at"], name="organization_ledger"),
            models.Index(fields=["created_at", "id"], name="ledger_by_time"),
            # They have all that is added up of what is rare; SQLite uses them for a condition on their first column.
            models.Index(fields=["kind", "created_at", "model", "amount_nanodollars"], condition=Q(kind="overage"), name="overages"),
            models.Index(fields=["kind", "model", "amount_nanodollars"], condition=Q(kind="correction"), name="corrections"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["generation", "kind"], condition=Q(kind__in=CHARGED), name="one_entry_per_generation_and_kind"),
            models.UniqueConstraint(fields=["reference"], condition=~Q(reference=""), name="one_entry_per_reference"),
            models.CheckConstraint(
                condition=Q(kind__in=CHARGED, amount_nanodollars__gte=0)
                | Q(kind=Kind.GRANT, amount_nanodollars__lt=0)
                | Q(kind=Kind.REFUND, amount_nanodollars__gt=0)
                | Q(kind=Kind.CORRECTION),
                name="amounts_have_their_kinds_sign",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=SPENT, generation__isnull=False, project__isnull=False, api_key__isnull=False)
                | Q(kind__in=[Kind.GRANT, Kind.REFUND], generation__isnull=True, project__isnull=True, api_key__isnull=True),
                name="what_is_spent_names_its_request",
            ),
            models.CheckConstraint(
                condition=Q(kind=Kind.CORRECTION, corrects__isnull=False) | ~Q(kind=Kind.CORRECTION) & Q(corrects__isnull=True),
                name="corrections_name_their_entry",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount_nanodollars} n$ for {self.generation_id or self.organization}"

    @property
    def request_id(self) -> str | None:
        """The id of its request as clients know it, whether the generation is still there or dropped; None of credit."""
        return f"chatcmpl-{self.generation_id.hex}" if self.generation_id else None


class LedgerSeal(models.Model):
    """A block of ledger entries as they were: who changes one, or a seal, breaks every later seal's digest. Never changed either.

    `usage/seals.py` says what is hashed.
    """

    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField(unique=True)
    entries_count = models.PositiveIntegerField()
    sum_nanodollars = models.BigIntegerField()
    previous_digest = models.CharField(max_length=64, unique=True, help_text="Unique, so that the chain never forks.")
    digest = models.CharField(max_length=64)
    fingerprints = models.BinaryField(help_text="The first 8 bytes of each entry's hash: they tell which entry is not what it was.")
    sealed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"entries {self.first_id} to {self.last_id}: {self.digest[:16]}"


class Credit(models.Model):
    """What an organization has paid in advance: its grants less its refunds. What it has spent of it is in its budget "ever"."""

    organization = models.OneToOneField(Organization, on_delete=models.PROTECT, related_name="+", primary_key=True)
    is_required = models.BooleanField(default=False, help_text="Requests that the balance can't cover are refused.")
    credited_nanodollars = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "credit"
        constraints = [models.CheckConstraint(condition=Q(credited_nanodollars__gte=0), name="credit_not_negative")]

    def __str__(self) -> str:
        return str(self.organization)


class Scope(models.TextChoices):
    """Whose money a budget counts."""

    ORGANIZATION = "organization"
    PROJECT = "project"
    API_KEY = "key"


class Period(models.TextChoices):
    """How long a budget counts before the next one begins."""

    DAY = "day"
    MONTH = "month"
    EVER = "ever"


class BudgetLimit(models.Model):
    """The most that an organization, project or key may spend in each day, each month or for ever.

    A soft limit refuses nothing: the budget that reaches it says when it did.
    """

    scope = models.CharField(max_length=12, choices=Scope.choices)
    scope_id = models.BigIntegerField()
    period = models.CharField(max_length=5, choices=Period.choices)
    limit_nanodollars = models.BigIntegerField(null=True, blank=True)
    soft_limit_nanodollars = models.BigIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["scope", "scope_id", "period"], name="one_limit_per_scope_and_period"),
            models.CheckConstraint(condition=Q(limit_nanodollars__gte=0), name="limit_not_negative"),
            models.CheckConstraint(condition=Q(soft_limit_nanodollars__gte=0), name="soft_limit_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.owner_name}, {self.period}"

    @property
    def owner_name(self) -> str:
        """What is limited, by its name now: one query, unless the row's own has brought it as `subject_name`."""
        if (known := getattr(self, "subject_name", None)) is not None:
            return str(known)
        model, path = _OWNERS[Scope(self.scope)]
        names = model._default_manager.filter(pk=self.scope_id).values_list(*path).first()
        return " / ".join(names) if names else f"{self.scope} {self.scope_id}"


_OWNERS: dict[Scope, tuple[type[models.Model], tuple[str, ...]]] = {
    Scope.ORGANIZATION: (Organization, ("name",)),
    Scope.PROJECT: (Project, ("organization__name", "name")),
    Scope.API_KEY: (APIKey, ("project__organization__name", "project__name", "name")),
}
"""Whose money it is, and the names that say which one."""


class Budget(models.Model):
    """What one organization, project or key has spent (`posted`) and holds (`pending`) in one period.

    Its id says it all, `key/7/month/2026-11-01`, so a new period is a new row and nothing needs a reset job.
    """

    id = models.CharField(primary_key=True, max_length=64)
    scope = models.CharField(max_length=12, choices=Scope.choices)
    scope_id = models.BigIntegerField()
    period = models.CharField(max_length=5, choices=Period.choices)
    period_start = models.DateField()
    posted_nanodollars = models.BigIntegerField(default=0)
    pending_nanodollars = models.BigIntegerField(default=0)
    soft_limit_reached_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["scope", "scope_id", "period", "period_start"], name="one_budget_per_scope_and_period"),
            models.CheckConstraint(condition=Q(pending_nanodollars__gte=0), name="pending_not_negative"),
        ]

    def __str__(self) -> str:
        return self.id


def _price_of(row: Price | Generation) -> PriceValue:
    return PriceValue(
        row.input_per_mtok_nanodollars,
        row.cached_input_per_mtok_nanodollars,
        row.output_per_mtok_nanodollars,
        row.reasoning_per_mtok_nanodollars,
    )
