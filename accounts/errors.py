"""Errors about callers.

AccountsError
├── NotAuthenticated         the key is unknown, malformed, revoked or expired
│   ├── KeyMissing           there is no key
│   └── TokenRefused         a program's token can't be exchanged
├── TwoKeys                  two headers hold different keys
├── TooManyFailedAttempts    the key is not looked up: too many wrong keys came from its IP
├── IPNotAllowed             the key is valid but may not be used from this IP
├── CertificateRefused       the key is valid but needs another client certificate
├── SigningKeysUnavailable   the keys of a token's issuer can't be fetched now
├── PermissionDenied         the key is valid but may not do this
├── RateLimited              the key is valid but may not do this now
└── KeyChanged               the key was changed after it was read
"""

from collections.abc import Sequence
from enum import StrEnum

from accounts import limits
from accounts.limits import Limit, LimitStatus


class AccountsError(Exception):
    """The root of this package's errors."""


class KeyRefusal(StrEnum):
    """Why a key is refused. For the counts only: clients get the same refusal for all but the last three."""

    MISSING = "no_key"
    MALFORMED = "malformed_key"
    UNKNOWN = "unknown_key"
    REVOKED = "revoked_key"
    EXPIRED = "expired_key"
    DISABLED = "disabled_key"
    ROTATED = "ended_secret"
    ARCHIVED_PROJECT = "archived_project"
    INACTIVE_ORGANIZATION = "inactive_organization"
    TOO_MANY_WRONG = "too_many_wrong_keys"
    IP_NOT_ALLOWED = "ip_not_authorized"
    CERTIFICATE_REFUSED = "certificate_required"


class NotAuthenticated(AccountsError):
    """No valid key. The reason is not for clients, which get the same refusal for all."""

    def __init__(self, reason: str = KeyRefusal.UNKNOWN, api_key_id: int | None = None) -> None:
        """Store the reason, and the key's id if its secret was right once."""
        super().__init__(reason)
        self.reason, self.api_key_id = reason, api_key_id


class KeyMissing(NotAuthenticated):
    """No header that may hold a key holds one."""

    def __init__(self) -> None:
        super().__init__(KeyRefusal.MISSING)


class TokenRefused(NotAuthenticated):
    """A program's token can't be exchanged. The text is for the client, the detail for the log only."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(KeyRefusal.UNKNOWN)
        self.message, self.detail = message, detail


class SigningKeysUnavailable(AccountsError):
    """The keys of a token's issuer can't be fetched now."""


class TwoKeys(AccountsError):
    """Two headers hold different keys."""

    def __init__(self, first_header: str, second_header: str) -> None:
        super().__init__(first_header, second_header)
        self.first_header, self.second_header = first_header, second_header


class TooManyFailedAttempts(AccountsError):
    """The key was not looked up, because too many wrong keys came from its client's IP."""

    def __init__(self, retry_after_ms: int) -> None:
        again = f"Try again in {limits.duration(retry_after_ms)}."
        super().__init__(f"Too many requests with an incorrect API key came from your IP address. {again}")
        self.retry_after_ms = retry_after_ms


class IPNotAllowed(AccountsError):
    """The key is valid, but not from the client's IP. This is no attempt to guess a key."""

    def __init__(self, api_key_id: int, ip: str) -> None:
        """Store the key, and the IP that was seen; empty if none is known."""
        super().__init__(api_key_id, ip)
        self.api_key_id, self.ip = api_key_id, ip


class CertificateRefused(AccountsError):
    """The key is valid, but needs a client certificate of its organization or project, and the request has
    none that is accepted. The text says why, for the client.
    """

    def __init__(self, api_key_id: int, reason: str) -> None:
        super().__init__(reason)
        self.api_key_id = api_key_id


class PermissionDenied(AccountsError):
    """The caller is known, but may not do this."""


class KeyChanged(AccountsError):
    """The key was rotated or revoked after it was read; nothing was changed."""


class RateLimited(AccountsError):
    """A limit has no room for the request, which has taken nothing. The text is for the client."""

    def __init__(self, limit: Limit, statuses: Sequence[LimitStatus], retry_after_ms: int | None) -> None:
        """Store the limit, and the time until there can be room; None if there never will be."""
        again = "" if retry_after_ms is None else f" Try again in {limits.duration(retry_after_ms)}."
        super().__init__(f"Rate limit reached: {limit}.{again}")
        self.limit = limit
        self.statuses = statuses
        self.retry_after_ms = retry_after_ms

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the `x-ratelimit-*` headers of the refusal; the protocol adds `retry-after`."""
        return limits.headers(self.statuses, refused=self.limit)

    def tightest(self) -> list[LimitStatus]:
        """Return the limits that headers describe."""
        return limits.tightest(self.statuses, refused=self.limit)
