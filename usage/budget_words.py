"""A budget in the words of pages, mails and errors. Each part of its key is said here, and nowhere else."""

from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

from usage.models.budget_keys import BudgetKey, Period, Scope


class BudgetWords(NamedTuple):
    """What places call one budget, or a limit of many end users."""

    kind: str
    """Its owner, such as "each end user of the project"."""
    holder: str
    """Its owner, to a client: "Your project's"."""
    length: str
    """Its period: "month" or "total"."""
    each: str
    """How often it begins anew: "each month" or "in total"."""
    now: str
    """Its current period in a sentence: "today", "this week", "this month" or "in total"."""
    current: str
    """Its current period as a label: "this day", "this month" or "total"."""
    dates: str
    """Its period by date: "on 2 November 2026", "in the week from 2 November 2026", "in November 2026" or
    "in total".
    """


EACH_PERIOD = {
    Period.MONTH: "each month",
    Period.WEEK: "each week",
    Period.DAY: "each day",
    Period.EVER: "in total",
}
_NOW = {Period.DAY: "today", Period.WEEK: "this week", Period.MONTH: "this month", Period.EVER: "in total"}
# The owner, and the owner to a client. No client meets the budget of each end user: it has no row.
_OWNERS: Mapping[Scope, tuple[str, str]] = {
    Scope.ORGANIZATION: ("organization", "Your organization's"),
    Scope.ORGANIZATION_END_USERS: ("each end user of the organization", ""),
    Scope.PROJECT: ("project", "Your project's"),
    Scope.PROJECT_END_USERS: ("each end user of the project", ""),
    Scope.API_KEY: ("key", "Your API key's"),
    Scope.END_USER: ("end user", "The end user's"),
}


def words(key: BudgetKey) -> BudgetWords:
    # All of the key is unpacked: another part must be said, too.
    scope, _, name, start = key
    period = Period(name)
    return BudgetWords(
        *_OWNERS[Scope(scope)],
        length="total" if period is Period.EVER else name,
        each=EACH_PERIOD[period],
        now=_NOW[period],
        current="total" if period is Period.EVER else f"this {name}",
        dates=_dates(period, start),
    )


def _dates(period: Period, start: date) -> str:
    match period:
        case Period.DAY:
            return f"on {start.day} {start:%B %Y}"
        case Period.WEEK:
            return f"in the week from {start.day} {start:%B %Y}"
        case Period.MONTH:
            return f"in {start:%B %Y}"
        case Period.EVER:
            return "in total"
