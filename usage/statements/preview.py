"""The statement of a month without an issued one, as of now: the current month, and those that wait."""

from datetime import date, datetime
from typing import Any, NamedTuple

from django.db.models import BigIntegerField, CharField, DateTimeField, F, QuerySet, Value

from accounts.models import Organization, Project
from usage.books.prices import History
from usage.database.clock import StartOfDay
from usage.database.replica import report
from usage.database.snapshot import snapshot
from usage.insights.sources import rows_of
from usage.models import Budget, Credit, Discount, ItemizedDay
from usage.rollups import closed_days
from usage.rollups.closed_days import DAY, midnight
from usage.statements import document, month_items
from usage.statements.document import Facts, StatementDocument
from usage.statements.month import Month


@report
def preview(organization: Organization, month: Month, now: datetime) -> StatementDocument:
    """Return the statement of a month that has begun, from the itemized days and what came since."""
    tomorrow = now.date() + DAY
    begin, end = month.start, max(month.end, midnight(tomorrow))
    with snapshot(has_time_limit=True):
        known = _Known.read(organization, begin, end)
        history = History(organization.pk, known.discounts)
        with closed_days.read_once(begin, end, known.closed_days):
            found = month_items.so_far(organization.pk, month, known.itemized_until, tomorrow, history)
    moved = sum(sums.amount_nanodollars for items in found.days.values() for sums in items.values())
    until = min(now, month.end)
    return document.build(
        Facts(
            organization.pk,
            organization.name,
            month,
            until,
            is_closed=False,
            # The balance of now, without what has moved since the month began.
            opening_nanodollars=known.balance_nanodollars + moved,
            requests=found.requests,
            days=[each for each in sorted(found.days.items()) if each[0] < month.next.first_day],
            projects=known.projects,
            discounts=month_items.discounts(known.discounts, month, until),
        )
    )


class _Known(NamedTuple):
    """What a preview needs beside its items, which is little, and therefore one statement."""

    closed_days: list[date]
    itemized_until: date | None
    """The day before which all days are itemized; None if none is since the month began."""
    balance_nanodollars: int
    projects: dict[int, str]
    discounts: list[tuple[datetime, int]]
    """The times from which the organization's discounts are in effect, with their basis points."""

    @classmethod
    def read(cls, organization: Organization, begin: datetime, end: datetime) -> "_Known":
        budget_id = Credit(organization=organization).budget_id
        day = StartOfDay("day")
        closed, itemized, credited, spent, projects, discounts = _rows_of_each(
            begin,
            (closed_days.closed_between(begin, end), {"moment": day}),
            (ItemizedDay.objects.filter(day__gte=begin.date()), {"moment": day}),
            (Credit.objects.filter(organization=organization), {"number": F("credited_nanodollars")}),
            (Budget.objects.filter(id=budget_id), {"number": F("posted_nanodollars")}),
            (Project.objects.filter(organization=organization), {"number": F("pk"), "text": F("name")}),
            (
                Discount.objects.filter(organization=organization),
                {"number": F("basis_points"), "moment": F("effective_from")},
            ),
        )
        return cls(
            closed_days=sorted(moment.date() for _, _, moment in closed),
            itemized_until=max((moment.date() + DAY for _, _, moment in itemized), default=None),
            balance_nanodollars=sum(row[0] for row in credited) - sum(row[0] for row in spent),
            projects={pk: name for pk, name, _ in projects},
            discounts=sorted((moment, points) for points, _, moment in discounts),
        )


def _rows_of_each(
    begin: datetime, *parts: tuple[QuerySet[Any], dict[str, Any]]
) -> list[list[tuple[int, str, datetime]]]:
    """Return the number, the text and the moment of the rows of each query, from one statement."""
    unused = {
        "number": Value(0, BigIntegerField()),
        "text": Value("", CharField()),
        "moment": Value(begin, DateTimeField()),
    }
    queries = []
    for place, (rows, columns) in enumerate(parts):
        every = {"part": Value(place), **unused, **columns}
        queries.append(rows.order_by().annotate(**every).values_list(*every))
    found: list[list[tuple[int, str, datetime]]] = [[] for _ in parts]
    for place, *row in rows_of(queries):
        found[place].append((row[0], row[1], row[2]))
    return found
