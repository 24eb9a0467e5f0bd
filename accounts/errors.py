"""What can go wrong about who calls.

AccountsError
├── NotAuthenticated         a key that is unknown, malformed, revoked or expired
│   └── KeyMissing           no key at all
├── TooManyFailedAttempts    a key that is not looked up: too many wrong ones came from that address
├── PermissionDenied         a good key that may not do this
├── RateLimited              a good key that may not do this now
└── KeyChanged               a key that is not what it was when someone decided to change it
"""

from collections.abc import Sequence

from accounts import limits
from accounts.limits import Limit, LimitStatus


class AccountsError(Exception):
    """The root of this package's errors."""


class NotAuthenticated(AccountsError):
    """No valid key. The reason is for the server's log only: all refusals of a key look the same outside."""


class KeyMissing(NotAuthenticated):
    """No `Authorization: Bearer <key>` was sent."""


class TooManyFailedAttempts(AccountsError):
    """Nobody knows whether the key is good: too many that were not came from its client's address."""

    def __init__(self, retry_after_ms: int) -> None:
        """`retry_after_ms`: when keys from there are looked up again."""
        again = f"Try again in {limits.duration(retry_after_ms)}."
        super().__init__(f"Too many requests with an incorrect API key came from your address. {again}")
        self.retry_after_ms = retry_after_ms


class PermissionDenied(AccountsError):
    """The caller is known, but may not do this."""


class KeyChanged(AccountsError):
    """The key was rotated or revoked meanwhile: nothing was changed."""


class RateLimited(AccountsError):
    """A limit has no room for the request, which has taken nothing; its text is for the client."""

    def __init__(self, limit: Limit, statuses: Sequence[LimitStatus], retry_after_ms: int | None) -> None:
        """`retry_after_ms`: when there can be room; None when there will never be."""
        again = "" if retry_after_ms is None else f" Try again in {limits.duration(retry_after_ms)}."
        super().__init__(f"Rate limit reached: {limit}.{again}")
        self.limit = limit
        self.statuses = statuses
        self.retry_after_ms = retry_after_ms

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The `x-ratelimit-*` headers of the refusal; `retry-after` goes with the answer's own form."""
        return limits.headers(self.statuses, refused=self.limit)
