"""The items and other facts of one organization's month, whether its days are itemized yet or not."""

from datetime import date, datetime

from django.db.models import Q, QuerySet, Sum

from accounts.models import Project
from usage import insights
from usage.insights import Filters, Range
from usage.models import BOOKED, CREDITING, DailyItem, Discount, HourlyUsage, ItemKind, LedgerEntry
from usage.rollups.closed_days import DAY, midnight
from usage.statements import itemizing
from usage.statements.itemizing import Item, Items, Sums, add
from usage.statements.month import Month

# What is read request by request of days that are not itemized yet: today, and yesterday for an hour.
MAX_REQUESTS_BY_KIND = 20_000
MAX_DAYS_BY_KIND = 3
Days = list[tuple[date, Items]]
_KEY, _SUMS = Item._fields[1:], Sums._fields


def rollups(organization_id: int, month: Month) -> insights.Totals:
    """Return the sums of the month as in `/v1/organization/costs` and on the Overview."""
    over = Range(month.start, month.end, "day")
    return insights.totals(over, Filters(organization_id=organization_id))


def projects(organization_id: int) -> dict[int, str]:
    """Return the names of the organization's projects by id."""
    return dict(Project.objects.filter(organization=organization_id).values_list("pk", "name"))


def discounts(organization_id: int, month: Month) -> list[tuple[datetime, int]]:
    """Return the discounts that began in the month, and the one in effect when it began, in basis points."""
    rows = Discount.objects.filter(organization=organization_id, effective_from__lt=month.end)
    known = list(rows.order_by("effective_from").values_list("effective_from", "basis_points"))
    earlier = [row for row in known if row[0] <= month.start][-1:]
    return [*(row for row in earlier if row[1]), *(row for row in known if row[0] > month.start)]


def itemized(organization_id: int, first: date, end: date) -> Days:
    """Return the items of itemized days from `first` up to `end`: credit by day, all others on the first."""
    rows = DailyItem.objects.filter(organization=organization_id, day__gte=first, day__lt=end).order_by()
    is_credit = Q(kind__in=CREDITING)
    by_day: dict[date, Items] = {first: {}}
    # Added up by the database: a month has 31 times as many rows as lines.
    for row in rows.exclude(is_credit).values_list(*_KEY).annotate(*(Sum(name) for name in _SUMS)):
        by_day[first][Item(organization_id, *row[: len(_KEY)])] = Sums(*row[len(_KEY) :])
    for day, kind, *sums in rows.filter(is_credit).values_list("day", "kind", *_SUMS):
        add(by_day.setdefault(day, {}), [(Item(organization_id, None, "", kind), Sums(*sums))])
    return sorted(by_day.items())


def until_now(organization_id: int, first: date, end: date) -> Days:
    """Return the items of days from `first` up to `end`, of which the last may not be itemized yet.

    Those are read request by request, or added up from the hours if there are too many.
    """
    known_until = itemizing.itemized_until() or itemizing.first_day() or date.min
    known_until = min(max(known_until, first), end)
    found = itemized(organization_id, first, known_until)
    hours = HourlyUsage.objects.filter(
        organization=organization_id, hour__gte=midnight(known_until), hour__lt=midnight(end)
    ).order_by()
    if known_until == end:
        return found
    is_small = (hours.aggregate(sum=Sum("requests"))["sum"] or 0) <= MAX_REQUESTS_BY_KIND
    if is_small and (end - known_until).days <= MAX_DAYS_BY_KIND:
        days = (known_until + number * DAY for number in range((end - known_until).days))
        return [*found, *((day, _by_kind(organization_id, day)) for day in days)]
    return [*found, (known_until, _by_model(organization_id, known_until, end))]


def _by_kind(organization_id: int, day: date) -> Items:
    return itemizing.items_of(_entries(organization_id, day, day + DAY))


def _by_model(organization_id: int, first: date, end: date) -> Items:
    """Return what people booked, which is rare, and everything else by project and model, from the hours."""
    items = itemizing.items_of(_entries(organization_id, first, end).filter(BOOKED))
    hours = HourlyUsage.objects.filter(
        organization=organization_id, hour__gte=midnight(first), hour__lt=midnight(end)
    ).order_by()
    names = ("requests", "prompt_tokens", "completion_tokens", "amount_nanodollars")
    for project_id, model, requests, prompt, completion, amount in hours.values_list(
        "project_id", "model"
    ).annotate(*(Sum(name) for name in names)):
        # The hours have the corrections too.
        corrected = sum(
            sums.amount_nanodollars
            for item, sums in items.items()
            if (item.project_id, item.model) == (project_id, model)
        )
        item = Item(organization_id, project_id, model, ItemKind.ALL_TOKENS.value)
        charged = amount - corrected
        add(items, [(item, Sums(requests, prompt + completion, charged, charged))])
    return items


def _entries(organization_id: int, first: date, end: date) -> QuerySet[LedgerEntry]:
    return LedgerEntry.objects.filter(
        organization=organization_id, created_at__gte=midnight(first), created_at__lt=midnight(end)
    )
