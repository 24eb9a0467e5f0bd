"""Which days of a range are closed, that is over and added up by `closing.py`, and which hours are left.

Reports of weeks and months read the rows of closed days and, for everything else, the hours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta

from django.db.models import QuerySet

from usage.database import replica
from usage.models import ClosedDay, Dimension
from usage.pricing import TOKEN_COLUMNS

DAY = timedelta(days=1)
COLUMNS: dict[Dimension, str] = {
    Dimension.ORGANIZATION: "organization_id",
    Dimension.PROJECT: "project_id",
    Dimension.KEY: "api_key_id",
    Dimension.MODEL: "model",
    Dimension.OUTCOME: "outcome",
}
GROUP = tuple(COLUMNS.values())
SUMS = ("requests", *TOKEN_COLUMNS, "amount_nanodollars")


@dataclass(frozen=True, slots=True)
class Spans:
    """A range as runs of closed days and, for the rest, spans of time. Every end is exclusive."""

    closed: list[tuple[date, date]]
    open: list[tuple[datetime, datetime]]


def spans(start: datetime, end: datetime) -> Spans:
    """Return the runs of closed days that lie in the range as a whole, and the spans between them."""
    # In UTC: times of one zone are compared by its clock, which may show the end before the start.
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    runs: list[tuple[date, date]] = []
    rest: list[tuple[datetime, datetime]] = []
    reached = start
    for day in _between(start, end):
        if reached < midnight(day):
            rest.append((reached, midnight(day)))
        if runs and runs[-1][1] == day:
            runs[-1] = (runs[-1][0], day + DAY)
        else:
            runs.append((day, day + DAY))
        reached = midnight(day + DAY)
    if reached < end:
        rest.append((reached, end))
    return Spans(runs, rest)


@contextmanager
def read_once(start: datetime, end: datetime, days: list[date] | None = None) -> Iterator[None]:
    """Read the closed days of this time once, for all spans within it that this thread asks for inside;
    never, if they are given.
    """
    known = {} if days is None else {replica.alias(): days}
    token = _known.set(_Known(start.astimezone(UTC), end.astimezone(UTC), known))
    try:
        yield
    finally:
        _known.reset(token)


@dataclass(frozen=True, slots=True)
class _Known:
    start: datetime
    end: datetime
    days: dict[str, list[date]] = field(default_factory=dict)
    """The closed days by database: a replica may not have the rows of the last day yet."""


_known: ContextVar[_Known | None] = ContextVar("closed_days", default=None)


def _between(start: datetime, end: datetime) -> list[date]:
    """Return the closed days that lie between the two as a whole, in order."""
    known = _known.get()
    if known is None or start < known.start or known.end < end:
        return _read(start, end)
    database = replica.alias()
    if database not in known.days:
        known.days[database] = _read(known.start, known.end)
    return [day for day in known.days[database] if start <= midnight(day) and day < end.date()]


def _read(start: datetime, end: datetime) -> list[date]:
    return list(closed_between(start, end).order_by("day").values_list("day", flat=True))


def closed_between(start: datetime, end: datetime) -> QuerySet[ClosedDay]:
    """Return the closed days that lie between the two, which are in UTC, as a whole."""
    # A closed day without counts of first tokens is an older version's that has not finished it.
    return ClosedDay.objects.filter(
        has_first_tokens=True, day__gt=(start - timedelta.resolution).date(), day__lt=end.date()
    )


def midnight(day: date) -> datetime:
    """Return the moment in UTC at which the day begins."""
    return datetime.combine(day, time(), UTC)
