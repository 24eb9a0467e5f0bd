"""The page of one organization: its spending by project and key, its limits, and its credit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce, Now
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from accounts import access
from accounts.keys import status
from accounts.models import APIKey, Member, Organization, Project, RateLimit
from accounts.natural_order import NaturalOrder
from usage import insights
from usage.database.clock import local_day
from usage.formatting import money
from usage.insights import Filters, Range
from usage.insights.budget_limit_list import LimitUse, uses, with_subject
from usage.models import Budget, BudgetLimit, Credit, Period, Scope, Statement
from usage.models.budget_keys import LimitKey
from usage.pages.budget_lines import BudgetLine
from usage.pages.links import page_url
from usage.pages.overview_chart import Bucket
from usage.pages.trends import Layer, Trend, draw
from usage.payment import configuration
from usage.rollups import closed_days
from usage.statements.month import Month

_PERMISSION = "accounts.view_organization"
_DAYS = 30
# The most rows of each table; the link above a table leads to all of them.
_PROJECTS, _KEYS, _LIMITS, _STATEMENTS = 20, 10, 10, 6
# The most limits that are read; the fullest of them are shown.
_MAX_LIMITS = 200


@dataclass(frozen=True, slots=True)
class ProjectLine:
    """A project, its spending of this month, its monthly limit, and the URL that shows or adds that limit."""

    row: Project
    spent_nanodollars: int
    limit: BudgetLimit | None
    limit_url: str


@dataclass(frozen=True, slots=True)
class Balance:
    """The prepaid credit of an organization."""

    credited_nanodollars: int
    available_nanodollars: int
    is_required: bool


@require_safe
def organization_page(request: HttpRequest, organization_id: int) -> HttpResponse:
    """Show the organization with its usage, projects, keys, limits, credit and statements."""
    row = _read(request, organization_id)
    projects = list(
        Project.objects.filter(organization=row).order_by("-is_active", NaturalOrder("name"), "name")[
            : _PROJECTS + 1
        ]
    )
    for project in projects:
        project.organization = row
    limits = _limits(row, projects)
    keys = list(_keys(row))
    # The organization's own month, in its time zone.
    own_month = {"start": limits[0].key.period_start, "time_zone": row.time_zone}
    statements = Statement.objects.filter(organization=row.pk).order_by("-month").defer("content")
    context = {
        "title": row,  # the heading shows the name of an object as it is
        "organization": row,
        "balance": _balance(row),
        "this_month": Month.of(row.now),
        "trend": _trend(row),
        "projects": _project_lines(request, limits, projects[:_PROJECTS]),
        "has_more_projects": len(projects) > _PROJECTS,
        "lines": [BudgetLine.of(use, f"{row} / ") for use in _own_limits(limits)],
        "spent": limits[0],
        "spent_url": page_url("index", {"organization": row.pk, "group": "project", **own_month}),
        "month_query": urlencode(own_month),
        "keys": [(key, status(key, row.now)) for key in keys],
        "rate_limits": _rate_limits(row),
        "statements": [(each, Month.of(each.month)) for each in statements[:_STATEMENTS]],
        "next_step": _next_step(request, row, projects, keys),
        **_urls(request, row),
    }
    return TemplateResponse(request, "chatapi/organization.html", admin.site.each_context(request) | context)


def _read(request: HttpRequest, organization_id: int) -> Any:
    """Return the row with its credit, its number of members and the database's time; raises `Http404`."""
    if not request.user.has_perm(_PERMISSION):
        raise PermissionDenied
    ever = Budget.of_credit().filter(scope_id=OuterRef("pk"))
    credit = Credit.objects.filter(organization=OuterRef("pk"))
    members = Member.objects.filter(organization=OuterRef("pk")).order_by().values("organization")
    rows = access.where_may(request.user, _PERMISSION, Organization.objects.all())
    found = rows.annotate(
        now=Now(),
        credited=Subquery(credit.values("credited_nanodollars")),
        is_credit_required=Subquery(credit.values("is_required")),
        used=Coalesce(Subquery(ever.values(used=F("posted_nanodollars") + F("pending_nanodollars"))), 0),
        members_counted=Coalesce(Subquery(members.annotate(n=Count("pk")).values("n")), 0),
    )
    row = found.filter(pk=organization_id).first()
    if row is None:
        raise Http404("There is no such organization.")
    return row


def _balance(row: Any) -> Balance | None:
    if row.credited is None:
        return None
    return Balance(row.credited, row.credited - row.used, row.is_credit_required)


def _trend(row: Any) -> Trend:
    """Return the chart of what was spent on each of the last days."""
    over = Range.last(_DAYS, row.now, row.time_zone, "day")
    with closed_days.read_once(over.start, over.end):
        points = insights.series(over, None, Filters(organization_id=row.pk))
    amounts = [point.totals.amount_nanodollars for point in points]
    buckets = [Bucket(f"{at:%d %b}".lstrip("0"), f"{at:%a %d %b %Y}") for at in over.starts()]
    return draw(
        f"Spend, last {_DAYS} days",
        money(sum(amounts)),
        buckets,
        [Layer("spend", "colour-0", amounts)],
        money,
    )


# ---- budgets


