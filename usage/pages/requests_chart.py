"""The small chart above a list of requests: how many finished in each hour or day, and how many failed."""

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from usage.formatting import count
from usage.insights import Range, RequestFilters
from usage.insights.request_columns import request_columns
from usage.models.generations import ANY_ERROR, FAILED
from usage.pages.filters import words
from usage.pages.overview import bucket_in
from usage.pages.requests_form import RequestsForm
from usage.pages.trends import Layer, Trend, draw
from usage.rollups import closed_days

# The days of a list without a range, as on Usage.
_DAYS = 7
# So that the page stays below 150 kB; two days have their hours.
_MAX_COLUMNS = 48


@dataclass(frozen=True, slots=True)
class RequestsChart:
    """The chart, and the time of the oldest request that it counts if it has the newest requests only."""

    trend: Trend
    unit: str
    """What a column is, such as "day" or "3 days"."""
    since: datetime | None


def requests_chart(form: RequestsForm, filters: RequestFilters) -> RequestsChart | None:
    """Return the chart of the form's range and filters, which are given; None for a search of one id."""
    if filters.id is not None:
        return None
    over = form.over or Range.last(_DAYS, timezone.now(), form.reader_time_zone, "day")
    with closed_days.read_once(over.start, over.end):
        found = request_columns(over, filters)
    starts = over.starts()
    step = -(-len(starts) // _MAX_COLUMNS)
    edges = starts[::step]
    buckets = [
        bucket_in(over, start, end, form.settled_url, is_of_requests=filters.of_rollups is None)
        for start, end in zip(edges, [*edges[1:], over.end], strict=True)
    ]
    requests, failed = (
        [sum(numbers[at : at + step]) for at in range(0, len(numbers), step)]
        for numbers in zip(*found.counts, strict=True)
    )
    whole = count(sum(requests))
    if (outcome := filters.outcome) is not None:
        colour = "colour-bad" if outcome in (ANY_ERROR, *FAILED) else "colour-0"
        layers = [Layer(words(outcome), colour, requests)]
    else:
        layers = [Layer("all", "colour-0", requests), Layer("failed", "colour-bad", failed)]
        whole += f", {count(sum(failed))} failed"
    unit = over.bucket if step == 1 else f"{step} {over.bucket}s"
    title = f"Requests by {unit}" + ("" if form.over else f", last {_DAYS} days")
    return RequestsChart(draw(title, whole, buckets, layers, count), unit, found.since)
