"""Tenants: organizations, projects, members, API keys and rate limits."""

from datetime import datetime
from typing import Any, ClassVar
from zoneinfo import available_timezones

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from accounts import api_keys
from accounts.limits import DAY_MS, HIGHEST, MINUTE_MS, Counts, Limit, LimitNumber
from accounts.model_lists import ModelsMode, validate_model_names

MAX_END_USER_CHARS = 128
MAX_RESPONSE_DAYS = 30

identifier = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}\Z", "Use 1 to 100 ASCII letters, digits, spaces or . _ @ -"
)


def validate_time_zone(name: str) -> None:
    """Raise `ValidationError` unless the name is an IANA time zone."""
    if name not in available_timezones():
        raise ValidationError(f"{name!r} is not an IANA time zone, such as Europe/Berlin.")


class Organization(models.Model):
    """A tenant: what is billed. Its budgets' days and months follow its time zone."""

    name = models.CharField(max_length=100, unique=True, validators=[identifier])
    time_zone = models.CharField(max_length=64, default="UTC", validators=[validate_time_zone])
    default_dialect = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",
        help_text="Of keys without one of their own. It overrides the server's default dialect.",
    )
    is_active = models.BooleanField(default=True, help_text="An inactive organization's keys are refused.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    """A part of an organization that has its own keys and budgets."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=100, default="default", validators=[identifier])
    is_active = models.BooleanField(default=True, help_text="An inactive project's keys are refused.")
    model_aliases = models.JSONField(
        default=dict, db_default={}, blank=True, help_text="Models' ids by the project's own names for them."
    )
    model_fallbacks = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="Lists of the models that answer if another one can't, by the name of that one.",
    )
    # `db_default` here and below: the previous release, which still runs during a deployment, inserts rows
    # without these columns.
    hashes_end_users = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Requests keep a digest of their end user's name, and not the name.",
    )
    stores_metadata = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Requests keep the pairs of their parameter “metadata”, for the list's filter and exports.",
    )
    counts_end_users = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Each end user has budgets and daily usage from now on, which limits of end users need.",
    )
    stores_responses_days = models.PositiveSmallIntegerField(
        "stores responses (days)",
        default=0,
        blank=True,
        db_default=0,
        validators=[MaxValueValidator(MAX_RESPONSE_DAYS)],
        help_text="Days for which stored responses, input and output, are kept, encrypted, in the database. "
        f"At most {MAX_RESPONSE_DAYS}; 0: for minutes in memory only.",
    )
    models_mode = models.CharField(
        "which models",
        max_length=10,
        choices=ModelsMode.choices,
        default=ModelsMode.ALL,
        blank=True,
        db_default="",
        help_text="A key's own list can narrow this, and never widen it.",
    )
    listed_models = models.JSONField(
        default=list, db_default=[], blank=True, validators=[validate_model_names]
    )
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["organization_id", "name"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="project_name_in_organization")
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Keep the time since which an inactive project is inactive."""
        self.archived_at = None if self.is_active else self.archived_at or timezone.now()
        super().save(*args, **kwargs)


class ServiceAccount(models.Model):
    """A program that has keys of a project; its deletion revokes them."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="service_accounts")
    name = models.CharField(max_length=100, validators=[identifier])
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.project} / {self.name}"


class EndUser(models.Model):
    """A person for whom a project that counts end users sends requests; the first request makes the row."""

    # No index of its own: the unique constraint's index begins with the project.
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="end_users", db_index=False)
    name = models.CharField(max_length=MAX_END_USER_CHARS, help_text="As `end_users.stored_name` returns it.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_end_user_per_project_and_name")
        ]

    def __str__(self) -> str:
        return f"{self.project} / {self.name}"


class Role(models.TextChoices):
    """The roles of members, from most to least rights."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class Member(models.Model):
    """A person's membership of an organization."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "user"], name="one_membership_per_organization")
        ]

    def __str__(self) -> str:
        return f"{self.user} ({self.role}) in {self.organization}"


