"""Exchanges a program's token for an access token of a service account (RFC 8693).

Nothing is stored: an access token is a signed value (`api_keys.access_token`) for the key of the rule.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
from django.conf import settings
from jwt.exceptions import InvalidJTIError, InvalidSubjectError

from accounts import access, api_keys
from accounts.errors import TokenRefused
from accounts.models import FederationRule, WorkloadIdentityProvider
from accounts.workload_identity import signing_keys
from accounts.workload_identity.jwks import ALGORITHMS

MAX_TOKEN_CHARS = 16_384
MAX_LIFETIME_S = 3_600
# How far the clock of an issuer may be ahead of ours.
LEEWAY_S = 30

# One text for all that comes before a right signature: it must not tell strangers which providers there are.
_UNTRUSTED = (
    "No enabled workload identity provider with this id trusts this token. Check identity_provider_id, and "
    "the issuer and the signing keys of the provider."
)
_NO_RULE = (
    "No enabled federation rule of this provider gives the service account to a token with these claims."
)
_MALFORMED = "The subject token is no signed JWT, or a time in it is no number."
# The texts for a token with a right signature. They name no value of the provider: everybody can get a token
# of a public issuer.
_FAULTS: Mapping[type[jwt.PyJWTError], str] = {
    jwt.DecodeError: _MALFORMED,
    jwt.ExpiredSignatureError: "The subject token has expired.",
    jwt.ImmatureSignatureError: "The subject token is not valid yet. Check the clocks.",
    jwt.InvalidIssuedAtError: _MALFORMED,
    jwt.InvalidAudienceError: "The claim 'aud' of the subject token does not have the provider's audience.",
    jwt.InvalidIssuerError: "The claim 'iss' of the subject token is not the provider's issuer.",
    InvalidSubjectError: "The claim 'sub' of the subject token must be a text.",
    InvalidJTIError: "The claim 'jti' of the subject token must be a text.",
}


class AccessToken(NamedTuple):
    """An access token, and the seconds until it ends."""

    text: str
    expires_in: int


def exchange(provider_id: int, service_account_id: int, subject_token: str) -> AccessToken:
    """Return an access token. Raises `TokenRefused` or `SigningKeysUnavailable`."""
    kid, algorithm = _header(subject_token)
    # Before the provider: if that changes meanwhile, its rules' keys get other public parts than these.
    rules = _rules(provider_id, service_account_id)
    provider = WorkloadIdentityProvider.objects.filter(pk=provider_id, is_enabled=True).first()
    if provider is None:
        raise TokenRefused(_UNTRUSTED, "there is no enabled provider with this id")
    key = signing_keys.find(provider, kid, algorithm)
    if key is None:
        raise TokenRefused(_UNTRUSTED, f"provider {provider_id} has no key with this id for {algorithm}")
    claims = _claims(provider, key, algorithm, subject_token)
    rule = next((each for each in rules if each.matches(claims)), None)
    if rule is None:
        raise TokenRefused(_NO_RULE, f"provider {provider_id}: no rule for account {service_account_id}")
    now = time.time()
    ends_at = min(int(now) + MAX_LIFETIME_S, int(claims["exp"]))
    if rule.api_key.expires_at is not None:
        ends_at = min(ends_at, int(rule.api_key.expires_at.timestamp()))
    if ends_at <= now:
        raise TokenRefused(_FAULTS[jwt.ExpiredSignatureError])
    text = api_keys.access_token(rule.api_key.public, ends_at, settings.KEY_PEPPER)
    return AccessToken(text, max(1, int(ends_at - now)))


def _header(subject_token: str) -> tuple[str | None, str]:
    """Return the key's id and the algorithm that the token names."""
    try:
        header = jwt.get_unverified_header(subject_token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise TokenRefused(_MALFORMED) from None
    if "crit" in header:  # such as a payload outside of the token, of which PyJWT complains later
        raise TokenRefused(_MALFORMED)
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefused(f"The subject token must be signed by one of {', '.join(ALGORITHMS)}.")
    return kid, algorithm


def _claims(
    provider: WorkloadIdentityProvider, key: jwt.PyJWK, algorithm: str, subject_token: str
) -> dict[str, Any]:
    """Return the claims of the token, if the provider trusts it. Raises `TokenRefused`."""
    try:
        return jwt.decode(
            subject_token,
            key,
            algorithms=[algorithm],
            audience=provider.audience,
            issuer=provider.issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
        )
    except jwt.MissingRequiredClaimError as error:
        raise TokenRefused(f"The subject token lacks the claim '{error.claim}'.") from None
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
        detail = f"provider {provider.pk}: {type(error).__name__}"
        raise TokenRefused(_FAULTS.get(type(error), _UNTRUSTED), detail) from None  # type: ignore[arg-type]


def _rules(provider_id: int, service_account_id: int) -> list[FederationRule]:
    """Return the enabled rules for the service account, the oldest first."""
    usable = access.usable_keys().values("pk")
    rules = FederationRule.objects.filter(
        provider=provider_id, service_account=service_account_id, api_key__in=usable
    )
    return list(rules.select_related("api_key").order_by("pk"))
