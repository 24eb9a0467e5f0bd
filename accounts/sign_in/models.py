"""How people of an organization sign in: its identity provider, and its domains of e-mail addresses."""

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from accounts.encryption import Purpose, decrypt, encrypt
from accounts.models import Organization, Role

MAX_GROUPS = 100
domain_name = RegexValidator(
    r"^(?=.{4,253}\Z)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])\Z",
    "Use a domain in small letters, such as example.com.",
)
# The characters are those of RFC 6749, section 3.3.
scope_names = RegexValidator(
    r"^[\x21\x23-\x5B\x5D-\x7E]+( +[\x21\x23-\x5B\x5D-\x7E]+)*\Z",
    "Use names of scopes, separated by spaces.",
)


def validate_group_roles(value: object) -> None:
    """Raise `ValidationError` unless it has a role for each of at most `MAX_GROUPS` groups."""
    if not isinstance(value, dict) or len(value) > MAX_GROUPS:
        raise ValidationError(f"This must have at most {MAX_GROUPS} groups, each with its role.")
    for group, role in value.items():
        if not group or role not in Role.values:
            raise ValidationError(f"Group {group!r} needs one of {', '.join(Role.values)}.")


class IdentityProvider(models.Model):
    """The OpenID Connect provider at which an organization's people sign in."""

    # Its number is in the URL that the provider calls, which is known before there is a row.
    organization = models.OneToOneField(
        Organization,
        on_delete=models.CASCADE,
        related_name="identity_provider",
        primary_key=True,
        editable=False,
    )
    issuer = models.CharField(
        max_length=255, help_text="Its URL, such as https://login.example.com/realms/acme."
    )
    client_id = models.CharField("client id", max_length=255)
    encrypted_secret = models.BinaryField(editable=False, default=b"")
    is_required = models.BooleanField(
        "required",
        default=False,
        help_text="Members with an address of the organization's domains have no other way to sign in.",
    )
    groups_claim = models.CharField(
        max_length=100,
        blank=True,
        help_text="The claim with a person's groups, such as groups. Empty: roles are given at Members.",
    )
    extra_scopes = models.CharField(
        max_length=255,
        blank=True,
        default="",
        db_default="",
        validators=[scope_names],
        help_text="Names of scopes, separated by spaces, to ask for besides openid, profile and email. Some "
        "providers send a person's groups only for a scope, such as groups.",
    )
    group_roles = models.JSONField(default=dict, blank=True, validators=[validate_group_roles])
    default_role = models.CharField(
        max_length=10,
        choices=Role.choices,
        blank=True,
        default="",
        help_text="The role of new people, and of people in none of the groups. Empty: they are refused.",
    )
    used_at = models.DateTimeField("last used", null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"identity provider of {self.organization}"

    @property
    def secret(self) -> str | None:
        """Return the client's secret; None if it was entered under another `CHATAPI_SECRET_KEY`."""
        value = decrypt(Purpose.IDENTITY_PROVIDERS, self._place, bytes(self.encrypted_secret))
        return None if value is None else value.decode()

    def enter_secret(self, secret: str) -> None:
        """Encrypt the client's secret, without saving the row."""
        self.encrypted_secret = encrypt(Purpose.IDENTITY_PROVIDERS, self._place, secret.encode())

    @property
    def _place(self) -> bytes:
        return str(self.organization_id).encode()


class EmailDomain(models.Model):
    """A domain whose addresses belong to an organization, once an operator has approved that."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="email_domains")
    domain = models.CharField(max_length=253, validators=[domain_name])
    approved_at = models.DateTimeField(null=True, blank=True, editable=False)
    joins_as = models.CharField(
        max_length=10,
        choices=Role.choices,
        blank=True,
        default="",
        help_text="The role with which people who confirm an address of it may join. Empty: they may not.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "e-mail domain"
        ordering = ["domain"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "domain"], name="domain_in_organization"),
            models.UniqueConstraint(
                fields=["domain"], condition=Q(approved_at__isnull=False), name="one_owner_of_a_domain",
                violation_error_message="This domain belongs to another organization.",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.domain} of {self.organization}"


def domain_of(address: str) -> str:
    """Return the domain of an e-mail address, in small letters; empty if it is none."""
    name, _, domain = address.rpartition("@")
    return domain.lower() if name else ""
