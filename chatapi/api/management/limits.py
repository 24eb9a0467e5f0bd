"""The rate limits of projects by model, and the monthly spend limits of projects and the organization.

The rows are those of the admin's pages: `RateLimit`, and `BudgetLimit` for months. Limits of the organization
can only be read here, because only the operator changes them.
"""

from typing import Any

from django.db import transaction
from django.db.models import PositiveIntegerField
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.errors import PermissionDenied
from accounts.limits import HIGHEST
from accounts.models import Organization, Project, RateLimit
from chatapi import errors
from chatapi.api.management import bodies, objects
from chatapi.api.management.bodies import NANODOLLARS_PER_CENT
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, page_of_items
from chatapi.api.management.route import ManagementRoute, locked, refuse
from chatapi.api.views import caller_of, respond
from chatapi.models import ServedModel
from usage.database.clock import database_now, local_day
from usage.models import Budget, BudgetLimit, Period, Scope
from usage.models.budget_keys import LimitKey

# Our columns by the members of the API's object.
_NUMBERS = {number.api_member: column for column, number in RateLimit.NUMBERS.items()}
for _struct in (objects.ProjectRateLimit, bodies.RateLimitBody):
    assert set(_NUMBERS) <= set(_struct.__struct_fields__), (_struct, _NUMBERS)
# The largest number that the columns of requests hold on PostgreSQL; those of tokens hold more.
_MOST_REQUESTS = 2**31 - 1
_OF_REQUESTS = {
    name
    for name, column in _NUMBERS.items()
    if isinstance(RateLimit._meta.get_field(column), PositiveIntegerField)
}
_ALL_MODELS = "*"
_PREFIX = "rl-"


