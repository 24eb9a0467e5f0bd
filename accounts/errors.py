"""What can go wrong about who calls.

AccountsError
├── NotAuthenticated    no key, or one that is unknown, malformed, revoked or expired
└── PermissionDenied    a good key that may not do this
"""


class AccountsError(Exception):
    """The root of this package's errors."""


class NotAuthenticated(AccountsError):
    """No valid key. The reason is for the server's log only: all refusals look the same outside."""


class PermissionDenied(AccountsError):
    """The caller is known, but may not do this."""