class KeyScope(models.TextChoices):
    """What a key can be restricted to. A key without scopes may do everything; every key may ask
    who it is.
    """

    COMPLETIONS = (
        "completions",
        "completions – create chat and text completions, tickets for them, and embeddings",
    )
    MODELS = "models", "models – list the models"
    GENERATIONS = "generations", "generations – read receipts, resume and cancel streams"
    USAGE = "usage", "usage – read the organization's usage and costs; this needs an admin key too"
    MANAGEMENT = "management", "management – manage the organization; this needs an admin key with a role"


def validate_scopes(scopes: object) -> None:
    """Raise `ValidationError` unless it is a list of scopes."""
    if not isinstance(scopes, list) or not all(scope in KeyScope.values for scope in scopes):
        raise ValidationError(f"This must be a list of scopes: {', '.join(KeyScope.values)}.")


class APIKey(models.Model):
    """A key of a project. Its secret is shown once, at creation; only the HMAC is kept.

    A rotated key has two secrets until the previous one expires: usage, limits and budgets belong to the key,
    not to a secret.
    """

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=100, default="default", validators=[identifier])
    # The part of the key that finds its row. It is no secret, so its index needs no constant-time
    # comparison; the digest of the whole key does.
    public = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    is_test = models.BooleanField(
        default=False, editable=False, help_text="Reaches only the sandbox engine and costs nothing."
    )
    is_admin = models.BooleanField(
        default=False,
        help_text="May also read all of its organization's usage and costs: "
        "/v1/organization/usage/completions and /v1/organization/costs.",
    )
    manages_as = models.CharField(
        max_length=10,
        choices=Role.choices,
        blank=True,
        default="",
        db_default="",
        help_text="A live admin key may manage its organization as a member with this role.",
    )
    service_account = models.ForeignKey(
        ServiceAccount, on_delete=models.SET_NULL, null=True, blank=True, related_name="api_keys",
        editable=False,
    )  # fmt: skip
    # Empty lists allow everything, so that keys from before these columns keep all their rights.
    scopes = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        validators=[validate_scopes],
        help_text="What it may do. None chosen: everything.",
    )
    allowed_models = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        validators=[validate_model_names],
        help_text="The models it may use. None chosen: all.",
    )
    default_dialect = models.CharField(
        max_length=16, blank=True, help_text="Overrides the organization's default dialect."
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    is_active = models.BooleanField(
        default=True, db_default=True, help_text="An inactive key is refused until it is active again."
    )
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    # NULL rather than blank without a previous secret, because NULLs are not unique among each other.
    previous_public = models.CharField(max_length=16, unique=True, null=True, blank=True, editable=False)
    previous_digest = models.CharField(max_length=64, default="", db_default="", blank=True, editable=False)
    previous_expires_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name = "API key"
        constraints = [
            models.CheckConstraint(
                condition=Q(previous_public__isnull=True, previous_expires_at__isnull=True)
                | Q(previous_public__isnull=False, previous_expires_at__isnull=False),
                name="a_previous_secret_expires",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.redacted})"

    def clean(self) -> None:
        """Raise `ValidationError` for a role of a key that can't manage anything."""
        if self.manages_as and (self.is_test or not self.is_admin):
            raise ValidationError({"manages_as": "Only a live admin key can manage its organization."})

    @property
    def redacted(self) -> str:
        """Return how the key is shown."""
        return api_keys.redacted(self.public, is_test=self.is_test)

    @property
    def previous_redacted(self) -> str | None:
        """Return how the previous secret is shown, if there is one."""
        return api_keys.redacted(self.previous_public, is_test=self.is_test) if self.previous_public else None

    def has_previous(self, now: datetime) -> bool:
        """Return whether the previous secret still works."""
        return self.previous_expires_at is not None and self.previous_expires_at > now


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
        """Return the limits that are set, as values."""
        scope_id = self.organization_id or self.project_id or self.api_key_id
        assert scope_id is not None, "the database sees to it"
        return self.limits_of(self.scope, scope_id)

    def limits_of(self, scope: str, scope_id: int, name: str = "") -> list[Limit]:
        """Return the limits that are set, as values for this owner."""
        return [
            Limit(scope, scope_id, self.model, number.counts, min(most, HIGHEST), number.window_ms, name)
            for column, number in self.NUMBERS.items()
            if (most := getattr(self, column)) is not None
        ]
