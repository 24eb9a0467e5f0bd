"""Budgets and their limits: what each has spent, which keys and models spent it, and setting them."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import access
from chatapi.console.budget_forms import PERIODS, AmountsForm, BudgetForm, key_of
from chatapi.console.tenancy import MAX_CHOICES, Console, page, render
from usage import insights
from usage.insights import Filters, GroupBy, Range
from usage.insights.limit_list import LimitUse, filters_of, limit_use, limits_page, unlimited, uses
from usage.models import BudgetLimit, Period, Scope
from usage.pages.filters import is_id, parameters_of
from usage.pages.gauges import Fullness, fullness
from usage.pages.overview_cards import Spender
from usage.rollups import closed_days

PAGE = 50
# The keys, models or projects that a budget's page lists.
_SPENDERS = 10
_NOW = {Period.DAY: "today", Period.MONTH: "this month", Period.EVER: "in total"}
_KINDS = {
    Scope.ORGANIZATION: "organization",
    Scope.ORGANIZATION_END_USERS: "each end user of the organization",
    Scope.PROJECT: "project",
    Scope.PROJECT_END_USERS: "each end user of the project",
    Scope.API_KEY: "key",
    Scope.END_USER: "end user",
}
# What is asked for about the budgets of each kind.
_SPENT_BY: dict[str, tuple[GroupBy, ...]] = {
    Scope.ORGANIZATION: ("project", "key", "model"),
    Scope.PROJECT: ("key", "model"),
    Scope.API_KEY: ("model",),
    Scope.END_USER: ("model",),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A limit as the pages show it; the bar's lengths are in percent of the limit, 100 together at most."""

    use: LimitUse
    name: str
    kind: str
    period: str
    now: str
    resets: str
    full: Fullness | None
    posted: str
    held: str
    may_change: bool

    @classmethod
    def of(cls, console: Console, use: LimitUse) -> "Line":
        limit, most = use.limit, use.limit.limit_nanodollars
        posted, held = _parts(use.posted_nanodollars, use.pending_nanodollars, most)
        used = use.posted_nanodollars + use.pending_nanodollars
        resets_on = use.key.resets_on
        return cls(
            use,
            limit.owner_name.removeprefix(f"{console.organization} / "),
            _KINDS[Scope(limit.scope)],
            PERIODS[Period(limit.period)],
            _NOW[Period(limit.period)],
            f"{resets_on:%Y-%m-%d} 00:00" if resets_on else "never",
            None if most is None or use.is_of_each_end_user else fullness(used, most),
            posted,
            held,
            may_change(console, limit),
        )


def may_change(console: Console, limit: BudgetLimit) -> bool:
    """Return whether the person may change it: limits of the organization are the operator's."""
    is_theirs = not limit.is_of_organization or access.is_operator(console.person)
    return is_theirs and console.may("usage.change_budgetlimit")