class RateLimits(ManagementRoute):
    path = "projects/<str:project_id>/rate_limits"
    operations = {
        "GET": ManagementOperation(
            "listRateLimits", "List a project's rate limits", "accounts.view_ratelimit",
            Page[objects.ProjectRateLimit],
            query=bodies.RateLimitListQuery,
            description="There is one for each model, and one for all models together, `rl-*`.",
        )
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        rows = _rows(self.project(request, project_id))
        models = ServedModel.objects.values_list("pk", flat=True)
        found = [_rate_limit(model, rows.get(model)) for model in sorted({"", *models, *rows})]
        return respond(page_of_items(found, self.query(request)))


class OneRateLimit(ManagementRoute):
    # A model's name may contain slashes.
    path = "projects/<str:project_id>/rate_limits/<path:rate_limit_id>"
    operations = {
        "POST": ManagementOperation(
            "modifyRateLimit", "Change a project's rate limit", "accounts.change_ratelimit",
            objects.ProjectRateLimit,
            body=bodies.RateLimitBody,
            description="Numbers that are left out stay. 0 blocks everything, 9007199254740992 is no limit.",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request, project_id: str, rate_limit_id: str) -> Response:
        """Save the numbers that were sent; a limit without any number has no row."""
        project, sent = self.project(request, project_id), self.body(request)
        rows = _rows(project)
        model = _model(rate_limit_id, rows)
        row = rows.get(model) or RateLimit(project=project, model=model)
        for name, column in _NUMBERS.items():
            number = getattr(sent, name)
            if name in _OF_REQUESTS and number is not None and _MOST_REQUESTS < number < HIGHEST:
                refuse(f"expected at most {_MOST_REQUESTS}, or {HIGHEST} for no limit.", name)
            if number is not None:
                setattr(row, column, None if number == HIGHEST else number)
        row.save_or_delete()
        return respond(_rate_limit(model, row))


class ProjectSpendLimit(ManagementRoute):
    path = "projects/<str:project_id>/spend_limit"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectSpendLimit", "Show a project's monthly spend limit", "usage.view_budgetlimit",
            objects.ProjectSpendLimit,
        ),
        "POST": ManagementOperation(
            "modifyProjectSpendLimit", "Set a project's monthly spend limit", "usage.change_budgetlimit",
            objects.ProjectSpendLimit,
            body=bodies.SpendLimitBody,
            description="It refuses requests that it can't cover, from the next request on.",
        ),
        "DELETE": ManagementOperation(
            "deleteProjectSpendLimit", "Remove a project's monthly spend limit", "usage.delete_budgetlimit",
            objects.Deleted,
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        project = self.project(request, project_id)
        limit = _budget_limit(Scope.PROJECT, project.pk)
        return respond(self._shown(project, limit))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        project, sent = self.project(request, project_id), self.body(request)
        key = _monthly(Scope.PROJECT, project.pk)
        row = locked(BudgetLimit.rows(key)).first() or BudgetLimit.new(key)
        row.limit_nanodollars = sent.threshold_amount * NANODOLLARS_PER_CENT
        row.save_or_delete()
        return respond(self._shown(project, row))

    @transaction.atomic
    def delete(self, request: Request, project_id: str) -> Response:
        """Remove the limit; a soft one stays."""
        project = self.project(request, project_id)
        row = _budget_limit(Scope.PROJECT, project.pk)
        row.limit_nanodollars = None
        row.save_or_delete()
        return respond(objects.Deleted(object="project.spend_limit.deleted"))

    def _shown(self, project: Project, row: BudgetLimit) -> objects.ProjectSpendLimit:
        return objects.ProjectSpendLimit(**_limit_members(row, project.organization))


class OrganizationSpendLimit(ManagementRoute):
    """The monthly budget of the organization, which only the operator changes."""

    path = "spend_limit"
    operations = {
        "GET": ManagementOperation(
            "retrieveSpendLimit", "Show the organization's monthly spend limit", "usage.view_budgetlimit",
            objects.OrganizationSpendLimit,
        ),
        "POST": ManagementOperation(
            "modifySpendLimit", "Set the organization's monthly spend limit", "usage.change_budgetlimit",
            objects.OrganizationSpendLimit,
            description="Always refused: only the operator changes limits of an organization.",
        ),
        "DELETE": ManagementOperation(
            "deleteSpendLimit", "Remove the organization's monthly spend limit", "usage.delete_budgetlimit",
            objects.Deleted,
            description="Always refused: only the operator changes limits of an organization.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        owner = Organization.objects.get(pk=caller_of(request).organization_id)
        row = _budget_limit(Scope.ORGANIZATION, owner.pk)
        return respond(objects.OrganizationSpendLimit(**_limit_members(row, owner)))

    def post(self, request: Request) -> Response:
        raise PermissionDenied("Only the operator of this service changes an organization's spend limit.")

    delete = post


routes: list[type[ManagementRoute]] = [RateLimits, OneRateLimit, ProjectSpendLimit, OrganizationSpendLimit]


def _rows(project: Project) -> dict[str, RateLimit]:
    """Return the limits of the project itself by model, without those of its end users."""
    rows = RateLimit.objects.filter(project=project, each_end_user=False).select_related("project")
    return {row.model: row for row in locked(rows)}


def _model(rate_limit_id: str, rows: dict[str, RateLimit]) -> str:
    """Return the model of a limit, blank for all models; raises a 404 for any other id."""
    name = rate_limit_id.removeprefix(_PREFIX)
    if rate_limit_id == f"{_PREFIX}{_ALL_MODELS}":
        return ""
    # A limit may outlive its model.
    is_known = name in rows or ("\x00" not in name and ServedModel.objects.filter(pk=name).exists())
    if name in ("", rate_limit_id) or not is_known:
        raise errors.object_not_found("rate limit", "rate_limit_id")
    return name


def _rate_limit(model: str, row: RateLimit | None) -> objects.ProjectRateLimit:
    numbers: dict[str, Any] = {name: getattr(row, column, None) for name, column in _NUMBERS.items()}
    # OpenAI's object always has these two as numbers.
    for name in ("max_requests_per_1_minute", "max_tokens_per_1_minute"):
        numbers[name] = HIGHEST if numbers[name] is None else numbers[name]
    shown = model or _ALL_MODELS
    return objects.ProjectRateLimit(id=f"{_PREFIX}{shown}", model=shown, **numbers)


def _monthly(scope: Scope, scope_id: int) -> LimitKey:
    return LimitKey(scope.value, scope_id, Period.MONTH.value)


def _budget_limit(scope: Scope, scope_id: int) -> BudgetLimit:
    rows = BudgetLimit.rows(_monthly(scope, scope_id)).filter(limit_nanodollars__isnull=False)
    row = locked(rows).first()
    if row is None:
        param = "project_id" if scope is Scope.PROJECT else None
        raise errors.not_set("No monthly spend limit is set.", param)
    return row


def _limit_members(row: BudgetLimit, owner: Organization) -> dict[str, Any]:
    """Return the limit in whole cents, rounded down, and whether it is reached in this month."""
    most = row.limit_nanodollars or 0
    budget = Budget.rows(row.key.budget(local_day(database_now(), owner.time_zone))).first()
    used = budget.posted_nanodollars + budget.pending_nanodollars if budget else 0
    return {
        "threshold_amount": most // NANODOLLARS_PER_CENT,
        "enforcement": objects.Enforcement(status="enforcing" if used >= most else "inactive"),
    }
