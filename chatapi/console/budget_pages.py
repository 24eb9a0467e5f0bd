"""Budgets and their limits: what each has spent, which keys and models spent it, and setting them."""

from collections.abc import Mapping
from copy import copy

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import access
from accounts.models import Project
from chatapi.console.alert_pages import alert_lines
from chatapi.console.budget_forms import AmountsForm, BudgetForm, key_of
from chatapi.console.tenancy import MAX_CHOICES, Console, page, render
from usage.insights.budget_limit_list import LimitUse, limit_use, limits_page, unlimited, uses
from usage.models import BudgetLimit, Period, Scope
from usage.models.budget_keys import LimitKey
from usage.models.budgets import OWNERS
from usage.pages.budget_lines import BudgetLine, period_of, requests_of, spent_by
from usage.pages.filters import is_id

PAGE = 20
# With more owners without a limit, their table is closed at first.
MAX_OPEN = 5


def may_change(console: Console, limit: BudgetLimit) -> bool:
    """Return whether the person may change the limit; only operators change limits of an organization."""
    is_theirs = not limit.is_of_organization or access.is_operator(console.person)
    return is_theirs and console.may("usage.change_budgetlimit")


@require_safe
@page("usage.view_budgetlimit", keeps_to_projects=True)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the limits with the spending of each, those that are nearly reached first."""
    project_id, after = console.project and console.project.pk, request.GET.get("after", "")
    last = int(after) if is_id(after) else None
    is_first = not after
    found = limits_page(console.organization, console.project, last, PAGE + 1) if last or is_first else None
    if found is None:
        raise Http404("There is no such budget.")
    # They name members, with their addresses.
    shows_alerts = is_first and console.may("accounts.view_member")
    context = {
        "title": "Budgets and limits",
        "lines": [BudgetLine.of(use, f"{console.organization} / ") for use in found[:PAGE]],
        "unlimited": _unlimited(console) if is_first else [],
        "max_open": MAX_OPEN,
        "alerts": alert_lines(console) if shows_alerts else [],
        "is_cut": is_first and not console.project and len(console.projects) > MAX_CHOICES,
        "max_projects": MAX_CHOICES,
        "may_add": bool(console.projects) and console.may("usage.add_budgetlimit"),
        "may_change_alerts": shows_alerts and console.may("usage.add_budgetlimit"),
        "new_url": console.url("new_budget", project=project_id),
        "new_alert_url": console.url("new_alert", project=project_id),
        "may_add_project": console.may("accounts.add_project"),
        "older_url": console.url("budgets", project=project_id, after=found[PAGE - 1].limit.pk)
        if len(found) > PAGE
        else "",
        "newest_url": "" if is_first else console.url("budgets", project=project_id),
        "is_budgets": True,
    }
    return render(request, console, "budgets.html", context)


def _unlimited(console: Console) -> list[LimitUse]:
    """Return the spending of this month of the organization and its projects, without those with a limit."""
    organization, projects = console.organization, console.projects[:MAX_CHOICES]
    narrowed = [console.project] if console.project else projects
    names = {row.pk: row.name for row in narrowed if row.is_active}
    found = [(Scope.PROJECT, row_id, names[row_id]) for row_id in unlimited(Scope.PROJECT, names)]
    found.sort(key=lambda each: each[2])
    if not console.project and unlimited(Scope.ORGANIZATION, [organization.pk]):
        found.insert(0, (Scope.ORGANIZATION, organization.pk, organization.name))
    free = [BudgetLimit.new(LimitKey(scope, row_id, Period.MONTH)) for scope, row_id, _ in found]
    for row, (_, _, name) in zip(free, found, strict=True):
        # Else `owner_name` would read each name with a query of its own.
        row.__dict__["subject_name"] = name
    return uses(free, organization.time_zone)


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
        "intro": f"A period begins at midnight in {console.organization.time_zone}, a week on Monday. Limits "
        "of the organization apply, too.",
    }
    return render(request, console, "limit_form.html", context, 400 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@page("usage.view_budgetlimit", keeps_to_projects=True)
def budget_page(request: HttpRequest, console: Console, limit_id: int) -> HttpResponse:
    """Show one limit, with the keys and models that spent its budget; change its amounts."""
    use, organization = _use(console, limit_id), console.organization
    if console.limit is not None:
        console = console.at(_project_of(use.limit))
    line, is_changeable = BudgetLine.of(use, f"{organization} / "), may_change(console, use.limit)
    if request.method == "POST" and not is_changeable:
        raise PermissionDenied
    # A copy, because a refused form changes its instance, and the page shows the saved amounts.
    form = AmountsForm(request.POST or None, instance=copy(use.limit)) if is_changeable else None
    if form is not None and form.is_valid():
        form.save_changes()
        messages.success(request, "The budget is changed. It holds from the next request on.")
        return redirect(console.url("budget", limit_id))
    over = period_of(use, organization)

    def requests_url(parameters: Mapping[str, object]) -> str:
        own = {name: value for name, value in parameters.items() if name != Scope.ORGANIZATION}
        return console.url("requests", **own)

    listed = requests_of(use, over)
    context = {
        "title": f"Budget of {line.name}",
        "line": line,
        "form": form,
        "tables": spent_by(use, organization, requests_url),
        "requests_url": requests_url(listed) if listed is not None else "",
        "time_zone": organization.time_zone,
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
    name = BudgetLine.of(use, f"{console.organization} / ").name
    use.limit.delete()
    messages.success(request, f"The limit of {name} is removed.")
    return redirect(console.url("budgets"))


def _project_of(limit: BudgetLimit) -> int:
    """Return the id of the project of a limit that is not of an organization."""
    model, _ = OWNERS[Scope(limit.scope)]
    column = "pk" if model is Project else "project_id"
    project_id: int = model._default_manager.values_list(column, flat=True).get(pk=limit.scope_id)
    return project_id


def _use(console: Console, limit_id: int) -> LimitUse:
    found = limit_use(console.organization, console.rows(BudgetLimit.objects.filter(pk=limit_id)))
    if found is None:
        raise Http404("There is no such budget.")
    return found
