"""The failures in a range: errors of requests that failed, and refused requests, in one statement."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.db.models import Count, F, IntegerField, Sum, Value

from usage.database.replica import report
from usage.insights.generation_list import NewestRequests
from usage.insights.range import Range
from usage.insights.sources import rows_of
from usage.models import RefusedRequests
from usage.models.generations import FAILED

# In the column of the status; several refusals together have 0.
_OF_ERROR = -1


class Failures(NamedTuple):
    """The most frequent first."""

    errors: list[tuple[str, int]]
    """The codes of the newest failed requests, each with its number of requests; a code may be empty."""
    refusals: list[tuple[int, str, int]]
    """The status and code of refused requests, with the number of these requests."""


@report
def failures(over: Range, newest: NewestRequests | None, refused: Mapping[str, int] | None) -> Failures:
    """Return the errors of these requests and the refusals of these owners; None: they are not wanted."""
    queries: list[Any] = []
    if newest is not None:
        rows = newest.rows.filter(outcome__in=FAILED).order_by()
        rows = rows.annotate(status=Value(_OF_ERROR, IntegerField()), code=F("error_code"))
        queries.append(rows.values_list("status", "code").annotate(times=Count("id")))
    if refused is not None:
        hours = RefusedRequests.objects.filter(hour__gte=over.start, hour__lt=over.end, **refused)
        queries.append(hours.order_by().values_list("status", "code").annotate(times=Sum("requests")))
    found = [(status, code, int(times)) for status, code, times in rows_of(queries)] if queries else []
    found.sort(key=lambda each: (-each[2], each[1]))
    return Failures(
        [(code, times) for status, code, times in found if status == _OF_ERROR],
        [each for each in found if each[0] != _OF_ERROR],
    )
