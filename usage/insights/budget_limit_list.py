"""Budget limits, each with what its budget of the current period has spent."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

from django.db import models
from django.db.models import Case, F, Max, OuterRef, Q, QuerySet, Subquery, Sum, Value, When
from django.db.models.functions import Cast, Coalesce, Concat, Greatest, Least

from accounts import access
from accounts.models import EndUser, Organization, Project
from usage.books.outbox import SOFT_LIMIT
from usage.database.clock import database_now, local_day
from usage.database.time_limit import time_limit
from usage.insights.fullest_budgets import NEAR_LIMIT
from usage.insights.sources import Filters
from usage.models import Budget, BudgetLimit, Event, EventKind, Period, Scope
from usage.models.budget_keys import OUTER_LIMIT, ROW_PERIODS, BudgetKey
from usage.models.budgets import OWNERS

Rows = TypeVar("Rows", bound=models.Model)

# The order of the list, behind the limits that are nearly reached: from the whole to its parts.
_ORDER = (
    Scope.ORGANIZATION, Scope.ORGANIZATION_END_USERS, Scope.PROJECT, Scope.PROJECT_END_USERS, Scope.API_KEY,
    Scope.END_USER,
)  # fmt: skip
_PERIODS = (Period.DAY, Period.WEEK, Period.MONTH, Period.EVER)
# The lookup of a limit's organization by the id of its owner.
_TO_ORGANIZATION = {
    Scope.ORGANIZATION: "pk",
    Scope.ORGANIZATION_END_USERS: "pk",
    Scope.PROJECT: "projects",
    Scope.PROJECT_END_USERS: "projects",
    Scope.API_KEY: "projects__api_keys",
    Scope.END_USER: "projects__end_users",
}
# Ends with the primary key: a page that ends between two limits of one place would lose the second.
_PLACE = ("is_far", "space", "rank", "scope_id", "turn", "pk")
_EACH_END_USER = (Scope.ORGANIZATION_END_USERS, Scope.PROJECT_END_USERS)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit, and the budget of the current period that it limits; its days are the organization's."""

    limit: BudgetLimit
    key: BudgetKey
    time_zone: str
    posted_nanodollars: int
    pending_nanodollars: int
    soft_limit_reached_at: datetime | None

    @property
    def share(self) -> float:
        """Return the share of the limit, else of the soft one, that is spent or held; 1 of a limit of 0."""
        limit = self.limit.limit_nanodollars
        ceiling = self.limit.soft_limit_nanodollars if limit is None else limit
        return (self.posted_nanodollars + self.pending_nanodollars) / ceiling if ceiling else 1.0

    @property
    def warned_at(self) -> datetime | None:
        """Return when the soft limit was reached; None if it was raised since then beyond what is spent."""
        soft = self.limit.soft_limit_nanodollars
        is_reached = soft is not None and self.posted_nanodollars >= soft
        return self.soft_limit_reached_at if is_reached else None

    @property
    def is_of_each_end_user(self) -> bool:
        """Return whether it limits many end users, each with its own budget."""
        return self.limit.scope in _EACH_END_USER


def with_subject(rows: "QuerySet[Rows]") -> "QuerySet[Rows]":
    """Return budgets or limits with `subject_name`, their owner's full name."""
    names = []
    for scope, (model, path) in OWNERS.items():
        first, *others = map(F, path)
        name = Concat(first, *(part for each in others for part in (Value(" / "), each))) if others else first
        owner = model._default_manager.filter(pk=OuterRef("scope_id"))
        names.append(When(scope=scope, then=Subquery(owner.values(subject=name))))
    named: Any = rows.annotate(subject_name=Case(*names, output_field=models.CharField()))
    return named  # type: ignore[no-any-return]  # the stubs know no annotated class


def filters_of(key: BudgetKey) -> Filters | None:
    """Return the filters of the requests in a budget; None for a limit of each end user."""
    # All of the key is unpacked: another part must be a filter, too.
    scope, scope_id, _, _ = key
    match scope:
        case Scope.ORGANIZATION:
            return Filters(organization_id=scope_id)
        case Scope.PROJECT:
            return Filters(project_id=scope_id)
        case Scope.API_KEY:
            return Filters(api_key_id=scope_id)
        case Scope.END_USER:
            person = EndUser.objects.get(pk=scope_id)
            return Filters(project_id=person.project_id, end_user=person.name)
    return None


