"""Creates, changes and removes workload identity providers and their federation rules.

A change of what a provider or a rule accepts ends the access tokens that were issued before: a program that
is still accepted gets another one.
"""

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from accounts import keys
from accounts.models import APIKey, FederationRule, Organization, ServiceAccount, WorkloadIdentityProvider

MAX_PROVIDERS = 100
MAX_RULES = 100

# What these columns hold decides which tokens are accepted.
_DECIDING = frozenset({"issuer", "audience", "discovery_url", "jwks", "is_enabled"})


@transaction.atomic
def create(organization_id: int, **columns: Any) -> WorkloadIdentityProvider:
    """Return a new provider. Raises `ValidationError`."""
    Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
    if WorkloadIdentityProvider.objects.filter(organization=organization_id).count() >= MAX_PROVIDERS:
        raise ValidationError(f"An organization has at most {MAX_PROVIDERS} workload identity providers.")
    provider = WorkloadIdentityProvider(organization_id=organization_id, **columns)
    provider.full_clean()
    provider.save()
    return provider


@transaction.atomic
def change(provider: WorkloadIdentityProvider, **columns: Any) -> None:
    """Set these columns of a locked provider. Raises `ValidationError`."""
    changed = {name for name, value in columns.items() if getattr(provider, name) != value}
    for name in changed:
        setattr(provider, name, columns[name])
    provider.full_clean()
    provider.save()
    if changed & _DECIDING:
        keys.end_access_tokens(APIKey.objects.filter(federation_rule__provider=provider))


@transaction.atomic
def remove(provider: WorkloadIdentityProvider) -> None:
    """Remove a locked provider. Raises `ValidationError` if it has rules."""
    if provider.rules.exists():
        raise ValidationError("Delete the federation rules of this provider first.")
    provider.delete()


@transaction.atomic
def create_rule(
    provider: WorkloadIdentityProvider, account: ServiceAccount, *, key: APIKey, **columns: Any
) -> FederationRule:
    """Return a new rule of a locked provider, with its key, which is unsaved. Raises `ValidationError`."""
    if provider.rules.count() >= MAX_RULES:
        raise ValidationError(f"A provider has at most {MAX_RULES} federation rules.")
    rule = FederationRule(provider=provider, service_account=account, **columns)
    rule.full_clean(exclude=["api_key"])
    key.project, key.service_account, key.name = account.project, account, rule.name or account.name
    keys.issue_without_secret(key)
    rule.api_key = key
    rule.save()
    return rule


@transaction.atomic
def change_rule(rule: FederationRule, *, of_key: dict[str, Any], **columns: Any) -> None:
    """Set these columns of a locked rule, and of its key. Raises `ValidationError`."""
    key = APIKey.objects.select_for_update().get(pk=rule.api_key_id)
    if of_key.get("is_active") and key.revoked_at is not None:
        raise ValidationError({"enabled": "The key of this rule is revoked. Create another rule."})
    ends_tokens = key.is_active and of_key.get("is_active") is False
    matchers = columns.get("attribute_matchers", rule.attribute_matchers)
    # As text, because Python takes 1 and True for equal.
    ends_tokens |= json.dumps(matchers, sort_keys=True) != json.dumps(rule.attribute_matchers, sort_keys=True)
    for name, value in columns.items():
        setattr(rule, name, value)
    rule.full_clean()
    rule.save()
    for name, value in {**of_key, "name": rule.name or rule.service_account.name}.items():
        setattr(key, name, value)
    key.full_clean()
    key.save(update_fields=["name", *of_key])
    if ends_tokens:
        keys.end_access_tokens(APIKey.objects.filter(pk=key.pk))
    rule.api_key = key


@transaction.atomic
def remove_rule(rule: FederationRule) -> None:
    """Remove a rule and revoke its key."""
    keys.revoke(APIKey.objects.filter(pk=rule.api_key_id))
    rule.delete()
