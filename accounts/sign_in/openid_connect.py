"""What belongs to OpenID Connect alone: a provider as django-allauth takes it, its description, its answers.

`providers.py` has the rules for answers of any protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests
from allauth.socialaccount.models import SocialApp, SocialLogin

from accounts.sign_in.fetching import BoundedSession, NotFetched
from accounts.sign_in.models import IdentityProvider, domain_of

_SCOPES = ("openid", "profile", "email")
_GOOGLE = "https://accounts.google.com"


def app_of(row: IdentityProvider, secret: str) -> SocialApp:
    """Return the provider for django-allauth, which names it by the row's number."""
    return SocialApp(
        provider="openid_connect",
        provider_id=str(row.pk),
        name=str(row.organization),
        client_id=row.client_id,
        secret=secret,
        settings={
            "server_url": row.issuer.rstrip("/"),  # as in `discovery`
            "scope": [*_SCOPES, *row.extra_scopes.split()],
        },
    )


def discovery(issuer: str) -> dict[str, Any]:
    """Return the provider's own description (OpenID Connect Discovery 1.0). Raises `NotFetched`."""
    try:
        with BoundedSession() as session:
            response = session.request("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            response.raise_for_status()
            found = response.json()
    except (requests.RequestException, ValueError) as error:
        # One text for all failures: it must not tell an owner what answers in the operator's network.
        raise NotFetched("There is no answer of an OpenID Connect provider at this URL.") from error
    if not isinstance(found, dict):
        raise NotFetched("There is no answer of an OpenID Connect provider at this URL.")
    needed = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
    missing = [each for each in needed if not str(found.get(each, "")).startswith("https://")]
    if missing:
        raise NotFetched(f"The provider does not name these endpoints by HTTPS: {', '.join(missing)}.")
    if found.get("issuer") != issuer:
        raise NotFetched(f"The provider calls itself {str(found.get('issuer'))[:200]!r}: enter that URL.")
    return found


@dataclass(frozen=True, slots=True)
class Claims:
    """The id token of a sign-in, and all claims about its person: an `Answer` of `providers.py`."""

    token: Mapping[str, Any]
    claims: Mapping[str, Any]

    @classmethod
    def of(cls, login: SocialLogin) -> "Claims | None":
        """Return the claims of the id token and of the userinfo; None if they are about two people."""
        token, info = (login.account.extra_data.get(name) or {} for name in ("id_token", "userinfo"))
        if not token.get("sub") or token.get("sub") != info.get("sub"):
            return None
        return cls(token, {**token, **info})

    @property
    def address(self) -> str:
        return str(self.claims.get("email") or "").lower()

    def is_from(self, provider: IdentityProvider) -> bool:
        """Return whether the id token is from the provider's issuer and for its client."""
        clients = self.token.get("aud")
        is_its_issuer = str(self.token.get("iss")).rstrip("/") == provider.issuer.rstrip("/")
        return is_its_issuer and provider.client_id in (
            [clients] if isinstance(clients, str) else clients or []
        )

    def doubt(self, provider: IdentityProvider) -> str | None:
        """Return why the address may not be the person's, though its domain is the provider's."""
        # Microsoft leaves this claim out; its provider belongs to the organization, as the domain does.
        if self.claims.get("email_verified", True) not in (True, "true"):
            return f"The provider has not confirmed the address {self.address}."
        # Anyone can have a private Google account with an address of any domain; `hd` is of the domain's
        # owner.
        if provider.issuer == _GOOGLE and str(self.claims.get("hd")).lower() != domain_of(self.address):
            return f"{self.address} is not an account of its domain's Google Workspace."
        return None

    def groups(self, provider: IdentityProvider) -> set[str]:
        """Return the person's groups; none if the provider's row names no claim for them."""
        named = self.claims.get(provider.groups_claim) or []
        return {named} if isinstance(named, str) else {each for each in named if isinstance(each, str)}
