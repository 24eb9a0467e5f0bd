"""Tenants: organizations, projects, service accounts, end users, members, their roles and groups."""

from typing import Any
from zoneinfo import available_timezones

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.utils import timezone

from accounts.model_lists import ModelsMode, validate_model_names
from accounts.models.placeholders import shown_name
from accounts.natural_order import NaturalOrder

# Each page of the console reads them all.
MAX_PROJECTS = 1_000
MAX_END_USER_CHARS = 128
MAX_DESCRIPTION_CHARS = 300
MAX_RESPONSE_DAYS = 30

identifier = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}\Z", "Use 1 to 100 ASCII letters, digits, spaces or . _ @ -"
)


def validate_time_zone(name: str) -> None:
    """Raise `ValidationError` unless the name is an IANA time zone."""
    if name not in available_timezones():
        raise ValidationError(f"{name!r} is not an IANA time zone, such as Europe/Berlin.")


class Organization(models.Model):
    """A tenant: what is billed. Its budgets' days, weeks and months follow its time zone."""

    name = models.CharField(max_length=100, unique=True, validators=[identifier])
    time_zone = models.CharField(max_length=64, default="UTC", validators=[validate_time_zone])
    default_dialect = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",
        help_text="Of keys without one of their own. It overrides the server's default dialect.",
    )
    # The negation, because a form in which a checkbox is missing must delete nothing.
    forbids_stored_responses = models.BooleanField(
        "forbid storing responses for days",
        default=False,
        db_default=False,
        help_text="If checked, no project stores responses for days, whatever its own settings say. "
        "Responses that are stored already can't be read any more, and are deleted within a minute.",
    )
    is_active = models.BooleanField(default=True, help_text="An inactive organization's keys are refused.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = [NaturalOrder("name"), "name"]

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
        ordering = ["organization_id", NaturalOrder("name"), "name"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="project_name_in_organization")
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"

    @property
    def response_days(self) -> int:
        """Return for how many days it stores responses now: 0 if its organization forbids it."""
        return 0 if self.organization.forbids_stored_responses else self.stores_responses_days

    def clean(self) -> None:
        """Raise `ValidationError` for a new project of an organization that has `MAX_PROJECTS`."""
        others = Project.objects.filter(organization=self.organization_id)
        if self._state.adding and others.count() >= MAX_PROJECTS:
            raise ValidationError(f"An organization has at most {MAX_PROJECTS:,} projects.")

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Keep the time since which an inactive project is inactive."""
        self.archived_at = None if self.is_active else self.archived_at or timezone.now()
        if "is_active" in (kwargs.get("update_fields") or ()):
            kwargs["update_fields"] = {*kwargs["update_fields"], "archived_at"}
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


LIMITABLE_ROLES = (Role.VIEWER, Role.MEMBER)
"""The roles of members who may be limited to single projects."""


class OwnRole(models.Model):
    """A role that an organization has made: what its members may do in the console, and nothing else."""

    # No index of its own: the unique constraint's index begins with the organization.
    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="own_roles", db_index=False
    )
    name = models.CharField(max_length=100, validators=[identifier])
    description = models.CharField(max_length=MAX_DESCRIPTION_CHARS, blank=True)
    permissions = models.JSONField(help_text="Names of permissions that `own_roles.CHOICES` has.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["organization_id", NaturalOrder("name"), "name"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="role_name_in_organization")
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"


class Member(models.Model):
    """A person's membership of an organization: of all its projects, unless it is limited to some.

    A member with an own role is stored as a viewer who is limited to no project. That shows nothing to code
    that does not know of own roles, such as the release before them.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    is_limited = models.BooleanField(
        "limited to projects",
        default=False,
        db_default=False,
        help_text="Only viewers and members can be. Without any project, the person sees nothing.",
    )
    own_role = models.ForeignKey(
        OwnRole,
        on_delete=models.RESTRICT,
        related_name="members",
        null=True,
        blank=True,
        help_text="Takes the place of the role.",
    )
    projects = models.ManyToManyField(
        Project,
        related_name="limited_members",
        blank=True,
        help_text="The projects that a limited member sees.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "user"], name="one_membership_per_organization"),
            models.CheckConstraint(
                condition=models.Q(is_limited=False) | models.Q(role__in=LIMITABLE_ROLES),
                name="only_viewers_and_members_are_limited",
                violation_error_message="Only a viewer or a member can be limited to projects.",
            ),
            models.CheckConstraint(
                condition=models.Q(own_role=None) | models.Q(is_limited=True),
                name="own_roles_are_of_limited_members",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.role_name}) in {self.organization}"

    @property
    def role_name(self) -> str:
        """Return the name of the own role or, without one, of the role."""
        return self.own_role.name if self.own_role is not None else str(self.role)

    @property
    def sees_single_projects(self) -> bool:
        """Return whether the member sees single projects only; with an own role, they see all."""
        return self.is_limited and self.own_role_id is None

    @property
    def name(self) -> str:
        """Return the person's name, as pages show it."""
        return shown_name(self.user)


class Group(models.Model):
    """A group of an organization's members: those who are limited to projects see its projects, too."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="groups", db_index=False
    )
    name = models.CharField(max_length=100, validators=[identifier])
    members = models.ManyToManyField(Member, through="GroupMember", related_name="groups")
    projects = models.ManyToManyField(Project, through="GroupProject", related_name="groups")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["organization_id", NaturalOrder("name"), "name"]
        constraints = [
            # Its index begins with the organization, so that column has none of its own.
            models.UniqueConstraint(fields=["organization", "name"], name="group_name_in_organization")
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"


class GroupMember(models.Model):
    """A member of a group."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, db_index=False)
    member = models.ForeignKey(Member, on_delete=models.CASCADE)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["group", "member"], name="one_row_per_group_and_member")
        ]

    def __str__(self) -> str:
        return f"{self.member} in {self.group}"


class GroupProject(models.Model):
    """A project that a group gives to those of its members who are limited to projects."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["group", "project"], name="one_row_per_group_and_project")
        ]

    def __str__(self) -> str:
        return f"{self.project} of {self.group}"
