"""Spend alerts: amounts of which chosen members get mail when a month has reached them."""

from django.db import models
from django.db.models import Q

from accounts.models import Organization, Project
from usage.pricing import to_usd

MAX_PREFIX_CHARS = 100


class SpendAlert(models.Model):
    """An amount that an organization, or one of its projects, may spend in a month until people get mail."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    project = models.ForeignKey(
        Project, null=True, on_delete=models.CASCADE, related_name="+", help_text="None: the organization."
    )
    threshold_nanodollars = models.BigIntegerField()
    recipients = models.JSONField(help_text="The ids of the people who get the mail.")
    subject_prefix = models.CharField(max_length=MAX_PREFIX_CHARS, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(threshold_nanodollars__gt=0), name="spend_alert_above_zero")
        ]

    def __str__(self) -> str:
        return f"{self.project or self.organization}, ${to_usd(self.threshold_nanodollars)} each month"