@time_limit()
def limits_page(
    organization: Organization, project: Project | None, after: int | None, size: int
) -> list[LimitUse] | None:
    """Return limits of the organization, or of the project and its keys, that come after one in the list;
    None if that one is not in it. Limits of which 80 % or the warning is reached come first, the fullest
    one at the top.
    """
    now, of_it = database_now(), access.belonging_to(organization.pk, BudgetLimit.objects.all())
    rows: Any = _in_order(_with_share(of_it, [local_day(now, organization.time_zone)]))
    if project is not None:
        rows = access.in_projects([project.pk], rows)
    if after is not None:
        last = rows.filter(pk=after).first()
        if last is None:
            return None
        rows = rows.filter(_behind(last))
    return uses(with_subject(rows)[:size], organization.time_zone, now)


def limit_use(organization: Organization, rows: "QuerySet[BudgetLimit]") -> LimitUse | None:
    """Return the first of these limits of the organization; None if there is none."""
    return next(iter(uses(with_subject(rows), organization.time_zone)), None)


@time_limit()
def fullest(rows: "QuerySet[BudgetLimit]", skip: int, size: int) -> list[LimitUse]:
    """Return a page of these limits, those that are nearest to be reached first.

    Where time zones have different days, the page is chosen by the fuller of a limit's two budgets.
    """
    now = database_now()
    zones = Organization.objects.order_by().values_list("time_zone", flat=True).distinct()
    by_share = _with_share(rows, {local_day(now, zone) for zone in zones})
    named: Any = with_subject(_with_time_zone(by_share))
    page = named.order_by("-share", "id")[skip : skip + size]
    return sorted(uses(page), key=lambda use: -use.share)


def uses(
    limits: Iterable[BudgetLimit], time_zone: str | None = None, now: datetime | None = None
) -> list[LimitUse]:
    """Return the limits with the amounts of their current budgets; without a time zone, rows have theirs."""
    now, shown = now or database_now(), list(limits)
    zones: list[str] = [time_zone or limit.time_zone for limit in shown]  # type: ignore[attr-defined]
    keys = [limit.key.budget(local_day(now, zone)) for limit, zone in zip(shown, zones, strict=True)]
    # A budget has a row from its first request on; without a row it is at zero.
    known = Budget.objects.in_bulk([row_id for key in keys for row_id in key.row_ids])
    reached = _weeks_reached(shown, keys)
    found = []
    for limit, key, zone in zip(shown, keys, zones, strict=True):
        rows = [known[row_id] for row_id in key.row_ids if row_id in known]
        posted, pending = (
            sum(row.posted_nanodollars for row in rows),
            sum(row.pending_nanodollars for row in rows),
        )
        own = known.get(str(key))
        reached_at = own.soft_limit_reached_at if own else reached.get(str(key))
        found.append(LimitUse(limit, key, zone, posted, pending, reached_at))
    return found


def _weeks_reached(limits: Iterable[BudgetLimit], keys: Iterable[BudgetKey]) -> dict[str, datetime]:
    """Return when those of these budgets that are weeks reached their soft limits: a week has no row that
    says it, but an event.
    """
    wanted = {
        (str(limit.key), str(key.period_start)): str(key)
        for limit, key in zip(limits, keys, strict=True)
        if key.period == Period.WEEK and limit.soft_limit_nanodollars is not None
    }
    if not wanted:
        return {}
    subjects, starts = zip(*wanted, strict=True)
    rows = Event.objects.filter(
        kind=EventKind.BUDGET, subject__in=subjects, period__in=starts, threshold__in=(SOFT_LIMIT, "100")
    ).filter(Q(threshold=SOFT_LIMIT) | Q(data__is_soft=True))
    found = rows.order_by("-created_at").values_list("subject", "period", "created_at")
    return {wanted[each[:2]]: each[2] for each in found if each[:2] in wanted}


