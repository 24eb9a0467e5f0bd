"""Usage: requests, failures and speed over time, and the errors and refusals behind the failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from chatapi.console.filters import offer_filters, scoped, without_mistakes
from chatapi.console.overview import MAX_COLUMNS
from chatapi.console.speed_charts import Column, charts, table
from chatapi.console.start import has_requests
from chatapi.console.tenancy import Console, page, render
from usage import insights
from usage.formatting import rate
from usage.insights import Percentiles, Point, Range, Series, SumsSpec, Totals
from usage.insights.failures import failures
from usage.insights.first_tokens import Reading, weighed
from usage.insights.generation_list import SEARCHED
from usage.insights.speed import Speed, Speeds, is_searched, parts_of, speeds
from usage.models.generations import ANY_ERROR
from usage.pages import exports
from usage.pages.all_groups import all_groups
from usage.pages.overview import bucket_of, chart_of
from usage.pages.overview_form import OverviewForm, SumsPage
from usage.pages.row_links import pair_of, rows_query, rows_url
from usage.rollups import closed_days

# Keeps the page below 150 kB when it has a chart of groups beside the others; a month has its days.
MAX_GROUPED_COLUMNS = 31
PARTS = {1: "column", 2: "half of a column", 4: "quarter of a column"}
SUMS_PAGE = SumsPage("usage", usual_group="", usual_measure="requests", is_about_failures=True)


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group, the URL that narrows the page to it (empty if none does), its sums and its speed."""

    label: str
    url: str
    totals: Totals
    error_rate: str
    speed: Speed


