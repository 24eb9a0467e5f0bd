"""Which errors say that the database is away or serves nobody now, and not that a statement was wrong: it may
be asked again.
"""

from django.db import Error, InterfaceError, OperationalError

READ_ONLY, IDLE_TOO_LONG, TRANSACTION_TOO_LONG = "25006", "25P03", "25P04"
"""PostgreSQL's documentation, appendix A. A standby, or a server that was made read-only because its disk is
full; and what a process finds that stood still in a transaction. psycopg takes them for internal errors, as
it does those of wrong statements.
"""


def is_away(error: Exception) -> bool:
    """Whether it is one of Django's that says so."""
    if isinstance(error, OperationalError | InterfaceError):
        return True
    return isinstance(error, Error) and sqlstate(error) in {READ_ONLY, IDLE_TOO_LONG, TRANSACTION_TOO_LONG}


def sqlstate(error: Error) -> str | None:
    """PostgreSQL's code of the error; None of SQLite's."""
    return getattr(error.__cause__, "sqlstate", None)
