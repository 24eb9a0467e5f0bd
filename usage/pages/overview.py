"""The admin's first page: usage, cost, speed and errors in a range of time, against the range before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.module_loading import import_string
from django.views.decorators.http import require_safe

from accounts import access
from accounts.models import APIKey
from usage import insights
from usage.budget_words import BudgetWords, words
from usage.insights import BudgetUse, Health, Point, Range
from usage.insights.budget_limit_list import filters_of
from usage.insights.range import DAY, HOUR, full_hour
from usage.models import Generation, Kind, LedgerEntry, Outcome, Price
from usage.pages import overview_chart
from usage.pages.all_groups import all_groups
from usage.pages.filters import parameters_of
from usage.pages.gauges import Fullness, bar_parts, fullness
from usage.pages.links import page_url
from usage.pages.overview_cards import cards, spenders, spenders_of
from usage.pages.overview_chart import Bucket, Chart, Group
from usage.pages.overview_form import OverviewForm
from usage.pages.refusals import list_url, refusals
from usage.pages.row_links import group_url, rows_url
from usage.pages.tenant_scope import scoped_form
from usage.rollups import closed_days

# So that the page stays below 150 kB.
MAX_COLUMNS = 36
# A column's URL is on the page up to three times; one with a long value of metadata is left out.
_MAX_COLUMN_URL = 300
# Completed is green and failed is red, independent of which is larger.
_OUTCOME_COLOURS: dict[str, str] = {
    Outcome.COMPLETED: "colour-2",
    Outcome.CLIENT_CANCELLED: "colour-rest",
    Outcome.FAILED: "colour-bad",
    Outcome.WORKER_LOST: "colour-3",
    Outcome.NOT_STARTED: "colour-4",
}


@require_safe
def page(
    request: HttpRequest, *, recent_deployments: Callable[[], Any], model_kinds: Mapping[str, str]
) -> HttpResponse:
    """Show the Overview; to people who may not see usage, the list of the pages that they may see."""
    site, user = admin.site, request.user
    context = site.each_context(request) | {"app_list": site.get_app_list(request)}
    if not user.has_perm("usage.view_hourlyusage"):
        return TemplateResponse(request, "admin/index.html", context | {"title": site.index_title})
    form = scoped_form(OverviewForm, request)
    form.model_kinds = model_kinds
    context |= {
        "title": "Overview",
        "export_url": page_url("index", {}) + "overview",
        "export_query": request.GET.urlencode(),
        **(
            _reports(form, user, recent_deployments)
            if form.is_valid()
            else {"mistake": form.mistake, "url": page_url("index", {})}
        ),
    }
    # What the page shows of requests is enough to know that there was one.
    context["steps"] = None if context.get("has_usage") else _first_steps(request)
    return TemplateResponse(request, "usage/overview.html", context, status=200 if form.is_valid() else 400)


def _reports(
    form: OverviewForm, user: access.Person, recent_deployments: Callable[[], Any]
) -> dict[str, Any]:
    tables = spenders_of(form)
    groups = [group for _, group in tables]
    compared = form.over.compared(timezone.now()) if form.is_comparable else None
    with closed_days.read_once(compared[1].start if compared else form.over.start, form.over.end):
        sums = insights.overview_sums(form.chart, groups, compared)
    form.offer_choices()
    shown = cards(form, sums)
    limited_to = access.organizations_of(user)
    is_operator = access.is_operator(user)
    health = insights.health() if is_operator else None
    return {
        "form": form,
        "compared": compared,
        "newest_since": form.newest_since(),
        "searched": insights.SEARCHED,
        "cards": shown,
        "has_earlier": any(card.change for card in shown),
        "chart": chart_of(form, sums.points, MAX_COLUMNS),
        "all_groups": all_groups(form, sums.now, sums.listed),
        "spenders": [(title, spenders(form, sums, group)) for title, group in tables],
        "refusals": refusals(form, list_url) if form.group_by == "error" else None,
        "has_usage": sums.now.requests > 0,
        "chips": form.chips(),
        "budgets": [Meter.of(use) for use in insights.budgets_near_limit(organizations=limited_to)],
        "health": _health(health) if health else None,
        # They are judged by the requests of all organizations.
        "deployments": recent_deployments() if is_operator and not form.is_about_one_owner else None,
    }


def _health(health: Health) -> dict[str, Any]:
    late_s, queued_s, running_s = health.oldest_lease_s, health.oldest_queued_s, health.longest_running_s
    return {
        "now": health,
        "running_ms": None if running_s is None else 1_000 * running_s,
        "late_ms": 1_000 * late_s if late_s is not None and late_s > 0 else None,
        "queued_ms": None if queued_s is None else 1_000 * queued_s,
        "lost_url": _ended_url(health, Outcome.WORKER_LOST),
        "not_started_url": _ended_url(health, Outcome.NOT_STARTED),
    }


def _ended_url(health: Health, outcome: Outcome) -> str:
    """Return the URL of the requests that were settled with this outcome since the health's count begins."""
    start, end = health.closed_since, health.closed_since + DAY
    times = {"start": f"{start:%Y-%m-%dT%H:%M}", "end": f"{end:%Y-%m-%dT%H:%M}", "time": "settled"}
    return page_url("requests", times | {"outcome": outcome})


