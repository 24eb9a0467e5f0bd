"""One organization's usage by UTC day and end user: the reads of the usage API that name each end user.

A day may have a million end users, so a page is a bounded number of rows in the order of their index, and the
next page continues after its last end user, also in the middle of a day.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from django.db.models.fields.tuple_lookups import TupleGreaterThan

from usage.database.replica import report
from usage.insights.buckets import NUMBERS, WIDTHS, Bucket, BucketQuery, Sums
from usage.models import DailyEndUserUsage
from usage.rollups import closed_days

MAX_ROWS = 10_000
"""The most rows that one page reads, including those that it filters out."""


class Place(NamedTuple):
    """An end user's place on a day, in the order of pages."""

    project_id: int
    end_user_id: int


class Page(NamedTuple):
    """The days from the start to the last one that was reached."""

    buckets: list[Bucket]
    after: Place | None
    """The last end user of the last day if that day continues on the next page, else None."""


class _Row(NamedTuple):
    day: date
    project_id: int
    end_user_id: int
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    completion_tokens: int
    amount_nanodollars: int


@report
def page(query: BucketQuery, after: Place | None = None) -> Page:
    """Return the page that begins with the query's first day, or there after that end user."""
    rows, is_cut = _rows(query, after), False
    if len(rows) > MAX_ROWS:
        # All of an end user's models of a day are in one answer, so the last end user waits for the next.
        last = rows[-1][:3]
        rows, is_cut = [row for row in rows if row[:3] != last], True
    sums: defaultdict[date, list[Sums]] = defaultdict(list)
    for day, found in groupby(rows, key=attrgetter("day")):
        sums[day].extend(_added_up((row for row in found if _fits(row, query)), query.group_by))
    end = closed_days.midnight(rows[-1].day + timedelta(days=1)) if is_cut else query.end
    starts = [query.start + number * WIDTHS["day"] for number in range((end - query.start).days)]
    found_days = [Bucket(start, start + WIDTHS["day"], sums[start.date()]) for start in starts]
    return Page(found_days, Place(*rows[-1][1:3]) if is_cut else None)


def _rows(query: BucketQuery, after: Place | None) -> list[_Row]:
    """Return the rows of a page, and one more if there are more.

    Filters are applied to what was read: the database would read on until it finds enough rows that match.
    """
    first, end = query.start.date(), query.end.date()
    rows = DailyEndUserUsage.objects.filter(
        organization_id=query.organization_id, day__gte=first, day__lt=end
    )
    if after is not None:
        place = ("day", "project_id", "end_user_id")
        rows = rows.filter(TupleGreaterThan(place, (first, *after)))
    rows = rows.order_by("day", "project_id", "end_user_id", "model")
    return [_Row(*row) for row in rows.values_list(*_Row._fields)[: MAX_ROWS + 1]]


def _fits(row: _Row, query: BucketQuery) -> bool:
    is_of_project = query.project_ids is None or row.project_id in query.project_ids
    is_of_model = query.models is None or row.model in query.models
    return is_of_project and is_of_model and row.model not in query.but_models


def _added_up(rows: Iterator[_Row], group_by: tuple[str, ...]) -> list[Sums]:
    """Return the sums of the groups of one day; each has its end user."""
    numbers: defaultdict[tuple[object, ...], list[int]] = defaultdict(lambda: [0] * len(NUMBERS))
    for row in rows:
        sums = numbers[tuple(getattr(row, column) for column in group_by)]
        for at, name in enumerate(NUMBERS):
            sums[at] += getattr(row, name)
    return [
        Sums(dict(zip(group_by, group, strict=True)), **dict(zip(NUMBERS, sums, strict=True)))
        for group, sums in numbers.items()
    ]
