"""Prices of served models and discounts of organizations; rows are added, never changed."""

from django.db import models
from django.db.models import Q

from accounts.models import Organization
from usage.pricing import Price as PriceValue


class Price(models.Model):
    """Price of a served model from `effective_from` on."""

    model = models.CharField(max_length=128)
    effective_from = models.DateTimeField()
    input_per_mtok_nanodollars = models.BigIntegerField()
    cached_input_per_mtok_nanodollars = models.BigIntegerField()
    output_per_mtok_nanodollars = models.BigIntegerField()
    reasoning_per_mtok_nanodollars = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Of the completion tokens that are reasoning; without it they cost what output costs.",
    )
    cache_write_per_mtok_nanodollars = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Of the prompt tokens written to the cache; without it they cost what input costs.",
    )
    cache_write_1h_per_mtok_nanodollars = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Of those kept for an hour; without it they cost what those kept for 5 minutes cost.",
    )

    class Meta:
        ordering = ["model", "-effective_from"]
        constraints = [
            models.UniqueConstraint(fields=["model", "effective_from"], name="one_price_per_model_and_start"),
            models.CheckConstraint(
                condition=Q(
                    input_per_mtok_nanodollars__gte=0,
                    cached_input_per_mtok_nanodollars__gte=0,
                    output_per_mtok_nanodollars__gte=0,
                ),
                name="prices_are_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(reasoning_per_mtok_nanodollars__gte=0), name="reasoning_price_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(cache_write_per_mtok_nanodollars__gte=0), name="cache_write_price_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(cache_write_1h_per_mtok_nanodollars__gte=0),
                name="cache_write_1h_price_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.effective_from:%Y-%m-%d %H:%M}"

    @property
    def value(self) -> PriceValue:
        return PriceValue.of(self)


class Discount(models.Model):
    """Discount of an organization on all prices from `effective_from` on."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+")
    effective_from = models.DateTimeField()
    basis_points = models.PositiveSmallIntegerField(
        help_text="Hundredths of a percent: 1500 is 15 %. 0 ends a discount."
    )

    class Meta:
        ordering = ["organization", "-effective_from"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "effective_from"], name="one_discount_per_organization_and_start"
            ),
            models.CheckConstraint(condition=Q(basis_points__lte=10_000), name="discount_at_most_all"),
        ]

    def __str__(self) -> str:
        return (
            f"{self.basis_points / 100:g} % for {self.organization} from {self.effective_from:%Y-%m-%d %H:%M}"
        )