@require_safe
@page("usage.view_budgetlimit")
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the limits, those of the whole first, with what is spent of each."""
    project_id, after = console.project and console.project.pk, request.GET.get("after", "")
    last = int(after) if is_id(after) else None
    found = limits_page(console.organization, console.project, last, PAGE + 1)
    context = {
        "title": "Budgets and limits",
        "lines": [Line.of(console, use) for use in found[:PAGE]],
        "unlimited": [] if last else _unlimited(console),
        "may_add": bool(console.projects) and console.may("usage.add_budgetlimit"),
        "new_url": console.url("new_budget", project=project_id),
        "may_add_project": console.may("accounts.add_project"),
        "older_url": console.url("budgets", project=project_id, after=found[PAGE - 1].limit.pk)
        if len(found) > PAGE
        else "",
        "newest_url": console.url("budgets", project=project_id) if after else "",
        "is_budgets": True,
    }
    return render(request, console, "budgets.html", context)


def _unlimited(console: Console) -> list[LimitUse]:
    """Return what was spent this month by the organization and its projects that have no limit."""
    organization, projects = console.organization, console.projects[:MAX_CHOICES]
    names = {row.pk: row.name for row in ([console.project] if console.project else projects)}
    found = [(Scope.PROJECT, row_id, names[row_id]) for row_id in unlimited(Scope.PROJECT, names)]
    found.sort(key=lambda each: each[2])
    if not console.project and unlimited(Scope.ORGANIZATION, [organization.pk]):
        found.insert(0, (Scope.ORGANIZATION, organization.pk, organization.name))
    free = [BudgetLimit(scope=scope, scope_id=row_id, period=Period.MONTH) for scope, row_id, _ in found]
    for row, (_, _, name) in zip(free, found, strict=True):
        # The name that `owner_name` would otherwise read, one by one.
        row.__dict__["subject_name"] = name
    return uses(organization, free)


@require_http_methods(["GET", "HEAD", "POST"])
@page("usage.add_budgetlimit")
def new_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of a new limit, of a project or of the key that the URL names; save it."""
    key = key_of(console, request.GET.get("key", ""))
    form = BudgetForm(request.POST or None, console, key)
    if form.is_valid():
        form.save()
        messages.success(request, "The budget is set. It holds from the next request on.")
        return redirect(console.url("budgets"))
    context = {
        "title": f"New budget of the key {key.name}" if key else "New budget",
        "form": form,
        "submit": "Set the budget",
        "back": console.url("budgets"),
        "has_no_project": not key and not console.projects,
        "intro": f"A period begins at midnight in {console.organization.time_zone}. Limits of "
        "the organization apply, too.",
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page("usage.view_budgetlimit")
def budget_page(request: HttpRequest, console: Console, limit_id: int) -> HttpResponse:
    """Show one limit, with the keys and models that spent its budget; change its amounts."""
    use = _use(console, limit_id)
    line = Line.of(console, use)
    if request.method == "POST" and not line.may_change:
        raise PermissionDenied
    form = AmountsForm(request.POST or None, instance=use.limit) if line.may_change else None
    if form is not None and form.is_valid():
        form.save()
        messages.success(request, "The budget is changed. It holds from the next request on.")
        return redirect(console.url("budget", limit_id))
    over, filters = _period(console, use), filters_of(use.key)
    context = {
        "title": f"Budget of {line.name}",
        "line": line,
        "form": form,
        "tables": _tables(console, use, over, filters) if filters else [],
        "requests_url": console.url("requests", **_parameters(use, over, filters)) if filters else "",
        "time_zone": console.organization.time_zone,
        "minutes_left_out": over.start.minute and 60 - over.start.minute,
    }
    return render(request, console, "budget.html", context, 400 if form is not None and form.errors else 200)


@require_POST
@page("usage.delete_budgetlimit")
def remove(request: HttpRequest, console: Console, limit_id: int) -> HttpResponse:
    """Remove a limit; what was spent stays counted."""
    use = _use(console, limit_id)
    if not may_change(console, use.limit):
        raise PermissionDenied
    name = Line.of(console, use).name
    use.limit.delete()
    messages.success(request, f"The limit of {name} is removed.")
    return redirect(console.url("budgets"))


def _use(console: Console, limit_id: int) -> LimitUse:
    found = limit_use(console.organization, limit_id)
    if found is None:
        raise Http404("There is no such budget.")
    return found


# ---- who spent it


def _period(console: Console, use: LimitUse) -> Range:
    """Return the budget's current period up to the end of this hour."""
    zone = ZoneInfo(console.organization.time_zone)
    start = datetime.combine(use.key.period_start, time(), zone)
    if use.key.resets_on is None:
        start = console.organization.created_at.replace(minute=0, second=0, microsecond=0)
    end = timezone.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    # "hour": the sums of a total may be of more days than a chart may have.
    return Range(start.astimezone(UTC), end.astimezone(UTC), "hour")


def _parameters(use: LimitUse, over: Range, filters: Filters) -> dict[str, object]:
    """Return the parameters of the list of the budget's requests, whose path has the organization."""
    times = {"start": over.start.isoformat(), "time": "settled"} if use.key.resets_on else {}
    return {**parameters_of(filters), **times, "organization": None}


def _tables(
    console: Console, use: LimitUse, over: Range, filters: Filters
) -> list[tuple[GroupBy, list[Spender]]]:
    whole, asked = max(use.posted_nanodollars, 1), _parameters(use, over, filters)
    found = []
    with closed_days.read_once(over.start, over.end):
        for group in _SPENT_BY[use.limit.scope]:
            rows = insights.top(over, group, filters, _SPENDERS)
            found.append((group, [_spender(console, asked, group, row, whole) for row in rows]))
    return found


def _spender(
    console: Console, asked: dict[str, object], group: GroupBy, row: insights.Row, whole: int
) -> Spender:
    url = console.url("requests", **{**asked, group: row.group_id})
    share = min(max(100 * row.totals.amount_nanodollars / whole, 0), 100)
    return Spender(row.label.removeprefix(f"{console.organization} / "), url, row.totals, f"{share:.2f}%")


def _parts(posted: int, held: int, limit: int | None) -> tuple[str, str]:
    """Return the lengths of the bar's two parts in percent."""
    if not limit:
        return "0%", "0%"
    spent = min(max(posted / limit, 0), 1)
    return f"{100 * spent:.2f}%", f"{100 * min(held / limit, 1 - spent):.2f}%"
