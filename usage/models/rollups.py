"""The tables of the rollups: the ledger summed by hour, and the hours of days that are over summed by day.

`rollups/__init__.py` and `rollups/closing.py` write them, and can rebuild them from the ledger and the
generations.
"""

from django.db import models
from django.db.models import Value

from accounts.models import APIKey, EndUser, Organization, Project
from usage.models.generations import Outcome


class _Sums(models.Model):
    """Sums of ledger entries."""

    requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    # Nullable, and never null, as in `LedgerEntry`.
    cache_write_tokens = models.PositiveBigIntegerField(null=True, db_default=Value(0))
    cache_write_1h_tokens = models.PositiveBigIntegerField(null=True, db_default=Value(0))
    amount_nanodollars = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class _Group(models.Model):
    """The columns that name a group: one key, model and outcome."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    model = models.CharField(max_length=128)
    outcome = models.CharField(max_length=20, choices=Outcome.choices)

    class Meta:
        abstract = True


class HourlyUsage(_Group, _Sums):
    """The ledger summed by hour, key, model and outcome."""

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
    """A UTC day that is over and is in `DailyUsage`, `DailyTotals` and `DailyFirstTokens`."""

    day = models.DateField(primary_key=True)
    has_first_tokens = models.BooleanField(
        db_default=False, help_text="Whether its times to first token are counted too."
    )

    def __str__(self) -> str:
        return f"{self.day}"


class DailyUsage(_Group, _Sums):
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
        # For reports about one key or one outcome. Closing a day writes them, no settlement does.
        indexes = [
            models.Index(fields=["organization", "api_key", "day"], name="days_of_a_key"),
            models.Index(fields=["organization", "outcome", "day"], name="days_of_an_outcome"),
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.model}"


class DailyEndUserUsage(_Sums):
    """The ledger summed by day of UTC, end user and model, for projects that count their end users.

    Settlements write it. It is a table of its own because hours by key and model would have as many rows as
    there are people.
    """

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    end_user = models.ForeignKey(EndUser, on_delete=models.PROTECT, related_name="+", db_index=False)
    day = models.DateField()
    model = models.CharField(max_length=128)

    class Meta:
        verbose_name_plural = "daily usage of end users"
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "day", "project", "end_user", "model"],
                name="one_row_per_day_end_user_and_model",
            )
        ]
        indexes = [models.Index(fields=["end_user", "day"], name="days_of_an_end_user")]

    def __str__(self) -> str:
        return f"{self.day} {self.end_user_id}"


class MonthlyEndUserUsage(models.Model):
    """`DailyEndUserUsage` summed by month, for the order of a project's end users by spend.

    A trigger writes it with each row of a day, so older processes keep it too.
    """

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    end_user = models.ForeignKey(EndUser, on_delete=models.PROTECT, related_name="+", db_index=False)
    month = models.DateField(help_text="Its first day.")
    requests = models.BigIntegerField()
    amount_nanodollars = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "monthly usage of end users"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "month", "end_user"], name="one_row_per_month_and_end_user"
            )
        ]
        indexes = [
            models.Index(
                fields=["project", "month", "-amount_nanodollars", "-requests", "end_user"],
                name="largest_end_users_of_a_month",
            )
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m} {self.end_user_id}"


class Dimension(models.TextChoices):
    """Dimension by which usage is grouped."""

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
    """The hours of closed days summed by day and a single dimension: a few rows a day."""

    failed_requests = models.PositiveBigIntegerField(default=0, help_text="Of the requests.")

    class Meta:
        verbose_name_plural = "daily totals"
        constraints = [
            models.UniqueConstraint(fields=["dimension", "day", "member"], name="one_row_per_day_and_member")
        ]
        indexes = [models.Index(fields=["dimension", "member", "day"], name="totals_of_a_member")]

    def __str__(self) -> str:
        return f"{self.day} {self.dimension} {self.member}"


class DailyFirstTokens(_Member):
    """Number of requests of a closed day whose time from claim to first token lies in a bucket of
    `rollups/first_token_buckets.py`.
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
        indexes = [models.Index(fields=["dimension", "member", "day"], name="first_tokens_of_a_member")]

    def __str__(self) -> str:
        return f"{self.day} {self.dimension} {self.member}: {self.requests}"
