"""How the organization's own requests to a model went in the last days: how many there were, how many failed,
and how fast they were.

They are those of live keys: whatever model a test key names, the sandbox answers.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from django.http import HttpRequest, QueryDict

from accounts import access
from chatapi.console.filters import scoped
from chatapi.console.offers import Offer
from chatapi.console.speed_charts import Column, Row, charts, table
from chatapi.console.tenancy import Console
from chatapi.console.usage_page import SUMS_PAGE
from usage import insights
from usage.formatting import count, duration, share
from usage.insights import Totals
from usage.insights.speed import Speed, speeds
from usage.models.generations import ANY_ERROR
from usage.pages.links import Pages
from usage.pages.overview import bucket_of
from usage.pages.overview_form import OverviewForm
from usage.pages.row_links import rows_url
from usage.pages.trends import Trend
from usage.rollups import closed_days

DAYS = 7


class Figure(NamedTuple):
    """A number of all days together, the URL of its requests if it counts them, and a note."""

    title: str
    value: str
    url: str
    note: str


@dataclass(frozen=True, slots=True)
class Measures:
    """What a model's page shows of its requests; without any, the figures are empty."""

    form: OverviewForm
    figures: list[Figure]
    trends: list[Trend]
    rows: list[Row]
    usage_url: str


def measures(request: HttpRequest, console: Console, offer: Offer) -> Measures:
    """Return the measures of the model's requests, of the chosen project if there is one."""
    form = _form(request, console, offer.id)
    starts = form.over.starts()
    spans = list(zip(starts, [*starts[1:], form.over.end], strict=True))
    with closed_days.read_once(form.over.start, form.over.end):
        points = insights.series_beside(replace(form.chart, group_by=None), []).points
    whole = sum((point.totals for point in points), Totals())
    usage_url = form.link("usage", form.query)
    if not whole.requests:
        return Measures(form, [], [], [], usage_url)
    found = speeds(spans, form.filters, "model", {offer.id})
    columns = [Column(point.totals, speed) for point, speed in zip(points, found.columns, strict=True)]
    trends = charts([bucket_of(form, *span) for span in spans], columns, whole)
    # Without output there is no first token.
    titles = ("Requests", "Time to first token") if offer.has_output else ("Requests", "Duration")
    shown = [trend for trend in trends if trend.title in titles]
    figures = _figures(form, offer, whole, found.groups.get(offer.id, Speed()))
    return Measures(form, figures, shown, table(shown), usage_url)


def _form(request: HttpRequest, console: Console, model: str) -> OverviewForm:
    """Return the form of Usage with the model, the days and the chosen project."""

    def of_model(query: QueryDict, person: access.Person, pages: Pages) -> OverviewForm:
        own = QueryDict(mutable=True)
        own["organization"] = str(console.organization.pk)
        own.update({"model": model, "key_kind": "live", "days": str(DAYS)})
        if console.project is not None:
            own["project"] = str(console.project.pk)
        return OverviewForm(own, person, pages, SUMS_PAGE)

    form = scoped(of_model, request, console)
    assert form.is_valid(), form.mistake
    return form


def _figures(form: OverviewForm, offer: Offer, whole: Totals, speed: Speed) -> list[Figure]:
    failed, requests = whole.failed_requests, whole.requests
    rate = speed.tokens_per_second
    figures = [
        Figure("Requests", count(requests), rows_url(form), f"{requests:,} with live keys"),
        Figure(
            "Failed",
            share(failed, requests),
            rows_url(form, outcome=ANY_ERROR),
            f"{failed:,} of {requests:,} requests",
        ),
    ]
    if offer.has_output:
        figures += [
            Figure("Time to first token", *_percentiles(speed.first_p50_ms, speed.first_p95_ms)),
            Figure("Tokens per second", "–" if rate is None else f"{rate:.1f}", "", "p50"),
        ]
    return [*figures, Figure("Duration", *_percentiles(speed.duration_p50_ms, speed.duration_p95_ms))]


def _percentiles(p50: int | None, p95: int | None) -> tuple[str, str, str]:
    return duration(p50), "", f"p50; p95 {duration(p95)}"
