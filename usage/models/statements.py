"""The tables of statements: the ledger's days by the lines of statements, and the statements themselves."""

from django.db import models

from accounts.models import Organization, Project


class ItemKind(models.TextChoices):
    """Kind of a line: tokens of a request as on its receipt, a later change of charges, or credit."""

    INPUT = "input", "Input"
    CACHED_INPUT = "cached_input", "Cached input"
    CACHE_WRITE = "cache_write", "Cache write"
    CACHE_WRITE_1H = "cache_write_1h", "Cache write, 1 hour"
    OUTPUT = "output", "Output"
    REASONING = "reasoning", "Reasoning"
    ALL_TOKENS = "all_tokens", "All tokens"
    CORRECTION = "correction", "Correction"
    RERATING = "rerating", "Re-rating"
    GRANT = "grant", "Credit granted"
    REFUND = "refund", "Credit refunded"


# The kinds that are no tokens.
CORRECTING = (ItemKind.CORRECTION, ItemKind.RERATING)
CREDITING = (ItemKind.GRANT, ItemKind.REFUND)


class ItemizedDay(models.Model):
    """A UTC day that is over and is in `DailyItem`; there is no gap between the days."""

    day = models.DateField(primary_key=True)

    def __str__(self) -> str:
        return f"{self.day}"


class DailyItem(models.Model):
    """The ledger entries of one organization and itemized day that belong to the same line of a statement."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    day = models.DateField()
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="+", db_index=False, null=True
    )
    model = models.CharField(max_length=128, blank=True)
    kind = models.CharField(max_length=16, choices=ItemKind.choices)
    corrected_month = models.DateField(
        null=True, help_text="First day of the month in which the corrected charges were written."
    )
    list_per_mtok_nanodollars = models.BigIntegerField(
        null=True, help_text="The price before the organization's discount; null if no price is known."
    )
    per_mtok_nanodollars = models.BigIntegerField(null=True, help_text="The price that was charged.")
    entries = models.PositiveBigIntegerField(help_text="Number of requests, corrections or bookings.")
    tokens = models.PositiveBigIntegerField()
    list_nanodollars = models.BigIntegerField(help_text="The amount before the organization's discount.")
    amount_nanodollars = models.BigIntegerField(help_text="With the sign of the ledger: grants are negative.")

    class Meta:
        indexes = [models.Index(fields=["organization", "day"], name="items_of_an_organization")]

    def __str__(self) -> str:
        return f"{self.day} {self.model} {self.kind}"


class Statement(models.Model):
    """What an organization owes for a month of UTC that is over; written once and never changed.

    `content` is the whole statement, as clients get it, and `digest` is in the chain of the ledger's seals.
    The other columns repeat the content, for lists.
    """

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    month = models.DateField(help_text="Its first day.")
    charged_nanodollars = models.BigIntegerField(help_text="Usage and corrections.")
    closing_balance_nanodollars = models.BigIntegerField(
        help_text="Credit at the end of the month; negative if the organization owes."
    )
    content = models.TextField(help_text="JSON: `StatementDocument` of `usage/statements/document.py`.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of the content in UTF-8.")
    issued_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "month"], name="one_statement_per_organization_and_month"
            )
        ]
        indexes = [models.Index(fields=["-month", "organization"], name="statements_by_month")]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} of {self.organization}"
