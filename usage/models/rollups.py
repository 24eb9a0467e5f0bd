"""The tables of the rollups: the ledger by the hour, and, of days that are over, the hours by the day.

`rollups/__init__.py` and `rollups/closed_days.py` write them. All of them can be made anew from the ledger
and the generations.
"""

from django.db import models

from accounts.models import APIKey, Organization, Project
from usage.models.outcomes import Outcome


class _Sums(models.Model):
    """What a rollup adds up of its ledger entries."""

    requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    amount_nanodollars = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class _Group(_Sums):
    """What one key used of one model with one outcome."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    model = models.CharField(max_length=128)
    outcome = models.CharField(max_length=20, choices=Outcome.choices)

    class Meta:
        abstract = True


class HourlyUsage(_Group):
    """The ledger summed by hour, key, model and outcome; `rollup` can rebuild it at any time."""

    hour = models.DateTimeField()

    class Meta:
        verbose_name_plural = "hourly usage"
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "hour", "project", "api_key", "model", "outcome"],
                name="one_row_per_hour_and_group",
            )
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h {self.model}"


class ClosedDay(models.Model):
    """A day of UTC that is over and whose hours are added up: `DailyUsage` and `DailyTotals` have all of it.

    When one of its hours changes after all, the database deletes this row, and the day is added up anew.
    """

    day = models.DateField(primary_key=True)
    has_first_tokens = models.BooleanField(
        db_default=False, help_text="Whether its times to first token are counted too."
    )

    def __str__(self) -> str:
        return f"{self.day}"


class DailyUsage(_Group):
    """The hours of closed days summed by day, key, model and outcome."""

    day = models.DateField()

    class Meta:
        verbose_name_plural = "daily usage"
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "day", "project", "api_key", "model", "outcome"],
                name="one_row_per_day_and_group",
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.model}"


class Dimension(models.TextChoices):
    """What usage is grouped by."""

    ORGANIZATION = "organization"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    OUTCOME = "outcome"


class _Member(models.Model):
    """One organization, project, key, model or outcome on a closed day."""

    day = models.DateField()
    dimension = models.CharField(max_length=12, choices=Dimension.choices)
    member = models.CharField(max_length=128, help_text="An id or a name.")

    class Meta:
        abstract = True


class DailyTotals(_Member, _Sums):
    """The hours of closed days summed by day and one dimension alone, all others together: a few rows a day."""

    failed_requests = models.PositiveBigIntegerField(default=0, help_text="Of the requests.")

    class Meta:
        verbose_name_plural = "daily totals"
        constraints = [
            models.UniqueConstraint(fields=["dimension", "day", "member"], name="one_row_per_day_and_member")
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.dimension} {self.member}"


class DailyFirstTokens(_Member):
    """How many requests of a closed day had their first token so many milliseconds after the claim; see
    `rollups/first_tokens.py`.
    """

    bucket = models.SmallIntegerField()
    requests = models.PositiveBigIntegerField()

    class Meta:
        verbose_name_plural = "daily first tokens"
        constraints = [
            models.UniqueConstraint(
                fields=["dimension", "day", "member", "bucket"], name="one_row_per_day_member_and_bucket"
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.dimension} {self.member}: {self.requests}"
