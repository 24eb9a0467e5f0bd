"""Overview: what an organization spends, by time and by project, model, key or outcome."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from chatapi.console.filters import offer_filters, scoped, without_mistakes
from chatapi.console.start import has_requests
from chatapi.console.tenancy import Console, page, render
from usage import insights
from usage.formatting import count, money, share, usd
from usage.insights import Point, SumsSpec, Totals
from usage.pages.all_groups import all_groups
from usage.pages.overview import chart_of
from usage.pages.overview_cards import Card, Compared, Spender
from usage.pages.overview_form import OverviewForm
from usage.pages.refusals import refusals
from usage.pages.row_links import errors_url, group_url, rows_query, rows_url
from usage.rollups import closed_days

# So that the page stays below 150 kB.
MAX_COLUMNS = 62


@require_safe
@page("usage.view_hourlyusage", keeps_to_projects=True)
def overview_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the sums and the chart of the URL's range and filters."""
    form = scoped(OverviewForm, request, console)
    context: dict[str, Any] = {"title": "Overview", "clear_url": console.url("overview")}
    if not form.is_valid():
        context |= {"mistake": form.mistake, "kept_url": without_mistakes(form)}
        return render(request, console, "overview.html", context, status=400)
    compared = form.over.compared(timezone.now()) if form.is_comparable else None
    # Nothing is compared if the organization was made after the start of the range before.
    if compared and console.organization.created_at > compared[1].start:
        compared = None
    with closed_days.read_once(compared[1].start if compared else form.over.start, form.over.end):
        specs = [SumsSpec(each, None, form.chart.filters) for each in compared or ()]
        if form.has_partial_groups:
            specs.append(replace(form.chart, group_by=None))
        series = insights.series_beside(form.chart, specs)
    points, totals = series.points, list(series.others)
    chips = form.chips()
    offer_filters(form, console)
    now = totals.pop() if form.has_partial_groups else sum((point.totals for point in points), Totals())
    over, before = totals if compared else (Totals(), Totals())
    context |= {
        "form": form,
        "compared": compared,
        "cards": _cards(form, now, Compared(over, before if before.requests else None)),
        "chart": chart_of(form, points, MAX_COLUMNS),
        "all_groups": all_groups(form, now, series.listed),
        "groups": _groups(form, points, now),
        "has_usage": now.requests > 0,
        "has_requests": partial(has_requests, console),
        "has_earlier": before.requests > 0,
        "refusals": refusals(form, lambda *_: "") if form.group_by == "error" else None,
        "newest_since": form.newest_since(),
        "searched": insights.SEARCHED,
        "chips": chips,
        "usage_url": form.link("usage", form.query),
        "view_url": request.build_absolute_uri(),
        "requests_file_url": console.url("requests_file", "csv", **rows_query(form) | {"organization": ""}),
    }
    return render(request, console, "overview.html", context)


def _cards(form: OverviewForm, now: Totals, compared: Compared) -> list[Card]:
    """Return spend, requests, tokens and the share of failed requests, with their changes."""
    url, spent = rows_url(form), now.amount_nanodollars
    usage = [
        Card("Spend", money(spent), usd(spent), url, compared.change(lambda sums: sums.amount_nanodollars)),
        Card(
            "Requests",
            count(now.requests),
            f"{now.requests:,}",
            url,
            compared.change(lambda sums: sums.requests),
        ),
        Card(
            "Tokens",
            count(now.total_tokens),
            f"{now.prompt_tokens:,} in, {now.completion_tokens:,} out",
            url,
            compared.change(lambda sums: sums.total_tokens),
        ),
    ]
    if form.has_days_of_end_users:
        return usage  # they don't know which requests failed
    failed = Card(
        "Error rate",
        share(now.failed_requests, now.requests),
        f"{now.failed_requests:,} of {now.requests:,} requests",
        errors_url(form),
        compared.change(lambda sums: sums.error_rate),
        "bad",
    )
    return [*usage, failed]


def _groups(form: OverviewForm, points: Sequence[Point], all_of: Totals) -> list[Spender]:
    """Return the chart's groups with their sums, the most expensive first and "other" last."""
    sums: dict[tuple[str | None, str], Totals] = {}
    for point in points:
        group = (point.group_id, point.group_label)
        sums[group] = sums.get(group, Totals()) + point.totals
    whole = max(all_of.amount_nanodollars, 1)
    return [
        Spender(
            form.label(form.group_by, label),
            group_url(form, form.group_by, group_id) if group_id is not None else form.groups_url(),
            totals,
            f"{max(100 * totals.amount_nanodollars / whole, 0):.2f}%",
        )
        for (group_id, label), totals in sums.items()
    ]
