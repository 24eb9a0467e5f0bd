"""Workload identity: issuers of programs' tokens, and the rules that give programs a service account."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models

from accounts.models.keys import APIKey
from accounts.models.organizations import Organization, ServiceAccount, identifier

MAX_MATCHERS = 20
MAX_CLAIM_CHARS = 1_000

https_url = RegexValidator(
    r"^https://[^\s/?#@]+(/[^\s?#]*)?\Z", "Use a URL that begins with https://, without a query."
)


def validate_matchers(matchers: object) -> None:
    """Raise `ValidationError` unless it has a text, a number or a boolean for each of 1 to 20 claims."""
    if not isinstance(matchers, dict) or not 1 <= len(matchers) <= MAX_MATCHERS:
        raise ValidationError(
            f"Name 1 to {MAX_MATCHERS} claims with their values; without any, every token would match."
        )
    for claim, value in matchers.items():
        if not 1 <= len(claim) <= MAX_CLAIM_CHARS or not isinstance(value, str | bool | int | float):
            raise ValidationError(f"The value of {claim[:100]!r} must be a text, a number or a boolean.")
        if isinstance(value, str) and len(value) > MAX_CLAIM_CHARS:
            raise ValidationError(f"The value of {claim[:100]!r} has more than {MAX_CLAIM_CHARS} characters.")


class WorkloadIdentityProvider(models.Model):
    """An issuer of OpenID Connect tokens whose programs may use service accounts, as its rules say."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="workload_identity_providers"
    )
    name = models.CharField(max_length=100, validators=[identifier])
    description = models.CharField(max_length=500, blank=True, default="")
    issuer = models.CharField(max_length=255, validators=[https_url])
    audience = models.CharField(max_length=255)
    discovery_url = models.CharField(
        max_length=500,
        blank=True,
        default="",
        validators=[https_url],
        help_text="Empty: the well-known URL of the issuer.",
    )
    jwks = models.JSONField(
        "JWKS", null=True, blank=True, help_text="Its public keys, if they are not fetched from the issuer."
    )
    is_enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"


class FederationRule(models.Model):
    """Tokens with these claims may be exchanged for access tokens of a service account.

    Its key stands for all of these tokens: in usage, limits and budgets. The key's scopes are the rule's
    permissions, and a disabled or revoked key disables the rule.
    """

    provider = models.ForeignKey(WorkloadIdentityProvider, on_delete=models.PROTECT, related_name="rules")
    service_account = models.ForeignKey(
        ServiceAccount, on_delete=models.CASCADE, related_name="federation_rules"
    )
    api_key = models.OneToOneField(APIKey, on_delete=models.CASCADE, related_name="federation_rule")
    name = models.CharField(max_length=100, blank=True, default="", validators=[identifier])
    description = models.CharField(max_length=500, blank=True, default="")
    attribute_matchers = models.JSONField(validators=[validate_matchers])
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.provider} / {self.name or self.service_account.name}"

    @property
    def is_enabled(self) -> bool:
        return self.api_key.is_active and self.api_key.revoked_at is None

    def matches(self, claims: dict[str, Any]) -> bool:
        """Return whether the token's claims have all values of this rule."""
        return all(
            claim in claims and _is_same(value, claims[claim])
            for claim, value in self.attribute_matchers.items()
        )


def _is_same(value: object, claim: object) -> bool:
    """Compare JSON values: 1 is 1.0, but neither true nor "1"."""
    if isinstance(value, bool) or isinstance(claim, bool):
        return value is claim
    return isinstance(claim, str | int | float) and value == claim
