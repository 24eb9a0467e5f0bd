"""API keys, and what they may do."""

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from accounts import allowed_ips, api_keys
from accounts.model_lists import validate_model_names
from accounts.models.organizations import Project, Role, ServiceAccount, identifier


class KeyScope(models.TextChoices):
    """What a key can be restricted to; without scopes it may do everything."""

    COMPLETIONS = "completions", "completions – send requests to models, create tickets, and count tokens"
    MODELS = "models", "models – list the models"
    GENERATIONS = (
        "generations",
        "generations – read receipts, resume and cancel streams, read and delete stored responses",
    )
    USAGE = "usage", "usage – read the organization's usage and costs; this needs an admin key too"
    MANAGEMENT = "management", "management – manage the organization; this needs an admin key with a role"


def validate_scopes(scopes: object) -> None:
    if not isinstance(scopes, list) or not all(scope in KeyScope.values for scope in scopes):
        raise ValidationError(f"This must be a list of scopes: {', '.join(KeyScope.values)}.")


class APIKey(models.Model):
    """A key of a project. Its secret is shown once, at creation; only the HMAC is kept.

    A rotated key has two secrets until the previous one expires: usage, limits and budgets belong to the key,
    not to a secret. The key of a federation rule has no secret, and a blank digest: only access tokens, which
    end by themselves, open it.
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
        help_text="What it may do. Leave empty to allow everything.",
    )
    allowed_models = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        validators=[validate_model_names],
        help_text="The models it may use. Leave empty to allow all.",
    )
    allowed_ips = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="The IP addresses and networks from which it may be used. Leave empty to allow every one.",
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
        indexes = [
            models.Index(
                fields=["expires_at"], condition=Q(expires_at__isnull=False), name="api_keys_by_expiry"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.redacted})"

    def clean(self) -> None:
        """Normalize the IP addresses. Raises `ValidationError` for a wrong one, or for a role of a key that
        can't manage anything.
        """
        try:
            self.allowed_ips = allowed_ips.normalized(self.allowed_ips)
        except ValidationError as error:
            raise ValidationError({"allowed_ips": error}) from None
        if self.manages_as and (self.is_test or not self.is_admin):
            raise ValidationError({"manages_as": "Only a live admin key can manage its organization."})
        if self.is_admin and self.pk and not self.has_secret:
            raise ValidationError({"is_admin": "The key of a federation rule can't be an admin key."})

    @property
    def has_secret(self) -> bool:
        """Return whether it has a secret: the key of a federation rule has none."""
        return bool(self.digest)

    @property
    def redacted(self) -> str:
        return api_keys.redacted(self.public, is_test=self.is_test)

    @property
    def previous_redacted(self) -> str | None:
        return api_keys.redacted(self.previous_public, is_test=self.is_test) if self.previous_public else None

    def has_previous(self, now: datetime) -> bool:
        """Return whether the previous secret still works."""
        return self.previous_expires_at is not None and self.previous_expires_at > now