def _limits(row: Any, projects: Sequence[Project]) -> list[LimitUse]:
    """Return the spending of this month of the organization and of each project, then the existing limits.

    The months are unsaved rows without a limit; a monthly limit of the same owner comes after them.
    """
    owners = [(Scope.ORGANIZATION, row.pk, row.name)]
    owners += [(Scope.PROJECT, each.pk, str(each)) for each in projects]
    months = [BudgetLimit.new(LimitKey(scope, pk, Period.MONTH)) for scope, pk, _ in owners]
    for each, (_, _, name) in zip(months, owners, strict=True):
        # Else `owner_name` would read each name with a query of its own.
        each.__dict__["subject_name"] = name
    known = with_subject(access.belonging_to(row.pk, BudgetLimit.objects.all()))
    # The months of these projects first, then other limits of projects and the organization: keys and end
    # users may be many.
    of_projects = Q(scope=Scope.PROJECT, period=Period.MONTH, scope_id__in=[each.pk for each in projects])
    first = [Case(When(of_projects, then=0), default=1)] if projects else []
    known = known.order_by(*first, "-scope", "id")
    return uses([*months, *known[:_MAX_LIMITS]], row.time_zone, row.now)


def _own_limits(limits: Sequence[LimitUse]) -> list[LimitUse]:
    """Return the fullest of the saved limits."""
    return sorted((use for use in limits if use.limit.pk), key=lambda use: -use.share)[:_LIMITS]


def _project_lines(
    request: HttpRequest, limits: Sequence[LimitUse], projects: Sequence[Project]
) -> list[ProjectLine]:
    months = {use.limit.key: use for use in limits if use.limit.period == Period.MONTH}
    may_add = request.user.has_perm("usage.add_budgetlimit")
    lines = []
    for row in projects:
        use = months[LimitKey(Scope.PROJECT, row.pk, Period.MONTH)]
        limit = use.limit if use.limit.pk else None
        add_url = f"{reverse('admin:usage_budgetlimit_add')}?project={row.pk}" if may_add else ""
        url = reverse("admin:budget", args=[limit.pk]) if limit else add_url
        lines.append(ProjectLine(row, use.posted_nanodollars, limit, url))
    return lines


# ---- the other tables


def _keys(row: Any) -> "QuerySet[Any]":
    """Return the keys that spent the most this month, newer ones first if equal, with their spending."""
    of_keys = Budget.of_owners(Scope.API_KEY, Period.MONTH, local_day(row.now, row.time_zone))
    own = of_keys.filter(scope_id=OuterRef("pk"))
    spent = Coalesce(Subquery(own.values("posted_nanodollars")), 0)
    rows = APIKey.objects.filter(project__organization=row.pk).select_related("project__organization")
    return rows.annotate(spent_nanodollars=spent).order_by("-spent_nanodollars", "-id")[:_KEYS]


def _rate_limits(row: Any) -> list[tuple[RateLimit, str]]:
    """Return the limits of the organization and its projects, with their numbers as a text."""
    owners = Q(organization=row.pk) | Q(project__organization=row.pk)
    rows = RateLimit.objects.filter(owners).select_related("organization", "project__organization")
    return [
        (limit, ", ".join(number.text for number in limit.limits))
        for limit in rows.order_by("project", "id")[:_LIMITS]
    ]


# ---- where to go


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step of a new organization's set-up."""

    text: str
    label: str
    url: str


def _next_step(
    request: HttpRequest, row: Any, projects: Sequence[Project], keys: Sequence[APIKey]
) -> NextStep | None:
    """Return the next step towards the first request; None without one that the person may do."""
    if not projects and request.user.has_perm("accounts.add_project"):
        url = f"{reverse('admin:accounts_project_add')}?organization={row.pk}"
        return NextStep("API keys belong to a project, and there is none yet.", "New project", url)
    if not keys and request.user.has_perm("accounts.add_apikey"):
        only = f"?project={projects[0].pk}" if projects else ""
        return NextStep(
            "Requests need an API key, and there is none yet.",
            "New API key",
            reverse("admin:accounts_apikey_add") + only,
        )
    return None


def _urls(request: HttpRequest, row: Any) -> dict[str, str]:
    """Return the URLs of the page's links; empty if the person may not open the page."""
    user, own = request.user, f"?organization={row.pk}"
    granted = reverse("admin:credit_grant") + own if user.has_perm("usage.add_ledgerentry") else ""
    invite = reverse("admin:accounts_member_add") + own if user.has_perm("accounts.add_member") else ""
    add_key = reverse("admin:accounts_apikey_add") if user.has_perm("accounts.add_apikey") else ""
    return {
        "overview_url": page_url("index", {"organization": row.pk, "group": "project"}),
        "requests_url": page_url("requests", {"organization": row.pk}),
        "errors_url": page_url("index", {"organization": row.pk, "group": "error"}),
        "budgets_url": page_url("budgets", {"organization": row.pk}),
        "statements_url": page_url("statements", {"organization": row.pk}),
        "keys_url": page_url("accounts_apikey_changelist", {"project__organization__id__exact": row.pk}),
        "projects_url": page_url("accounts_project_changelist", {"organization__id__exact": row.pk}),
        "members_url": page_url("accounts_member_changelist", {"organization__id__exact": row.pk}),
        "payments_url": page_url("payment_payment_changelist", {"organization__id__exact": row.pk})
        if configuration.is_on() and user.has_perm("payment.view_payment")
        else "",
        "settings_url": reverse("admin:accounts_organization_change", args=[row.pk]),
        "console_url": reverse("console:home_of", args=[row.pk]),
        "grant_url": granted,
        "invite_url": invite,
        "new_key_url": add_key,
    }
