"""The panels of an API key's page: recent activity above the form, limits below it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import CharField, Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Cast, JSONObject
from django.urls import reverse
from django.utils import timezone

from accounts import access
from accounts.access import Person
from accounts.audit.models import AuditEntry
from accounts.models import APIKey, Member, RateLimit
from usage.books import spending
from usage.books.spending import Spending
from usage.budget_words import BudgetWords, words
from usage.insights.keys import key_activity
from usage.insights.recent_sums import DAYS
from usage.models import Scope
from usage.pages import audit
from usage.pages.gauges import Fullness, draw_sparkline, fullness
from usage.rollups import refused_requests

_OWNERS = {Scope.ORGANIZATION: "its organization", Scope.PROJECT: "its project", Scope.API_KEY: "this key"}


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A rate limit that applies to the key, and the URL where it is changed."""

    owner: str
    model: str
    numbers: list[str]
    url: str


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget to which the key's requests count; `url` is that of its limit, or empty if it has none."""

    owner: str
    spending: Spending
    url: str

    @property
    def words(self) -> BudgetWords:
        return words(self.spending.key)

    @property
    def full(self) -> Fullness | None:
        """Return how full it is; None without a limit."""
        limit = self.spending.limit_nanodollars
        return (
            None
            if limit is None
            else fullness(self.spending.posted_nanodollars + self.spending.pending_nanodollars, limit)
        )


def panels(row: APIKey, person: Person) -> dict[str, Any]:
    """Return the templates' context: the activity and limits of a key that `with_maker` has read, and which
    limits the person may add.
    """
    activity = key_activity([row], timezone.now())[row.pk]
    refused = refused_requests.of_key(row.pk, timezone.now())
    return {
        "key": row,
        "made_by": made_by(row, person),
        "activity": activity,
        "activity_days": DAYS,
        "sparkline": draw_sparkline(activity.requests_by_day, activity.first_day),
        "refused": refused.by_code,
        "last_refusal": refused.last_invalid,
        "rate_limits": list(rate_limits(row)),
        "budgets": list(budgets(row)),
        **may_add(row, person),
    }


def with_maker(rows: QuerySet[APIKey]) -> QuerySet[APIKey]:
    """Add `made` to the keys, the entry of their creation in the audit log, for `made_by`; costs no query."""
    member = Member.objects.filter(organization=OuterRef("organization_id"), user=OuterRef("actor_id"))
    entries = AuditEntry.objects.filter(
        object_id=Cast(OuterRef("pk"), CharField()),
        object_type=APIKey._meta.label_lower,
        action="created",
        organization_id=OuterRef("project__organization"),
    )
    made = JSONObject(name="actor", person="actor_id", key="actor_key_id", is_member=Exists(member))
    return rows.annotate(made=Subquery(entries.order_by("id").values(made=made)[:1]))


def made_by(row: Any, person: Person, *, is_of_project: bool = False) -> str:
    """Return the name of the person, key or command that made the key; empty if the audit log has no entry.

    Names of people outside the organization are for those who may read the audit log. A page of its project
    only names no key: that may be a key of another project.
    """
    made = row.made
    if made is None:
        return ""
    if made["key"] is not None and is_of_project:
        return "an admin key"
    is_insider = made["is_member"] or made["key"] is not None
    if is_insider or access.may_in(person, audit.PERMISSION, row.project.organization_id):
        return str(made["name"])
    return "the operator" if made["person"] is None else "somebody who is not a member"


def may_add(row: APIKey, person: Person) -> dict[str, bool]:
    """Return which kinds of limits of the key the person may add, by the templates' names."""
    organization_id = row.project.organization_id
    return {
        "may_add_rate_limit": access.may_in(person, "accounts.add_ratelimit", organization_id),
        "may_add_budget": access.may_in(person, "usage.add_budgetlimit", organization_id),
    }


def rate_limits(row: APIKey, *, is_of_project: bool = False) -> Iterator[LimitRow]:
    """Yield the key's limits, then its project's and, unless the page is of its project only, its
    organization's.
    """
    owners = Q(project=row.project_id) | Q(api_key=row.pk)
    if not is_of_project:
        owners |= Q(organization=row.project.organization_id)
    found = RateLimit.objects.filter(owners, each_end_user=False)
    for limit in sorted(
        found, key=lambda limit: (list(reversed(_OWNERS)).index(Scope(limit.scope)), limit.model)
    ):
        numbers = [number.text for number in limit.limits]
        url = reverse("admin:accounts_ratelimit_change", args=[limit.pk])
        yield LimitRow(_OWNERS[Scope(limit.scope)], limit.model, numbers, url)


def budgets(row: APIKey, *, is_of_project: bool = False) -> Iterator[BudgetRow]:
    """Yield the key's budgets, then its project's and, unless the page is of its project only, its
    organization's.
    """
    organization = row.project.organization
    known = spending.now(
        organization_id=organization.pk,
        project_id=row.project_id,
        api_key_id=row.pk,
        time_zone=organization.time_zone,
    )
    for each in sorted(known, key=lambda each: list(reversed(_OWNERS)).index(Scope(each.key.scope))):
        if is_of_project and each.key.scope == Scope.ORGANIZATION:
            continue
        url = reverse("admin:usage_budgetlimit_change", args=[each.limit_id]) if each.limit_id else ""
        yield BudgetRow(_OWNERS[Scope(each.key.scope)], each, url)
