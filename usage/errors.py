"""Errors about money.

UsageError
├── BudgetExceeded        a budget or the credit has no room; `is_in_flight`: running requests hold the rest
├── NotPriced             the model has no price, so it is not served
├── AlreadyAdmitted       the idempotency key stands for an existing generation
├── AlreadyResolved       the generation is settled, or another fence holds it
├── NotBooked             a grant, refund or correction cannot be booked, and why
├── NotDropped            generations cannot be dropped, or not yet, and why
├── Dropped               the operation needs generations that were dropped
├── StripeUnavailable     Stripe does not answer now; whether it did what was asked is unknown
├── StripeRefused         Stripe did not do what was asked, and would refuse it again
└── DatabaseUnavailable   the database did not answer; a write may have been committed, if its reply was lost
"""

from sqlite3 import SQLITE_ERROR
from typing import TYPE_CHECKING
from uuid import UUID

from django.db import Error, InterfaceError, OperationalError

if TYPE_CHECKING:
    from usage.models.budget_keys import BudgetKey


class UsageError(Exception):
    """The root of this package's errors."""


class BudgetExceeded(UsageError):
    """A budget has no room for what the request could cost.

    `is_in_flight`: the request would fit if running requests released their holds, so a retry may succeed.
    `is_credit`: the prepaid credit refuses, not a limit. `needed_nanodollars` is the most that the request
    can cost, `left_nanodollars` what the budget has beside its spending. The budget's days are those of the
    `time_zone`.
    """

    def __init__(
        self,
        budget: "BudgetKey",
        *,
        needed_nanodollars: int,
        left_nanodollars: int,
        time_zone: str,
        is_in_flight: bool,
        is_credit: bool = False,
    ) -> None:
        super().__init__(str(budget))
        self.budget = budget
        self.needed_nanodollars = needed_nanodollars
        self.left_nanodollars = left_nanodollars
        self.time_zone = time_zone
        self.is_in_flight = is_in_flight
        self.is_credit = is_credit


class NotPriced(UsageError):
    """The model has no price in effect: no price, no service."""


class AlreadyAdmitted(UsageError):
    """The idempotency key stands for another generation; `is_same_request` if its request was the same."""

    def __init__(self, generation_id: UUID, *, is_same_request: bool) -> None:
        super().__init__(generation_id.hex)
        self.generation_id = generation_id
        self.is_same_request = is_same_request


class AlreadyResolved(UsageError):
    """The generation is settled, or was taken over with a newer fence."""


class NotBooked(UsageError):
    """A grant, refund or correction can't be booked; the text says why, to the person who booked it."""


class NotDropped(UsageError):
    """Generations cannot be dropped, or not yet; the text says why and is shown to the operator."""


class Dropped(UsageError):
    """Generations that are needed were exported and dropped; the text says which are kept."""


class StripeUnavailable(UsageError):
    """Stripe did not answer, or reported a fault of its own; it may have carried out the request."""


class StripeRefused(UsageError):
    """Stripe refused the request as wrong; the text is Stripe's."""


class DatabaseUnavailable(UsageError):
    """The database could not be reached or did not answer in time.

    A write may have been committed all the same, if only its reply was lost.
    """


# From PostgreSQL's documentation, appendix A. The server is a standby or was made read-only because its disk
# is full, or it ended a transaction that stood still. psycopg reports these as internal errors.
READ_ONLY, IDLE_TOO_LONG, TRANSACTION_TOO_LONG = "25006", "25P03", "25P04"


def is_unavailable(error: Exception) -> bool:
    """Return whether the error means that the database cannot serve now and the statement may succeed later;
    otherwise the statement itself was wrong.
    """
    if isinstance(error, OperationalError | InterfaceError):
        # SQLite's code for a wrong statement, such as one with an unknown column.
        return getattr(error.__cause__, "sqlite_errorcode", None) != SQLITE_ERROR
    return isinstance(error, Error) and sqlstate(error) in {READ_ONLY, IDLE_TOO_LONG, TRANSACTION_TOO_LONG}


def sqlstate(error: Error) -> str | None:
    """Return PostgreSQL's code of the error; None on SQLite."""
    return getattr(error.__cause__, "sqlstate", None)
