"""The tables of refused requests; `rollups/refused_requests.py` writes them."""

from django.db import models

from accounts.models import APIKey, Organization, Project


class RefusedRequests(models.Model):
    """Number of requests of one key that were refused with one status and error code in one UTC hour."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(APIKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    hour = models.DateTimeField()
    status = models.PositiveSmallIntegerField(
        help_text="The HTTP status; 0 for the code `other`, which has several."
    )
    code = models.CharField(
        max_length=64,
        help_text="The error's code as the client gets it; why the key was refused if the status is 401.",
    )
    requests = models.PositiveBigIntegerField()

    class Meta:
        verbose_name_plural = "refused requests"
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "api_key", "status", "code"], name="one_row_per_hour_key_and_refusal"
            )
        ]
        indexes = [
            models.Index(fields=["organization", "-hour"], name="organization_refused"),
            models.Index(fields=["api_key", "-hour"], name="api_key_refused"),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h {self.code} of {self.api_key_id}"


class RefusedKeys(models.Model):
    """Number of requests without a valid key on one UTC day, for one reason. Few rows, kept forever."""

    day = models.DateField()
    reason = models.CharField(max_length=32)
    requests = models.PositiveBigIntegerField()

    class Meta:
        verbose_name_plural = "refused keys"
        constraints = [models.UniqueConstraint(fields=["day", "reason"], name="one_row_per_day_and_reason")]

    def __str__(self) -> str:
        return f"{self.day:%Y-%m-%d} {self.reason}"
