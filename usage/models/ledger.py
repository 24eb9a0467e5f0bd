"""The ledger: entries that are written once and never changed, and the seals that would show a change."""

from collections.abc import Mapping
from typing import Literal

from django.db import models
from django.db.models import Q, Value

from accounts.models import APIKey, Organization, Project
from usage.formatting import usd
from usage.models.generations import Generation, Outcome


class Kind(models.TextChoices):
    """Kind of a ledger entry."""

    CHARGE = "charge"
    OVERAGE = "overage"
    CORRECTION = "correction"
    GRANT = "grant"
    REFUND = "refund"


# The kinds that settling writes.
CHARGED = (Kind.CHARGE, Kind.OVERAGE)
# The kinds that count in budgets and in the rollups; the others move credit.
SPENT = (*CHARGED, Kind.CORRECTION)
# The kinds that move credit, each with the sign of its entries, whose amounts are what is owed.
OWED_SIGNS: Mapping[str, Literal[-1, 1]] = {Kind.GRANT: -1, Kind.REFUND: 1}
assert {*OWED_SIGNS} == {*Kind} - {*SPENT}, "each kind is spent or moves credit"
# The entries of the other kinds and corrections, written as in the condition of their partial index.
BOOKED = Q(generation__isnull=True) | Q(corrects__isnull=False)


class LedgerEntry(models.Model):
    """One movement of money, written once; the database refuses to change it.

    The amount is added to the organization's debt: charges and refunds are positive, grants are negative,
    corrections are either. Every settled generation has exactly one charge, which may be zero. An overage is
    the part of an amount that the hold did not cover. A correction names the charge or overage that it
    corrects, and counts in the same budgets.
    """

    kind = models.CharField(max_length=10, choices=Kind.choices)
    # No constraint: entries are kept for ever, generations are dropped by `usage/retention/`. Verification
    # finds any other generation that is missing.
    generation = models.ForeignKey(
        Generation, on_delete=models.PROTECT, related_name="ledger_entries", null=True, db_constraint=False
    )
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False, null=True
    )
    api_key = models.ForeignKey(
        APIKey, on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False, null=True
    )
    end_user_id = models.BigIntegerField(null=True, help_text="The end user in whose budgets it counts.")
    model = models.CharField(max_length=128, blank=True)
    outcome = models.CharField(max_length=20, choices=Outcome.choices, blank=True)
    budget_day = models.DateField()
    created_at = models.DateTimeField()
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    # Nullable, and never null: SQLite rebuilds its table for a new column that is not nullable, which drops
    # the table's triggers. The default is for entries that older processes write.
    cache_write_tokens = models.PositiveIntegerField(null=True, db_default=Value(0))
    cache_write_1h_tokens = models.PositiveIntegerField(null=True, db_default=Value(0))
    amount_nanodollars = models.BigIntegerField()
    corrects = models.ForeignKey(
        "self", on_delete=models.PROTECT, related_name="corrections", db_index=False, null=True
    )
    is_rerating = models.BooleanField(
        db_default=False, help_text="A correction that follows a change of price, of `rerate`."
    )
    reason = models.CharField(
        max_length=500, blank=True, db_default="", help_text="Of what a person booked: why."
    )
    recorded_by = models.CharField(
        max_length=150, blank=True, db_default="", help_text="Who booked it; empty: the service."
    )
    reference = models.CharField(
        max_length=128,
        blank=True,
        db_default="",
        help_text="What must not be booked twice, such as a payment's id.",
    )

    class Meta:
        verbose_name_plural = "ledger entries"
        indexes = [
            models.Index(fields=["organization", "-created_at"], name="organization_ledger"),
            models.Index(fields=["created_at", "id"], name="ledger_by_time"),
            # They have all that is added up of what is rare; SQLite uses them for a condition on their first
            # column.
            models.Index(
                fields=["kind", "created_at", "model", "amount_nanodollars"],
                condition=Q(kind="overage"),
                name="overages",
            ),
            models.Index(
                fields=["kind", "model", "amount_nanodollars"],
                condition=Q(kind="correction"),
                name="corrections",
            ),
            models.Index(
                fields=["organization", "created_at"], condition=BOOKED, name="bookings_of_an_organization"
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["generation", "kind"],
                condition=Q(kind__in=CHARGED),
                name="one_entry_per_generation_and_kind",
            ),
            models.UniqueConstraint(
                fields=["reference"], condition=~Q(reference=""), name="one_entry_per_reference"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=CHARGED, amount_nanodollars__gte=0)
                | Q(kind=Kind.GRANT, amount_nanodollars__lt=0)
                | Q(kind=Kind.REFUND, amount_nanodollars__gt=0)
                | Q(kind=Kind.CORRECTION),
                name="amounts_have_their_kinds_sign",
            ),
            models.CheckConstraint(
                condition=Q(
                    kind__in=SPENT, generation__isnull=False, project__isnull=False, api_key__isnull=False
                )
                | Q(
                    kind__in=[*OWED_SIGNS],
                    generation__isnull=True,
                    project__isnull=True,
                    api_key__isnull=True,
                ),
                name="what_is_spent_names_its_request",
            ),
            models.CheckConstraint(
                condition=Q(kind=Kind.CORRECTION, corrects__isnull=False)
                | ~Q(kind=Kind.CORRECTION) & Q(corrects__isnull=True),
                name="corrections_name_their_entry",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {usd(self.amount_nanodollars)} for {self.request_id or self.organization}"

    @property
    def request_id(self) -> str | None:
        """Return the public id of its request, without a prefix if that was dropped; None for credit."""
        if self.generation_id is None:
            return None
        try:
            return str(self.generation or self.generation_id.hex)
        except Generation.DoesNotExist:
            return self.generation_id.hex


class LedgerSeal(models.Model):
    """A digest of a block of ledger entries and statements and of the seal before, so that a change breaks
    all later seals.

    Never changed either. `usage/verification/seals.py` defines what is hashed.
    """

    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField(help_text="Of the last sealed entry, also if the block has none.")
    # Null in seals of processes that know no statements.
    last_statement_id = models.BigIntegerField(null=True, help_text="Of the last sealed statement; 0: none.")
    entries_count = models.PositiveIntegerField()
    sum_nanodollars = models.BigIntegerField()
    previous_digest = models.CharField(
        max_length=64, unique=True, help_text="Unique, so that the chain never forks."
    )
    digest = models.CharField(max_length=64)
    fingerprints = models.BinaryField(
        help_text="The first 8 bytes of each hash: they tell which entry or statement is not what it was."
    )
    sealed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["last_id"], condition=Q(entries_count__gt=0), name="one_seal_per_last_entry"
            )
        ]

    def __str__(self) -> str:
        return f"entries {self.first_id} to {self.last_id}: {self.digest[:16]}"
