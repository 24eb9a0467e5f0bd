"""Tenants: organizations, their projects and members, and the API keys that may call."""

from zoneinfo import available_timezones

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models

identifier = RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}\Z", "Use 1 to 100 ASCII letters, digits, spaces or . _ @ -")


def validate_time_zone(name: str) -> None:
    """Refuse a name that is not in the IANA time zone database."""
    if name not in available_timezones():
        raise ValidationError(f"{name!r} is not an IANA time zone, such as Europe/Berlin.")


class Organization(models.Model):
    """A tenant: what is billed. Its budgets' days and months are those of its time zone."""

    name = models.CharField(max_length=100, unique=True, validators=[identifier])
    time_zone = models.CharField(max_length=64, default="UTC", validators=[validate_time_zone])
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
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["organization_id", "name"]
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="project_name_in_organization")]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"


class Role(models.TextChoices):
    """What a member may do in an organization, from most to least."""

    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class Member(models.Model):
    """A person's place in an organization."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "user"], name="one_membership_per_organization")]

    def __str__(self) -> str:
        return f"{self.user} ({self.role}) in {self.organization}"


class APIKey(models.Model):
    """A key of a project. The secret itself is shown once at creation; only its HMAC is kept."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=100, default="default", validators=[identifier])
    public = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    is_test = models.BooleanField(default=False, editable=False, help_text="Reaches only the sandbox engine and costs nothing.")
    is_admin = models.BooleanField(default=False, help_text="May read its organization's usage and manage its keys.")
    default_dialect = models.CharField(max_length=16, blank=True, help_text="Overrides the server's default dialect.")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} ({self.redacted})"

    @property
    def redacted(self) -> str:
        """The key as it may be shown again."""
        return f"ck_{'test' if self.is_test else 'live'}_{self.public[:4]}…"
