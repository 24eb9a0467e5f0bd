"""The admin's first page: who uses what, what it costs, how fast it is and what is wrong, in a range of time
against the one before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from accounts import access
from usage import insights
from usage.insights import BudgetUse, Health, Point
from usage.insights.range import DAY
from usage.models import Outcome
from usage.pages import figures, overview_chart, overview_question
from usage.pages.figures import Fullness
from usage.pages.first_steps import first_steps
from usage.pages.overview_cards import cards, spenders
from usage.pages.overview_chart import Bucket, Chart, Group
from usage.pages.overview_question import GROUPS, MEASURES, Measure, Question
from usage.pages.page_query import address, words
from usage.pages.tenant_scope import choices, own_limits, own_query, removable

_OUTCOME_COLOURS: dict[str, str] = {
    Outcome.COMPLETED: "colour-2",
    Outcome.CLIENT_CANCELLED: "colour-rest",
    Outcome.FAILED: "colour-bad",
    Outcome.WORKER_LOST: "colour-3",
    Outcome.NOT_STARTED: "colour-4",
}
"""Good is green and bad is red, whatever there is more of."""


@require_safe
def page(request: HttpRequest, *, recent_deployments: Callable[[], Any]) -> HttpResponse:
    """The page, for who may enter; who may not see usage is shown what else there is."""
    site = admin.site
    context = site.each_context(request) | {"app_list": site.get_app_list(request)}
    if not request.user.has_perm("usage.view_hourlyusage"):
        return TemplateResponse(request, "admin/index.html", context | {"title": site.index_title})
    context |= {"export_url": address("index", {}) + "overview", "export_query": request.GET.urlencode()}
    is_operator = access.is_operator(request.user)
    context |= {
        "title": "Overview",
        "deployments": recent_deployments() if is_operator else None,
        "steps": first_steps(request),
    }
    try:
        context |= _reports(overview_question.parse(own_query(request), timezone.now()), request.user)
    except ValueError as error:
        context |= {"mistake": str(error), "url": address("index", {})}
    status = 400 if "mistake" in context else 200
    return TemplateResponse(request, "usage/overview.html", context, status=status)


def _reports(question: Question, user: access.Person) -> dict[str, Any]:
    now, before = (
        insights.totals(question.over, question.filters),
        insights.totals(question.over.before, question.filters),
    )
    return {
        "question": question,
        "groups": GROUPS,
        "before": question.over.before,
        "cards": cards(question, now, before),
        "chart": _chart(question),
        "spenders": spenders(question, now),
        "has_usage": now.requests > 0,
        "chips": removable(user, question.chips()),
        "organizations": choices(user),
        "budgets": [Meter.of(use) for use in insights.budgets_near_limit(limits=own_limits(user))],
        "health": _health(insights.health()) if access.is_operator(user) else None,
    }


def _health(health: Health) -> dict[str, Any]:
    """The state of the service in words."""
    late_s, queued_s = health.oldest_lease_s, health.oldest_queued_s
    lease = "none open" if late_s is None else f"ends in {figures.duration(-1_000 * late_s)}"
    return {
        "now": health,
        "lease": lease if late_s is None or late_s <= 0 else f"ended {figures.duration(1_000 * late_s)} ago",
        "is_late": late_s is not None and late_s > 0,
        "queued_ms": None if queued_s is None else 1_000 * queued_s,
        "lost_url": _closed_url(health, Outcome.WORKER_LOST),
        "not_started_url": _closed_url(health, Outcome.NOT_STARTED),
    }


def _closed_url(health: Health, outcome: Outcome) -> str:
    """The requests that ended so since the health's count begins, as the count has them: by their settlement."""
    start, end = health.closed_since, health.closed_since + DAY
    times = {"start": f"{start:%Y-%m-%dT%H:%M}", "end": f"{end:%Y-%m-%dT%H:%M}", "time": "settled"}
    return address("requests", times | {"outcome": outcome})


@dataclass(frozen=True, slots=True)
class Meter:
    """A budget and the lengths of its bar, in percent of the limit; together at most the whole."""

    use: BudgetUse
    posted: str
    held: str
    full: Fullness

    @property
    def spent_url(self) -> str:
        """The requests that count in it: those admitted in its period, by its organization's clock."""
        last_day = self.use.last_day
        period = (
            {"start": self.use.first_day, "end": last_day, "time_zone": self.use.time_zone}
            if last_day
            else {}
        )
        return address("requests", {self.use.scope: self.use.scope_id, **period})

    @classmethod
    def of(cls, use: BudgetUse) -> "Meter":
        """The bar of this budget."""
        limit = use.limit_nanodollars
        posted = min(use.posted_nanodollars / limit, 1)
        held = min(use.pending_nanodollars / limit, 1 - posted)
        full = figures.fullness(use.posted_nanodollars + use.pending_nanodollars, limit)
        return cls(use, f"{100 * posted:.2f}%", f"{100 * held:.2f}%", full)


def _chart(question: Question) -> Chart:
    measure = MEASURES[question.measure]
    starts = question.over.starts()
    buckets = [
        _bucket(question, start, end)
        for start, end in zip(starts, [*starts[1:], question.over.end], strict=True)
    ]
    by_group: dict[str | None, list[Point]] = {}
    for point in insights.series(question.over, question.group_by, question.filters):
        by_group.setdefault(point.group_id, []).append(point)
    return overview_chart.draw(
        buckets, [_group(question, own, measure) for own in by_group.values()], measure.written
    )


def _group(question: Question, points: Sequence[Point], measure: Measure) -> Group:
    group_id, label, values = (
        points[0].group_id,
        points[0].group_label,
        [measure.value(point.totals) for point in points],
    )
    if group_id is None:
        return Group(label, values, is_rest=True)
    url = question.rows_url(**{question.group_by: group_id})
    if question.group_by == "outcome":
        return Group(words(group_id), values, url, _OUTCOME_COLOURS.get(group_id, ""))
    return Group(label, values, url)


def _bucket(question: Question, start: datetime, end: datetime) -> Bucket:
    # With its offset from UTC: without it, 2:00 is the first one in the night that has two.
    url = question.rows_url(days="", start=start.isoformat(), end=end.isoformat())
    if question.over.bucket == "hour":
        label = (
            f"{start:%H:%M}"
            if question.over.end - question.over.start <= DAY
            else f"{start:%d %b %H:%M}".lstrip("0")
        )
        return Bucket(label, f"{start:%a %d %b, %H:%M}", url)
    return Bucket(f"{start:%d %b}".lstrip("0"), f"{start:%a %d %b %Y}", url)
