"""Rate limits of organizations, projects, keys and end users."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from accounts.limits import DAY_MS, HIGHEST, MINUTE_MS, Counts, Limit, LimitNumber
from accounts.models.keys import APIKey
from accounts.models.organizations import EndUser, Organization, Project


def _only(owner: str) -> Q:
    """Match a rate limit with this owner and no other."""
    names = ("organization", "project", "api_key", "end_user")
    return Q(**{f"{name}__isnull": name != owner for name in names})


class RateLimit(models.Model):
    """The limits of an organization, project, key or end user, for one model or for all of them together; or
    of each end user of an organization or project that counts them.

    An empty number is no limit; 0 lets nothing pass. A request needs room in all limits that apply to it.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, null=True, blank=True, related_name="rate_limits"
    )
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, null=True, blank=True, related_name="rate_limits"
    )
    api_key = models.ForeignKey(
        APIKey,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="rate_limits",
        verbose_name="API key",
    )
    end_user = models.ForeignKey(
        EndUser, on_delete=models.CASCADE, null=True, blank=True, related_name="rate_limits"
    )
    each_end_user = models.BooleanField(
        "for each end user",
        default=False,
        db_default=False,
        help_text="Each end user of the organization or project has these limits, not all together.",
    )
    model = models.CharField(
        max_length=128, blank=True, default="", help_text="A served model; empty: all models together."
    )
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    requests_per_day = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True)
    concurrent_requests = models.PositiveIntegerField(null=True, blank=True)

    # By column.
    NUMBERS: ClassVar[dict[str, LimitNumber]] = {
        "requests_per_minute": LimitNumber(
            Counts.REQUESTS, MINUTE_MS, "max_requests_per_1_minute", "--requests-per-minute"
        ),
        "tokens_per_minute": LimitNumber(
            Counts.TOKENS, MINUTE_MS, "max_tokens_per_1_minute", "--tokens-per-minute"
        ),
        "requests_per_day": LimitNumber(
            Counts.REQUESTS, DAY_MS, "max_requests_per_1_day", "--requests-per-day"
        ),
        "tokens_per_day": LimitNumber(Counts.TOKENS, DAY_MS, "max_tokens_per_1_day", "--tokens-per-day"),
        "concurrent_requests": LimitNumber(Counts.RUNNING, 0, "max_concurrent_requests", "--concurrent"),
    }

    class Meta:
        ordering = ["organization_id", "project_id", "api_key_id", "model"]
        constraints = [
            # A row has one owner, and rows without that owner differ from each other: NULL is unlike NULL.
            models.UniqueConstraint(
                fields=["organization", "model", "each_end_user"],
                name="one_rate_limit_per_organization_and_model",
            ),
            models.UniqueConstraint(
                fields=["project", "model", "each_end_user"], name="one_rate_limit_per_project_and_model"
            ),
            models.UniqueConstraint(fields=["api_key", "model"], name="one_rate_limit_per_api_key_and_model"),
            models.UniqueConstraint(
                fields=["end_user", "model"], name="one_rate_limit_per_end_user_and_model"
            ),
            models.CheckConstraint(
                condition=_only("organization") | _only("project") | _only("api_key") | _only("end_user"),
                name="a_rate_limit_has_one_owner",
                violation_error_message="Choose one: an organization, a project or an API key.",
            ),
            models.CheckConstraint(
                condition=Q(each_end_user=False) | Q(api_key__isnull=True, end_user__isnull=True),
                name="each_end_user_of_an_organization_or_project",
                violation_error_message="Choose an organization or a project for limits of each end user.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.owner}: {self.model or 'all models'}"

    @property
    def owner(self) -> "Organization | Project | APIKey | EndUser | None":
        """Return the organization, project, key or end user that is limited; None in an unsaved row."""
        return self.organization or self.project or self.api_key or self.end_user

    @property
    def scope(self) -> str:
        """Return the owner's kind: organization, project, key or end_user."""
        if self.end_user_id:
            return "end_user"
        return "organization" if self.organization_id else "project" if self.project_id else "key"

    @property
    def limits(self) -> list[Limit]:
        """Return the limits that are set, as the values that requests take from."""
        if self.end_user is not None:
            return self.limits_of(self.scope, self.end_user.project_id, self.end_user.name)
        scope_id = self.organization_id or self.project_id or self.api_key_id
        assert scope_id is not None, "a constraint of the table: each row has one owner"
        return self.limits_of(self.scope, scope_id)

    def save_or_delete(self) -> None:
        """Validate and save the limit; without a number it limits nothing, and its row is deleted, if any.

        Raises `ValidationError`.
        """
        if any(getattr(self, name) is not None for name in self.NUMBERS):
            self.full_clean()
            self.save()
        elif self.pk is not None:
            self.delete()

    def limits_of(self, scope: str, scope_id: int, name: str = "") -> list[Limit]:
        """Return the limits that are set, as values for this owner."""
        return [
            Limit(scope, scope_id, self.model, number.counts, min(most, HIGHEST), number.window_ms, name)
            for column, number in self.NUMBERS.items()
            if (most := getattr(self, column)) is not None
        ]