@dataclass(frozen=True, slots=True)
class Meter:
    """A budget, and the lengths of its bar in percent of the limit: 100 together at most."""

    use: BudgetUse
    posted: str
    held: str
    full: Fullness

    @property
    def spent_url(self) -> str:
        """Return the URL of its requests: those of its period, in its organization's time zone."""
        key, last_day, time_zone = self.use.key, self.use.last_day, self.use.time_zone
        period = {"start": key.period_start, "end": last_day, "time_zone": time_zone} if last_day else {}
        filters = filters_of(key)
        return page_url("requests", {**parameters_of(filters), **period}) if filters else ""

    @property
    def words(self) -> BudgetWords:
        return words(self.use.key)

    @classmethod
    def of(cls, use: BudgetUse) -> "Meter":
        posted, held, limit = use.posted_nanodollars, use.pending_nanodollars, use.limit_nanodollars
        return cls(use, *bar_parts(posted, held, limit), fullness(posted + held, limit))


# ---- the chart


def chart_of(form: OverviewForm, points: Sequence[Point], most_columns: int) -> Chart:
    """Return the form's chart; of more hours or days than it has columns, each column has several."""
    starts = form.over.starts()
    step = -(-len(starts) // most_columns)
    edges = starts[::step]
    ends = [*edges[1:], form.over.end]
    buckets = [bucket_of(form, start, end) for start, end in zip(edges, ends, strict=True)]
    by_group: dict[str | None, list[Point]] = {}
    for point in points:
        by_group.setdefault(point.group_id, []).append(point)
    groups = [_group(form, points, step) for points in by_group.values()]
    chart = overview_chart.draw(buckets, groups, form.shown_measure.to_text, form.groups_url())
    return replace(chart, step=step)


def _group(form: OverviewForm, points: Sequence[Point], step: int) -> Group:
    group_id, label = points[0].group_id, form.label(form.group_by, points[0].group_label)
    values = [form.shown_measure.value(point.totals) for point in points]
    values = [sum(values[at : at + step]) for at in range(0, len(values), step)]
    if group_id is None:
        return Group(label, values, is_rest=True)
    url = group_url(form, form.group_by, group_id)
    if form.group_by == "outcome":
        return Group(label, values, url, _OUTCOME_COLOURS.get(group_id, ""))
    return Group(label, values, url)


def bucket_of(form: OverviewForm, start: datetime, end: datetime) -> Bucket:
    """Return the names of a column, and the URL of its requests."""
    return bucket_in(form.over, start, end, partial(rows_url, form), is_of_requests=form.is_of_requests)


def bucket_in(
    over: Range, start: datetime, end: datetime, rows_url: Callable[..., str], *, is_of_requests: bool
) -> Bucket:
    """Return the names of a column of the range, and the URL of its requests, which `rows_url` makes."""
    is_day = over.bucket == "day"
    last = end - timedelta(microseconds=1)
    if is_day:
        name, last_name = (f"{each:%a %d %b %Y}" for each in (start, last))
        label, is_one = f"{start:%d %b}".lstrip("0"), name == last_name
    else:
        name, last_name = f"{start:%a %d %b, %H:%M}", f"{end:%H:%M}"
        is_one_day = over.end - over.start <= DAY
        label = f"{start:%H:%M}" if is_one_day else f"{start:%d %b %H:%M}".lstrip("0")
        is_one = end.astimezone(UTC) - start.astimezone(UTC) <= HOUR
    first, last = full_hour(start), full_hour(end)
    if is_of_requests:
        # Sums of single requests begin and end with the range, to the second.
        first = start if start == over.start else first
        last = end if end == over.end else last
    url = ""
    if first.astimezone(UTC) < last.astimezone(UTC):
        # With the offset from UTC: in the night when clocks go back, 2:00 comes twice.
        url = rows_url(days="", start=first.isoformat(), end=last.isoformat())
    # A column that counts no request has no URL, and none has one that is too long.
    url = url if len(url) <= _MAX_COLUMN_URL else ""
    return Bucket(label, name if is_one else f"{name} – {last_name}", url)


# ---- an installation, or an organization, without requests


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """The steps to the first request: which are done, and what to paste."""

    has_model: bool
    has_key: bool
    model: str
    key_url: str
    """The URL of the form of a new key; empty for people who may not add one."""
    curl: str
    is_operators: bool
    """Whether the reader can serve a model."""


def _first_steps(request: HttpRequest) -> FirstSteps | None:
    """Return the steps to the first request; None once there is one."""
    user = request.user
    charges = LedgerEntry.objects.filter(kind=Kind.CHARGE)
    if any(access.seen_by(user, rows).exists() for rows in (Generation.objects.all(), charges)):
        return None
    model = Price.objects.order_by("model").values_list("model", flat=True).first()
    # A request's path and body belong to its protocol, and this package knows no protocol.
    first_request: Callable[[HttpRequest, str], str] = import_string(settings.FIRST_REQUEST)
    return FirstSteps(
        has_model=model is not None,
        has_key=access.seen_by(user, APIKey.objects.all()).exists(),
        model=model or "",
        key_url=reverse("admin:accounts_apikey_add") if user.has_perm("accounts.add_apikey") else "",
        curl=first_request(request, model or "MODEL"),
        is_operators=access.is_operator(user),
    )
