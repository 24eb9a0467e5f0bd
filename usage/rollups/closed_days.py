"""Which days of a range are closed, that is over and added up by `closing.py`, and which hours are left.

Reports of weeks and months read the rows of closed days and, for everything else, the hours.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from usage.models import ClosedDay, Dimension

DAY = timedelta(days=1)
COLUMNS: dict[Dimension, str] = {
    Dimension.ORGANIZATION: "organization_id",
    Dimension.PROJECT: "project_id",
    Dimension.KEY: "api_key_id",
    Dimension.MODEL: "model",
    Dimension.OUTCOME: "outcome",
}
GROUP = tuple(COLUMNS.values())
SUMS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "amount_nanodollars",
)


@dataclass(frozen=True, slots=True)
class Spans:
    """A range as runs of closed days and, for the rest, spans of time. Every end is exclusive."""

    closed: list[tuple[date, date]]
    open: list[tuple[datetime, datetime]]


def spans(start: datetime, end: datetime) -> Spans:
    """Return the runs of closed days that lie in the range as a whole, and the spans between them."""
    # In UTC: times of one zone are compared by its clock, which may show the end before the start.
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    # A closed day without counts of first tokens is an older version's that has not finished it.
    days = ClosedDay.objects.filter(
        has_first_tokens=True, day__gt=(start - timedelta.resolution).date(), day__lt=end.date()
    )
    runs: list[tuple[date, date]] = []
    rest: list[tuple[datetime, datetime]] = []
    reached = start
    for day in days.order_by("day").values_list("day", flat=True):
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


def midnight(day: date) -> datetime:
    """Return the moment in UTC at which the day begins."""
    return datetime.combine(day, time(), UTC)
