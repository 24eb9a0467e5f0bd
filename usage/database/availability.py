"""Tells a database that can't be used now from a statement that is wrong."""

from django.db import InterfaceError, InternalError, OperationalError

_NOT_NOW = frozenset({"25006", "25P03", "25P04"})
"""PostgreSQL's documentation, appendix A: "read_only_sql_transaction" (a full disk or an operator has made it so),
"idle_in_transaction_session_timeout" and "transaction_timeout" (we stood still). psycopg takes all of their class for mistakes of ours."""


def is_unavailable(error: BaseException) -> bool:
    """Whether the same may go well later."""
    if isinstance(error, InternalError):
        return getattr(error.__cause__, "sqlstate", None) in _NOT_NOW
    return isinstance(error, OperationalError | InterfaceError)
