"""Days that are over, added up from their hours: what reports of weeks and months read instead of the hours.

A day of UTC is closed `GRACE` after its end, in a transaction that waits for those who write hours and keeps
new ones out. From then on its rows of `DailyUsage` and `DailyTotals` are the sums of its hours, always: the
moment that a settlement counts in is read when its transaction begins, so it can write an hour that is over;
if that hour's day is closed, a trigger reopens the day in the same transaction, readers turn to its hours,
and it is closed anew later. A day that is closed before its end, because the clock was fast for a while, is
reopened by whoever closes days next. Settlements themselves know nothing of days.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

from django.db import OperationalError, connection, transaction
from django.db.models import Min, OuterRef, QuerySet, Subquery

from accounts.models import Organization
from usage.database.clock import database_now
from usage.database.sql import db_value, execute
from usage.models import ClosedDay, Dimension, HourlyUsage
from usage.models.outcomes import FAILED

log = logging.getLogger(__name__)

GRACE = timedelta(hours=1)
"""The trigger looks at hours only that have been over for so long (migration 0005): to it this is two hours
after they began.
"""
DAY = timedelta(days=1)
GROUP = ("organization_id", "project_id", "api_key_id", "model", "outcome")
SUMS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "amount_nanodollars",
)
COLUMNS: dict[Dimension, str] = {
    Dimension.ORGANIZATION: "organization_id",
    Dimension.PROJECT: "project_id",
    Dimension.KEY: "api_key_id",
    Dimension.MODEL: "model",
    Dimension.OUTCOME: "outcome",
}


@dataclass(frozen=True, slots=True)
class Spans:
    """How a range is covered: by runs of closed days, from the first up to and not including the last, and by
    hours for the rest.
    """

    closed: list[tuple[date, date]]
    open: list[tuple[datetime, datetime]]


def spans(start: datetime, end: datetime, among: QuerySet[ClosedDay] | None = None) -> Spans:
    """The runs of closed days (or of some `among` them) that lie in the range as a whole, and what is left of
    it.
    """
    start, end = start.astimezone(UTC), end.astimezone(UTC)  # a zone's clock may say that the end comes first
    first, last = -(-(start - _EPOCH) // DAY), (end - _EPOCH) // DAY
    closed = ClosedDay.objects.all() if among is None else among
    rows = closed.filter(day__gte=_day(first), day__lt=_day(max(first, last)))
    runs = _runs(rows.order_by("day").values_list("day", flat=True))
    edges = [(start, start), *((midnight(a), midnight(b)) for a, b in runs), (end, end)]
    return Spans(runs, [(before, after) for (_, before), (after, _) in pairwise(edges) if before < after])


def midnight(day: date) -> datetime:
    """The moment in UTC at which the day begins."""
    return datetime.combine(day, time(), UTC)


def close_next() -> date | None:
    """Close the oldest day that can be closed; None when there is none, or when someone writes for long just
    now.

    For each reaper to call at any time, outside of transactions: of two at once, one closes.
    """
    now = database_now()
    _reopen(now)
    day = next(_closable(now), None)
    if day is None:
        return None
    try:
        with transaction.atomic():
            _lock()
            if not ClosedDay.objects.filter(day=day).exists():
                _add_up(day, day + DAY)
    except OperationalError as error:
        log.info("%s is not closed this time: %s", day, error)
        return None
    return day


def close_all(now: datetime) -> None:
    """Close all days that can be closed; in a transaction that keeps those out who write hours."""
    for first, last in _runs(_closable(now)):
        _add_up(first, last)


def _closable(now: datetime) -> Iterator[date]:
    """The days that are over and not closed, the oldest first; also those on which nobody used anything."""
    first_hour = HourlyUsage.objects.filter(organization=OuterRef("pk")).order_by("hour").values("hour")[:1]
    first = Organization.objects.annotate(first_hour=Subquery(first_hour)).aggregate(first=Min("first_hour"))[
        "first"
    ]
    if first is None:
        return
    closed = set(ClosedDay.objects.values_list("day", flat=True))
    day, end = first.date(), _first_open(now)
    while day < end:
        if day not in closed:
            yield day
        day += DAY


def _first_open(now: datetime) -> date:
    """The day that is not over, or not for long enough: it and all later ones stay open."""
    return (now - GRACE).astimezone(UTC).date()


def _reopen(now: datetime) -> None:
    """What was closed while the clock was fast: to the trigger the hours of these days are too young to be in
    a closed day.
    """
    too_early = ClosedDay.objects.filter(day__gte=_first_open(now))
    if days := [
        f"{row}" for row in too_early
    ]:  # asked first, because a statement that deletes has to wait for SQLite's writers
        log.warning("closed too early, by a clock that was fast, and open again: %s", ", ".join(days))
        too_early.delete()


def _runs(days: Iterable[date]) -> list[tuple[date, date]]:
    """Days in their order, as runs without a gap: the first day of each, and the day after its last."""
    runs: list[tuple[date, date]] = []
    for day in days:
        if runs and runs[-1][1] == day:
            runs[-1] = (runs[-1][0], day + DAY)
        else:
            runs.append((day, day + DAY))
    return runs


def _lock() -> None:
    """Wait for those who write hours, a tenth of a second at most, and keep new ones out; on SQLite we are
    alone already.
    """
    if connection.vendor == "postgresql":
        execute("SET LOCAL lock_timeout = '100ms'", [])
        execute("LOCK TABLE usage_hourlyusage IN SHARE ROW EXCLUSIVE MODE", [])


def _add_up(first: date, last: date) -> None:
    """Make the rows of these days, the last one not included, and mark them as closed."""
    days = [db_value(first), db_value(last)]
    every = "organization_id IN (SELECT id FROM accounts_organization)"  # the index begins with it
    execute(f"DELETE FROM usage_dailyusage WHERE {every} AND day >= %s AND day < %s", days)  # noqa: S608  the text is ours
    group, sums = ", ".join(GROUP), ", ".join(f"SUM({name})" for name in SUMS)
    execute(
        f"""INSERT INTO usage_dailyusage ({group}, day, {", ".join(SUMS)})
        SELECT {group}, {_DAY_OF_HOUR[connection.vendor]} AS of_hour, {sums} FROM usage_hourlyusage
        WHERE {every} AND hour >= %s AND hour < %s GROUP BY {group}, of_hour""",  # noqa: S608
        [db_value(midnight(first)), db_value(midnight(last))],
    )
    for dimension in Dimension:
        _add_up_dimension(dimension, days)
    rows = [ClosedDay(day=first + number * DAY) for number in range((last - first).days)]
    ClosedDay.objects.bulk_create(rows, batch_size=500)


def _add_up_dimension(dimension: Dimension, days: Sequence[object]) -> None:
    execute(
        "DELETE FROM usage_dailytotals WHERE dimension = %s AND day >= %s AND day < %s",
        [dimension.value, *days],
    )
    outcomes = ", ".join(f"'{outcome.value}'" for outcome in FAILED)
    failed = f"SUM(CASE WHEN outcome IN ({outcomes}) THEN requests ELSE 0 END)"
    member, sums = COLUMNS[dimension], ", ".join(f"SUM({name})" for name in SUMS)
    execute(
        f"""INSERT INTO usage_dailytotals (dimension, member, day, failed_requests, {", ".join(SUMS)})
        SELECT '{dimension.value}', CAST({member} AS VARCHAR(128)), day, {failed}, {sums}
        FROM usage_dailyusage WHERE organization_id IN (SELECT id FROM accounts_organization) AND day >= %s AND day < %s
        GROUP BY {member}, day""",  # noqa: S608
        days,
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_OF_HOUR = {
    # SQLite keeps times as text.
    "sqlite": "substr(hour, 1, 10)",
    "postgresql": "CAST(hour AT TIME ZONE 'UTC' AS date)",
}


def _day(number: int) -> date:
    return (_EPOCH + number * DAY).date()