def unlimited(scope: Scope, ids: Collection[int]) -> set[int]:
    """Return those of the owners that have no hard limit of their own."""
    limited = BudgetLimit.objects.filter(scope=scope, scope_id__in=ids, limit_nanodollars__isnull=False)
    return set(ids) - set(limited.values_list("scope_id", flat=True))


def organization_of(limit: BudgetLimit) -> Organization:
    return Organization.objects.get(**{_TO_ORGANIZATION[Scope(limit.scope)]: limit.scope_id})


def _with_time_zone(rows: "QuerySet[BudgetLimit]") -> "QuerySet[BudgetLimit]":
    zones = {
        path: Subquery(Organization.objects.filter(**{path: OuterRef("scope_id")}).values("time_zone"))
        for path in set(_TO_ORGANIZATION.values())
    }
    cases = (When(scope=scope, then=zones[path]) for scope, path in _TO_ORGANIZATION.items())
    named: Any = rows.annotate(time_zone=Case(*cases, output_field=models.CharField()))
    return named  # type: ignore[no-any-return]  # the stubs know no annotated class


def _with_share(rows: QuerySet[BudgetLimit], days: Collection[date]) -> Any:
    """Return the limits with what the fullest of their budgets of these days has `used`, and with its
    `share` of the limit, else of the soft one; 1 of a limit of 0.
    """
    current = Q()
    for period in ROW_PERIODS:
        current |= Q(period=period, period_start__in={period.start(day) for day in days})
    own = Budget.rows(OUTER_LIMIT).filter(current).order_by()
    spent = F("posted_nanodollars") + F("pending_nanodollars")
    used = own.values("scope_id").annotate(most=Max(spent))
    of_days = Budget.rows(OUTER_LIMIT._replace(period=Period.DAY.value)).order_by()
    weeks = [
        Coalesce(
            Subquery(
                of_days.filter(period_start__range=(monday, monday + timedelta(days=6)))
                .values("scope_id")
                .annotate(most=Cast(Sum(spent), models.BigIntegerField()))
                .values("most"),
            ),
            0,
        )
        for monday in {Period.WEEK.start(day) for day in days}
    ]
    nothing = Value(0, output_field=models.BigIntegerField())
    most = Case(
        # The function needs two numbers, also in an installation without organizations.
        When(period=Period.WEEK, then=Greatest(nothing, nothing, *weeks)),
        default=Coalesce(Subquery(used.values("most")), 0),
    )
    ceiling = Coalesce("limit_nanodollars", "soft_limit_nanodollars")
    share = Case(
        When(ceiling__gt=0, then=F("used") * 1.0 / F("ceiling")),
        default=1.0,
        output_field=models.FloatField(),
    )
    counted = rows.annotate(used=most, ceiling=ceiling)
    return counted.annotate(share=share)


def _in_order(rows: Any) -> Any:
    is_near = Q(share__gte=NEAR_LIMIT) | Q(used__gte=F("soft_limit_nanodollars"))
    is_far = Case(When(is_near, then=0), default=1, output_field=models.IntegerField())
    # A whole number, because the next page compares it: databases read floats back as neighbours.
    millionths = Cast(
        Least(F("share"), 1e6, output_field=models.FloatField()) * -1e6, models.BigIntegerField()
    )
    space = Case(When(is_near, then=millionths), default=0, output_field=models.BigIntegerField())
    places = {"rank": _place_in(_ORDER, "scope"), "turn": _place_in(_PERIODS, "period")}
    return rows.annotate(is_far=is_far, space=space, **places).order_by(*_PLACE)


def _place_in(order: Iterable[str], column: str) -> Case:
    places = (When(**{column: each}, then=at) for at, each in enumerate(order))
    return Case(*places, output_field=models.IntegerField())


def _behind(last: Any) -> Q:
    behind, same = Q(), Q()
    for name in _PLACE:
        behind |= same & Q(**{f"{name}__gt": getattr(last, name)})
        same &= Q(**{name: getattr(last, name)})
    return behind
