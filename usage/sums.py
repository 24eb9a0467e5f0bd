"""What must be the ledger's sum: budgets, credit, the hourly rollup; each compared with the ledger added up anew."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import TruncHour

from usage import budgets
from usage.differences import Difference
from usage.models import SPENT, Budget, BudgetLimit, Credit, Generation, HourlyUsage, Kind, LedgerEntry, State
from usage.rollups import Group, hour_of

_GROUP = ("organization_id", "project_id", "api_key_id", "budget_day")
_SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "amount_nanodollars")


def budgets_conserve(since: datetime | None) -> Iterator[Difference]:
    """I2: posted is the ledger's sum, pending is the open holds' sum, for every budget.

    With `since`: posted only of days and months that began after it; what is held always.
    """
    first_day = _first_whole_day(since) if since else None
    posted = _by_budget(_spent(since, first_day), "amount_nanodollars")
    pending = _by_budget(Generation.objects.exclude(state=State.SETTLED), "reserved_nanodollars")
    for budget in Budget.objects.order_by("id").iterator():
        is_whole = first_day is None or budget.period_start >= first_day
        expected = (posted.pop(budget.id, 0) if is_whole else budget.posted_nanodollars, pending.pop(budget.id, 0))
        found = (budget.posted_nanodollars, budget.pending_nanodollars)
        if expected != found:
            yield Difference("I2 conservation", budget.id, "posted {} pending {}".format(*expected), "posted {} pending {}".format(*found))
    known = set() if first_day is None else set(Budget.objects.filter(period_start__lt=first_day).values_list("id", flat=True))
    for budget_id in sorted((posted.keys() | pending.keys()) - known):
        if posted.get(budget_id) or pending.get(budget_id):
            yield Difference("I2 conservation", budget_id, f"posted {posted.get(budget_id, 0)}", "no such budget")


def credit_conserves() -> Iterator[Difference]:
    """I2: an organization's credit is its grants less its refunds."""
    moved = LedgerEntry.objects.filter(kind__in=[Kind.GRANT, Kind.REFUND]).order_by().values_list("organization_id")
    expected = {organization_id: -owed for organization_id, owed in moved.annotate(Sum("amount_nanodollars"))}
    found = dict(Credit.objects.values_list("organization_id", "credited_nanodollars"))
    for organization_id in sorted(expected.keys() | found.keys()):
        credited = (expected.get(organization_id, 0), found.get(organization_id, 0))
        if credited[0] != credited[1]:
            yield Difference("I2 credit", f"organization {organization_id}", f"{credited[0]} n$", f"{credited[1]} n$")


def rollup_is_the_ledger(since: datetime | None) -> Iterator[Difference]:
    """I2, I13: the hourly rollup is the ledger summed, row by row (with `since`: from the hour that it lies in)."""
    first_hour = hour_of(since) if since else None
    expected, found = _ledger_by_hour(first_hour), _rollup(first_hour)
    for group in sorted(expected.keys() | found.keys()):
        if expected.get(group) != found.get(group):
            subject = f"key {group[3]}, {group[4]}, {group[1]:%Y-%m-%d %H}h, {group[5]}"
            yield Difference("I2 rollup", subject, str(expected.get(group)), str(found.get(group)))


def over_limit() -> Iterator[str]:
    """Budgets beyond their limit, which is no mistake: a limit was lowered, a charge corrected upwards, an upstream disobeyed."""
    for limit in BudgetLimit.objects.filter(limit_nanodollars__isnull=False):
        same = Budget.objects.filter(scope=limit.scope, scope_id=limit.scope_id, period=limit.period)
        for budget in same.filter(posted_nanodollars__gt=limit.limit_nanodollars).order_by("id"):
            yield f"{budget.id} has spent {budget.posted_nanodollars} n$, its limit is {limit.limit_nanodollars} n$"


def _first_whole_day(since: datetime) -> date:
    """The first day that begins after `since` in every time zone: all entries that count in it were written since."""
    return (since + timedelta(hours=14 + 24)).date()


def _spent(since: datetime | None, first_day: date | None) -> QuerySet[LedgerEntry]:
    rows = LedgerEntry.objects.filter(kind__in=SPENT)
    return rows.filter(created_at__gte=since, budget_day__gte=first_day) if since else rows


def _by_budget(rows: "QuerySet[LedgerEntry] | QuerySet[Generation]", amount: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for organization_id, project_id, api_key_id, day, total in rows.order_by().values_list(*_GROUP).annotate(total=Sum(amount)):
        for budget_id in budgets.ids_for(organization_id, project_id, api_key_id, day):
            sums[budget_id] = sums.get(budget_id, 0) + total
    return sums


def _ledger_by_hour(first_hour: datetime | None) -> dict[Group, list[int]]:
    keys = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
    entries = LedgerEntry.objects.filter(kind__in=SPENT)
    if first_hour:
        entries = entries.filter(created_at__gte=first_hour)
    rows = entries.annotate(hour=TruncHour("created_at")).order_by().values_list(*keys)
    summed = rows.annotate(*(Sum(name) for name in _SUMS), charges=Count("id", filter=Q(kind=Kind.CHARGE)))
    return {tuple(row[: len(keys)]): [row[-1], *row[len(keys) : -1]] for row in summed}


def _rollup(first_hour: datetime | None) -> dict[Group, list[int]]:
    rows = HourlyUsage.objects.filter(hour__gte=first_hour) if first_hour else HourlyUsage.objects.all()
    return {
        (row.organization_id, row.hour, row.project_id, row.api_key_id, row.model, row.outcome): [
            getattr(row, name) for name in ("requests", *_SUMS)
        ]
        for row in rows.iterator()
    }
