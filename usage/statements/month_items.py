"""The items and other facts of one organization's month, whether its days are itemized yet or not."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime
from typing import NamedTuple

from django.db.models import BooleanField, Case, ExpressionWrapper, F, Q, QuerySet, Sum, When

from accounts.models import Project
from usage import insights
from usage.books.prices import History
from usage.insights import Filters, Range, SumsSpec
from usage.insights.sums import sums_of
from usage.models import CREDITING, DailyItem, HourlyUsage, ItemKind, LedgerEntry
from usage.rollups.closed_days import midnight
from usage.statements import itemizing
from usage.statements.itemizing import Days, Item, Sums, add
from usage.statements.month import Month

# What is read one by one of days that are not itemized yet: today, and yesterday for an hour.
MAX_REQUESTS_BY_KIND = 5_000
MAX_ENTRIES = 4 * MAX_REQUESTS_BY_KIND
_KEY, _SUMS = Item._fields[1:], Sums._fields


def rollups(organization_id: int, month: Month) -> insights.Totals:
    """Return the sums of the month as in `/v1/organization/costs` and on the Overview."""
    over = Range(month.start, month.end, "day")
    return insights.totals(over, Filters(organization_id=organization_id))


def projects(organization_id: int) -> dict[int, str]:
    """Return the names of the organization's projects by id."""
    return dict(Project.objects.filter(organization=organization_id).values_list("pk", "name"))


def discounts(
    known: Sequence[tuple[datetime, int]], month: Month, until: datetime
) -> list[tuple[datetime, int]]:
    """Return the discounts, in basis points, of the month: when it began, and begun in it before `until`."""
    earlier = [row for row in known if row[0] <= month.start][-1:]
    began = (row for row in known if month.start < row[0] < until)
    return [*(row for row in earlier if row[1]), *began]


def itemized(organization_id: int, month: Month, end: date) -> Days:
    """Return the items of the itemized days from the month's first day up to `end`.

    Credit, and items of days after the month, keep their day. All other items of the month are added up on
    its first day.
    """
    rows = DailyItem.objects.filter(organization=organization_id, day__gte=month.first_day, day__lt=end)
    has_own_day = Q(kind__in=CREDITING) | Q(day__gte=month.next.first_day)
    rows = rows.annotate(own_day=Case(When(has_own_day, then=F("day")))).order_by()
    days: Days = {month.first_day: {}}
    # Added up by the database: a month has 31 times as many rows as lines.
    for day, *row in rows.values_list("own_day", *_KEY).annotate(*(Sum(name) for name in _SUMS)):
        item, sums = Item(organization_id, *row[: len(_KEY)]), Sums(*row[len(_KEY) :])
        add(days.setdefault(day or month.first_day, {}), [(item, sums)])
    return days


class SoFar(NamedTuple):
    """A month that is not closed."""

    days: Days
    """The month's items until now. Days after the month's end hold the items since then: the opening balance
    is computed from them, too."""
    requests: int
    """The month's requests."""


def so_far(
    organization_id: int, month: Month, itemized_until: date | None, end: date, history: History
) -> SoFar:
    """Return the month's items up to `end`, which is tomorrow.

    Entries of days that are not itemized yet are read one by one, or added up if there are too many: the
    charges from the hours.
    """
    known_until = min(max(itemized_until or month.first_day, month.first_day), end)
    days = itemized(organization_id, month, known_until)
    # From closed days, and the hours of the others.
    ranges = (Range(month.start, month.end, "day"), Range(midnight(known_until), midnight(end), "day"))
    filters = Filters(organization_id=organization_id)
    sums = sums_of([SumsSpec(over, None, filters) for over in ranges])
    in_month, not_itemized = (sum(each.requests for each in found.values()) for found in sums)
    if known_until < end:
        later = None
        if not_itemized <= MAX_REQUESTS_BY_KIND:
            # One more says that there are too many: a re-rating writes entries of earlier days' requests.
            rows = list(itemizing.rows_of(_entries(organization_id, known_until, end))[: MAX_ENTRIES + 1])
            later = itemizing.items_of(rows, history) if len(rows) <= MAX_ENTRIES else None
        if later is None:
            later = _by_model(organization_id, known_until, end, month)
        for day, items in later.items():
            add(days.setdefault(day, {}), items.items())
    return SoFar(days, in_month)


def _by_model(organization_id: int, first: date, end: date, month: Month) -> Days:
    """Return what people booked, and everything else by project and model, from the hours; the month's on the
    first day.
    """
    days = itemizing.items_of_bookings(_entries(organization_id, first, end))
    corrected: defaultdict[tuple[bool, int | None, str], int] = defaultdict(int)
    for day, items in days.items():
        for item, sums in items.items():
            corrected[day >= month.next.first_day, item.project_id, item.model] += sums.amount_nanodollars
    is_later = ExpressionWrapper(Q(hour__gte=month.end), BooleanField())
    hours = HourlyUsage.objects.filter(
        organization=organization_id, hour__gte=midnight(first), hour__lt=midnight(end)
    )
    groups = hours.annotate(is_later=is_later).order_by().values_list("is_later", "project_id", "model")
    names = ("requests", "prompt_tokens", "completion_tokens", "amount_nanodollars")
    for *owner, requests, prompt, completion, amount in groups.annotate(*(Sum(name) for name in names)):
        later, project_id, model = owner
        # The hours have the corrections too.
        charged = amount - corrected[later, project_id, model]
        item = Item(organization_id, project_id, model, ItemKind.ALL_TOKENS.value)
        items = days.setdefault(max(first, month.next.first_day) if later else first, {})
        add(items, [(item, Sums(requests, prompt + completion, charged, charged))])
    return days


def _entries(organization_id: int, first: date, end: date) -> QuerySet[LedgerEntry]:
    return LedgerEntry.objects.filter(
        organization=organization_id, created_at__gte=midnight(first), created_at__lt=midnight(end)
    )
