"""Budgets beside their limits, the fullest first, and the page of each with what spent it."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.auth.decorators import permission_required
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounts import access
from accounts.pages.admin_site import admin_page
from usage.insights.budget_limit_list import fullest, organization_of, uses, with_subject
from usage.models import BudgetLimit, Scope
from usage.pages.budget_lines import BudgetLine, period_of, requests_of, spent_by
from usage.pages.filters import choice_field, first_mistake
from usage.pages.links import page_url
from usage.pages.organization_filter import OrganizationFilterForm

PERMISSION = "usage.view_budgetlimit"
PAGE = 50
# As many pages as the list has at most; the filters find every budget.
_MAX_PAGES = 20
_KINDS: Mapping[str, tuple[Scope, ...]] = {
    "organization": (Scope.ORGANIZATION,),
    "project": (Scope.PROJECT,),
    "key": (Scope.API_KEY,),
    "end user": (Scope.END_USER, Scope.PROJECT_END_USERS, Scope.ORGANIZATION_END_USERS),
}


class BudgetFilterForm(OrganizationFilterForm):
    """The GET form of the list."""

    kind = choice_field("Of", {name: name for name in _KINDS})
    page = forms.IntegerField(required=False, min_value=1, max_value=_MAX_PAGES, widget=forms.HiddenInput)

    def matching(self, rows: "QuerySet[BudgetLimit]") -> "QuerySet[BudgetLimit]":
        """Return the limits that match the form."""
        data = self.cleaned_data
        if data["organization"] is not None:
            rows = access.belonging_to(data["organization"], rows)
        return rows.filter(scope__in=_KINDS[data["kind"]]) if data["kind"] else rows


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def list_page(request: HttpRequest) -> HttpResponse:
    """Show a page of the budgets that have a limit, the fullest first."""
    form = BudgetFilterForm(request)
    context: dict[str, Any] = {"title": "Budgets", "clear_url": page_url("budgets", {})}
    if not form.is_valid():
        context["mistake"] = first_mistake(form)
        return admin_page(request, "usage/budgets.html", context, status=400)
    data = form.cleaned_data
    number = data["page"] or 1
    rows = form.matching(access.seen_by(request.user, BudgetLimit.objects.all()))
    found = fullest(rows, (number - 1) * PAGE, PAGE + 1)
    form.offer_organizations()
    query = {"organization": data["organization"], "kind": data["kind"]}
    more = page_url("budgets", query | {"page": number + 1})
    context |= {
        "filters": [form["organization"], form["kind"]],
        "chips": form.chips("budgets", query),
        "lines": [BudgetLine.of(use) for use in found[:PAGE]],
        "may_add": request.user.has_perm("usage.add_budgetlimit"),
        "add_query": f"?organization={data['organization']}" if data["organization"] else "",
        "older_url": more if len(found) > PAGE and number < _MAX_PAGES else "",
        "newest_url": page_url("budgets", query) if number > 1 else "",
        "is_cut": len(found) > PAGE and number == _MAX_PAGES,
    }
    return admin_page(request, "usage/budgets.html", context)


@require_safe
@permission_required(PERMISSION, raise_exception=True)
def budget_page(request: HttpRequest, limit_id: int) -> HttpResponse:
    """Show one budget beside its limit, with the projects, keys and models that spent it."""
    rows = access.where_may(request.user, PERMISSION, BudgetLimit.objects.filter(pk=limit_id))
    limit = with_subject(rows).first()
    if limit is None:
        raise Http404("There is no such budget.")
    organization = organization_of(limit)
    (use,) = uses([limit], organization.time_zone)
    over = period_of(use, organization)
    listed = requests_of(use, over)
    period = {"start": use.key.period_start, "time_zone": use.time_zone} if use.key.resets_on else {}
    line = BudgetLine.of(use)
    context = {
        "title": f"Budget of {line.name}",
        "line": line,
        "organization": organization,
        "tables": [(f"By {group}", lines) for group, lines in spent_by(use, organization, _requests_url)],
        "requests_url": _requests_url(listed) if listed is not None else "",
        "overview_url": page_url("index", {**listed, **period, "group": "key"})
        if listed is not None and use.limit.scope != Scope.END_USER
        else "",
        "change_url": reverse("admin:usage_budgetlimit_change", args=[limit_id])
        if access.may(request.user, "usage.change_budgetlimit", limit)
        else "",
        "minutes_left_out": over.start.minute and 60 - over.start.minute,
    }
    return admin_page(request, "usage/budget.html", context)


def _requests_url(parameters: Mapping[str, object]) -> str:
    return page_url("requests", parameters)