@require_safe
@page("usage.view_hourlyusage", keeps_to_projects=True)
def usage_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the charts of the URL's range and filters, the groups, the errors and the refusals."""
    form = _form(request, console)
    context: dict[str, Any] = {"title": "Usage", "clear_url": console.url("usage")}
    if not form.is_valid():
        context |= {"mistake": form.mistake, "kept_url": without_mistakes(form)}
        return render(request, console, "usage.html", context, status=400)
    starts = form.over.starts()
    most_columns = MAX_GROUPED_COLUMNS if form.is_grouped else MAX_COLUMNS
    step = -(-len(starts) // most_columns)
    edges = starts[::step]
    spans = list(zip(edges, [*edges[1:], form.over.end], strict=True))
    ranges = [Range(*span, form.over.bucket) for span in spans]
    with closed_days.read_once(form.over.start, form.over.end):
        reading = Reading.of_chart(form.over, ranges, form.chart.filters)
        samples = weighed(reading.ranges, form.chart.filters)
        series = _series(form, [SumsSpec(each, None, form.chart.filters) for each in samples])
    grouped, points = series.points, series.whole
    sums = [sum(points[at : at + step], Totals()) for at in range(0, len(points), step)]
    named = {point.group_id for point in grouped if point.group_id is not None}
    found = speeds(spans, form.filters, form.group_by if form.is_grouped else None, named, reading)
    requests = {each: of_sample.requests for each, of_sample in zip(samples, series.others, strict=True)}
    first_tokens = reading.percentiles(found.first_tokens, requests)
    columns = [Column(*each) for each in zip(sums, _exact(found, ranges, first_tokens), strict=True)]
    whole = sum(sums, Totals())
    trends = charts([bucket_of(form, *span) for span in spans], columns, whole, first_tokens.get(form.over))
    chips = form.chips()
    offer_filters(form, console)
    owners = _refused_owners(form)
    # Errors have a panel, unless the page is grouped by them.
    errors = None if form.group_by == "error" else form.newest
    failed = failures(form.over, errors, owners)
    context |= {
        "form": form,
        "chips": chips,
        "step": step,
        "trends": trends,
        "rows": table(trends),
        "has_usage": whole.requests > 0,
        "has_requests": partial(has_requests, console),
        "chart": chart_of(form, grouped, most_columns) if grouped else None,
        "all_groups": all_groups(form, whole, series.listed),
        "groups": _groups(form, grouped, found),
        "newest_since": form.newest_since(),
        "errors": errors
        and [(code, times, rows_url(form, error=code, outcome=ANY_ERROR)) for code, times in failed.errors],
        "are_speeds_searched": is_searched(form.filters),
        "are_days_counted": bool(reading.ranges),
        "sampled_part": PARTS[parts_of(len(spans), form.filters)],
        "are_columns_measured": ranges[0] in reading.ranges,
        "searched": SEARCHED,
        "is_searched_whole": whole.requests <= SEARCHED,
        "refusals": None if owners is None else failed.refusals,
        "view_url": request.build_absolute_uri(),
        "requests_file_url": console.url("requests_file", "csv", **rows_query(form) | {"organization": ""}),
        "file_url": console.url("usage_file", "csv", **form.query | {"organization": ""}),
    }
    return render(request, console, "usage.html", context)


@require_safe
@page("usage.view_hourlyusage", keeps_to_projects=True)
def usage_file(request: HttpRequest, console: Console, file_format: str) -> HttpResponseBase:
    """Send the page's sums as a file, and record the export in the audit log."""
    return exports.sums(request, _form(request, console), file_format)


def _form(request: HttpRequest, console: Console) -> OverviewForm:
    return scoped(partial(OverviewForm, sums_page=SUMS_PAGE), request, console)


def _series(form: OverviewForm, others: Sequence[SumsSpec]) -> Series:
    """Return the points of the groups, if there are any, the totals of the others, and the sums of all
    requests by bucket.
    """
    if form.is_grouped and form.has_partial_groups:
        return insights.series_and_whole(form.chart, others)
    chart = form.chart if form.is_grouped else replace(form.chart, group_by=None)
    series = insights.series_beside(chart, others)
    points = series.points
    count_of_groups = max(len(points) // len(form.over.starts()), 1)
    whole = [
        sum((point.totals for point in points[at : at + count_of_groups]), Totals())
        for at in range(0, len(points), count_of_groups)
    ] or [Totals()] * len(form.over.starts())
    return replace(series, points=points if form.is_grouped else [], whole=whole)


def _exact(
    found: Speeds, columns: Sequence[Range], first_tokens: Mapping[Range, Percentiles | None]
) -> list[Speed]:
    """Return the speeds of the columns, with the times to first token of those that were measured."""
    return [
        speed.with_first_tokens(first_tokens[over]) if over in first_tokens else speed
        for speed, over in zip(found.columns, columns, strict=True)
    ]


def _groups(form: OverviewForm, points: Sequence[Point], found: Speeds) -> list[GroupLine]:
    """Return the groups of these points: those with a URL first, and then by their number of requests."""
    sums: dict[tuple[str | None, str], Totals] = {}
    for point in points:
        group = (point.group_id, point.group_label)
        sums[group] = sums.get(group, Totals()) + point.totals
    lines = []
    for (group_id, name), totals in sums.items():
        label = form.label(form.group_by, name)
        url = "" if group_id is None else _narrowed_url(form, group_id)
        speed = found.groups.get(group_id, Speed())
        lines.append(GroupLine(label, url, totals, rate(totals.failed_requests, totals.requests), speed))
    return sorted(lines, key=lambda line: (not line.url, -line.totals.requests, line.label))


def _narrowed_url(form: OverviewForm, group_id: str) -> str:
    """Return the URL that narrows the page to one group; empty if no filter does that."""
    rest = {"group": "", "measure": "", "metadata_key": ""}
    if form.group_by != "metadata":
        narrowed = form.query | rest | {form.group_by: group_id}
        return form.link(form.page, narrowed) if group_id else ""
    pair = pair_of(form, group_id)
    return form.link(form.page, form.query | rest | {"metadata": pair}) if pair else ""


def _refused_owners(form: OverviewForm) -> dict[str, int] | None:
    """Return the owners whose refusals are shown, by column; None if a filter does not fit refusals."""
    columns = form.filters.by_column()
    is_of_a_kind = form.filters.is_test is not None or columns.keys() & {"model", "outcome"}
    if form.is_of_requests or is_of_a_kind:
        return None
    return {name: value for name, value in columns.items() if name.endswith("_id")}
