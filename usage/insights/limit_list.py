"""The budget limits of one organization, each with what its budget of the current period has spent."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import (
    Case,
    CharField,
    F,
    IntegerField,
    Model,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Concat

from accounts import access
from accounts.models import EndUser, Organization, Project
from usage.database.clock import database_now, local_day
from usage.database.time_limit import time_limit
from usage.insights.sources import Filters
from usage.models import Budget, BudgetLimit, Period, Scope
from usage.models.budget_keys import BudgetKey
from usage.models.budgets import OWNERS

Rows = TypeVar("Rows", bound=Model)

# The order of the list: from the whole to its parts.
_ORDER = (
    Scope.ORGANIZATION, Scope.ORGANIZATION_END_USERS, Scope.PROJECT, Scope.PROJECT_END_USERS, Scope.API_KEY,
    Scope.END_USER,
)  # fmt: skip
_PERIODS = (Period.DAY, Period.MONTH, Period.EVER)
# Ends with the primary key: a page that ends between two limits of one place would lose the second.
_PLACE = ("rank", "scope_id", "turn", "pk")
_EACH_END_USER = (Scope.ORGANIZATION_END_USERS, Scope.PROJECT_END_USERS)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit, and the budget of the current period that it limits; its days are the organization's."""

    limit: BudgetLimit
    key: BudgetKey
    posted_nanodollars: int
    pending_nanodollars: int
    soft_limit_reached_at: datetime | None

    @property
    def is_of_each_end_user(self) -> bool:
        """Return whether it limits many end users, each with a budget of its own."""
        return self.limit.scope in _EACH_END_USER


def with_subject(rows: "QuerySet[Rows]") -> "QuerySet[Rows]":
    """Return budgets or limits with `subject_name`, their owner's full name."""
    names = []
    for scope, (model, path) in OWNERS.items():
        first, *others = map(F, path)
        name = Concat(first, *(part for each in others for part in (Value(" / "), each))) if others else first
        owner = model._default_manager.filter(pk=OuterRef("scope_id"))
        names.append(When(scope=scope, then=Subquery(owner.values(subject=name))))
    named: Any = rows.annotate(subject_name=Case(*names, output_field=CharField()))
    return named  # type: ignore[no-any-return]  # the stubs know no annotated class


def filters_of(key: BudgetKey) -> Filters | None:
    """Return the filters of the requests in a budget; None for a limit of each end user."""
    match key.scope:
        case Scope.ORGANIZATION:
            return Filters(organization_id=key.scope_id)
        case Scope.PROJECT:
            return Filters(project_id=key.scope_id)
        case Scope.API_KEY:
            return Filters(api_key_id=key.scope_id)
        case Scope.END_USER:
            person = EndUser.objects.get(pk=key.scope_id)
            return Filters(project_id=person.project_id, end_user=person.name)
    return None


@time_limit()
def limits_page(
    organization: Organization, project: Project | None, after: int | None, size: int
) -> list[LimitUse]:
    """Return limits of the organization, or of the project and its keys, that come after one in the list."""
    rows: Any = _in_order(access.belonging_to(organization.pk, BudgetLimit.objects.all()))
    if project is not None:
        rows = rows.filter(_of_project(project))
    last = rows.filter(pk=after).first() if after is not None else None
    if last is not None:
        rows = rows.filter(_behind(last))
    return uses(organization, with_subject(rows)[:size])


def limit_use(organization: Organization, limit_id: int) -> LimitUse | None:
    """Return one limit of the organization; None if it has none with this id."""
    rows = access.belonging_to(organization.pk, BudgetLimit.objects.filter(pk=limit_id))
    return next(iter(uses(organization, with_subject(rows))), None)


def uses(organization: Organization, limits: Iterable[BudgetLimit]) -> list[LimitUse]:
    """Return the limits with the amounts of their current budgets."""
    day = local_day(database_now(), organization.time_zone)
    shown = list(limits)
    keys = [BudgetKey(*limit.key, Period(limit.period).start(day)) for limit in shown]
    # A budget has a row from its first request on; without a row it is at zero.
    known = Budget.objects.in_bulk([str(key) for key in keys])
    nothing = Budget()
    found = [known.get(str(key), nothing) for key in keys]
    return [
        LimitUse(limit, key, row.posted_nanodollars, row.pending_nanodollars, row.soft_limit_reached_at)
        for limit, key, row in zip(shown, keys, found, strict=True)
    ]


def unlimited(scope: Scope, ids: Collection[int]) -> set[int]:
    """Return those of the owners that have no hard limit of their own."""
    limited = BudgetLimit.objects.filter(scope=scope, scope_id__in=ids, limit_nanodollars__isnull=False)
    return set(ids) - set(limited.values_list("scope_id", flat=True))


def _in_order(rows: QuerySet[BudgetLimit]) -> Any:
    rank = Case(*(When(scope=each, then=at) for at, each in enumerate(_ORDER)), output_field=IntegerField())
    turn = Case(
        *(When(period=each, then=at) for at, each in enumerate(_PERIODS)), output_field=IntegerField()
    )
    return rows.annotate(rank=rank, turn=turn).order_by(*_PLACE)


def _behind(last: Any) -> Q:
    behind, same = Q(), Q()
    for name in _PLACE:
        behind |= same & Q(**{f"{name}__gt": getattr(last, name)})
        same &= Q(**{name: getattr(last, name)})
    return behind


def _of_project(project: Project) -> Q:
    keys, end_users = project.api_keys.order_by().values("pk"), project.end_users.order_by().values("pk")
    return (
        Q(scope__in=[Scope.PROJECT, Scope.PROJECT_END_USERS], scope_id=project.pk)
        | Q(scope=Scope.API_KEY, scope_id__in=keys)
        | Q(scope=Scope.END_USER, scope_id__in=end_users)
    )
