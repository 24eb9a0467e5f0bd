"""Invariants of sums: budgets, credit and rollups equal the ledger, added up again."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from operator import add
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import TruncMonth, TruncWeek

from accounts.models import Project
from usage.database.clock import TruncUTC, hour_of
from usage.models import (
    BOOKED,
    OWED_SIGNS,
    SPENT,
    Budget,
    BudgetLimit,
    ClosedDay,
    Credit,
    DailyEndUserUsage,
    DailyTotals,
    DailyUsage,
    Dimension,
    Generation,
    HourlyUsage,
    Kind,
    LedgerEntry,
    MonthlyEndUserUsage,
    Period,
    State,
)
from usage.models.budget_keys import BudgetOwners
from usage.models.generations import FAILED
from usage.rollups import Group, closed_days
from usage.verification.invariants import Difference, by_organization

_GROUP = (*BudgetOwners._fields, "budget_day")
_SUMS = closed_days.SUMS[1:]


def budgets_conserve(since: datetime | None) -> Iterator[Difference]:
    """Check I2: in every budget, posted is the sum of its entries and pending the sum of its open holds.

    With `since`, posted is checked only in days and months that began after it.
    """
    # The first day that begins after `since` in every time zone: all its entries are newer.
    first_day = (since + timedelta(hours=14 + 24)).date() if since else None
    spent = LedgerEntry.objects.filter(kind__in=SPENT)
    spent = spent.filter(created_at__gte=since, budget_day__gte=first_day) if since else spent
    posted = by_budget(spent, "amount_nanodollars")
    pending = by_budget(Generation.objects.exclude(state=State.SETTLED), "reserved_nanodollars")
    # Groups are popped as their budgets come, so that those that are left have no budget.
    budgets = Budget.objects.order_by("id")
    if first_day:
        # Of all others nothing is compared, and they become millions: one for each owner and day.
        # In no order, for which SQLite would look each of them up by its id.
        budgets = budgets.filter(Q(period_start__gte=first_day) | Q(pending_nanodollars__gt=0)).order_by()
    for budget in budgets.iterator():
        is_whole = first_day is None or budget.period_start >= first_day
        expected = (
            posted.pop(budget.id, 0) if is_whole else budget.posted_nanodollars,
            pending.pop(budget.id, 0),
        )
        found = (budget.posted_nanodollars, budget.pending_nanodollars)
        if expected != found:
            amounts = ("posted {} pending {}".format(*each) for each in (expected, found))
            yield Difference("I2 conservation", budget.id, *amounts)
        yield from _misnamed(budget)
    yield from _left_over(posted, pending, has_older=first_day is not None)


def _left_over(posted: dict[str, int], pending: dict[str, int], *, has_older: bool) -> Iterator[Difference]:
    """Yield the sums that no compared budget has. Entries of a day also count in its month and in "ever",
    which may be older.
    """
    left = posted.keys() | pending.keys()
    known = Budget.objects.in_bulk(left) if has_older else {}
    for budget_id in sorted(left):
        expected = (posted.get(budget_id, 0), pending.get(budget_id, 0))
        if budget_id in known:
            yield from _misnamed(known[budget_id])
            if expected[1]:
                yield Difference("I2 conservation", budget_id, f"pending {expected[1]}", "pending 0")
        elif any(expected):
            yield Difference("I2 conservation", budget_id, f"posted {expected[0]}", "no such budget")


def _misnamed(budget: Budget) -> Iterator[Difference]:
    """Yield the budget if its columns, which find its limit, differ from its id, which finds its sums."""
    if budget.id != str(budget.key):
        actual = f"{budget.key}, whose limit it has"
        yield Difference("I2 conservation", budget.id, "the budget that its id says", actual)


def credit_conserves() -> Iterator[Difference]:
    """Check I2: an organization's credit is its grants less its refunds."""
    # All of them each hour, so by the index of bookings: the ledger as a whole takes too long.
    booked = LedgerEntry.objects.filter(BOOKED, kind__in=[*OWED_SIGNS])
    moved = booked.order_by().values_list("organization_id")
    expected = {organization_id: -owed for organization_id, owed in moved.annotate(Sum("amount_nanodollars"))}
    found = dict(Credit.objects.values_list("organization_id", "credited_nanodollars"))
    for organization_id in sorted(expected.keys() | found.keys()):
        credited = (expected.get(organization_id, 0), found.get(organization_id, 0))
        if credited[0] != credited[1]:
            yield Difference(
                "I2 credit", f"organization {organization_id}", f"{credited[0]} n$", f"{credited[1]} n$"
            )


def rollup_is_the_ledger(since: datetime | None) -> Iterator[Difference]:
    """Check I2 and I13: the hourly rollup is the ledger summed, row by row (from the hour of `since`)."""
    keys = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
    entries, rollup = LedgerEntry.objects.filter(kind__in=SPENT), by_organization(HourlyUsage.objects.all())
    if since:
        entries = entries.filter(created_at__gte=hour_of(since))
        rollup = rollup.filter(hour__gte=hour_of(since))
    summed = _summed(entries.annotate(hour=TruncUTC("hour", "created_at")), keys)
    for group, *sums in _unequal(summed, _by_group(rollup, keys)):
        subject = f"key {group[3]}, {group[4]}, {group[1]:%Y-%m-%d %H}h, {group[5]}"
        yield Difference("I2 rollup", subject, *sums)


def end_users_days_are_the_ledger(since: datetime | None) -> Iterator[Difference]:
    """Check I2 and I13: each end user's day is the ledger summed (of the days that began since then)."""
    keys = ("organization_id", "day", "project_id", "end_user_id", "model")
    days = by_organization(DailyEndUserUsage.objects.all())
    entries = LedgerEntry.objects.filter(kind__in=SPENT, end_user_id__isnull=False)
    if since:
        first = since.date() + timedelta(days=1)
        days = days.filter(day__gte=first)
        entries = entries.filter(created_at__gte=closed_days.midnight(first))
    summed = _summed(entries.annotate(day=TruncUTC("day", "created_at")), keys)
    expected = {(group[0], group[1].date(), *group[2:]): sums for group, sums in summed.items()}
    for group, *sums in _unequal(expected, _by_group(days, keys)):
        yield Difference("I2 rollup", f"day {group[1]}, end user {group[3]}, {group[4]}", *sums)


def end_users_months_are_their_days(since: datetime | None) -> Iterator[Difference]:
    """Check I2 and I13: the months of each project's end users are their days (from the month of `since`)."""
    days = by_organization(DailyEndUserUsage.objects.all())
    months = MonthlyEndUserUsage.objects.filter(project__in=Project.objects.values("pk"))
    if since:
        first = since.date().replace(day=1)
        days, months = days.filter(day__gte=first), months.filter(month__gte=first)
    # By project, so that the database adds up: a dict of all end users would be too large.
    expected, found = (
        {
            (row["project_id"], row["start"]): [row["sent"], row["amount"]]
            for row in rows.order_by()
            .values("project_id", start=TruncMonth(column))
            .annotate(sent=Sum("requests"), amount=Sum("amount_nanodollars"))
        }
        for rows, column in ((days, "day"), (months, "month"))
    )
    for group, *sums in _unequal(expected, found):
        yield Difference("I2 rollup", f"month {group[1]:%Y-%m}, end users of project {group[0]}", *sums)


def days_are_their_hours(since: datetime | None) -> Iterator[Difference]:
    """Check I2 and I13: closed days (begun since then) are the sums of their hours."""
    closed = ClosedDay.objects.filter(day__gt=since.date()) if since else ClosedDay.objects.all()
    days = _by_group(by_organization(DailyUsage.objects.filter(day__in=closed)), _BY_DAY)
    for group, *sums in _unequal(_hours_by_day(set(closed.values_list("day", flat=True))), days):
        yield Difference("I2 rollup", f"day {group[0]}, key {group[3]}, {group[4]}", *sums)
    for member, *sums in _unequal(_by_dimension(days), _totals(closed)):
        yield Difference("I2 rollup", f"day {member[0]}, {member[1]} {member[2]}", *sums)


def _summed(entries: QuerySet[Any], keys: Sequence[str]) -> dict[Group, list[int]]:
    """Return the sums of ledger entries by group, as rollups have them: only charges count as requests."""
    sums = (
        entries.order_by()
        .values_list(*keys)
        .annotate(
            requests=Count("id", filter=Q(kind=Kind.CHARGE)), **{f"sum_{name}": Sum(name) for name in _SUMS}
        )
    )
    return {row[: len(keys)]: list(row[len(keys) :]) for row in sums}


def _by_group(rows: QuerySet[Any], keys: Sequence[str]) -> dict[Group, list[int]]:
    """Return the sums that the rows of a rollup have, by their group."""
    found = rows.values_list(*keys, *closed_days.SUMS).iterator()
    return {row[: len(keys)]: list(row[len(keys) :]) for row in found}


def _unequal(
    expected: dict[Group, list[int]], found: dict[Group, list[int]]
) -> Iterator[tuple[Group, str, str]]:
    """Yield the groups whose sums differ, with the expected and the found sums."""
    for group in sorted(expected.keys() | found.keys()):
        if expected.get(group) != found.get(group):
            yield group, str(expected.get(group)), str(found.get(group))


def over_limit() -> Iterator[str]:
    """Yield a remark for each budget beyond its limit.

    This is no mistake: a limit was lowered, a charge was raised, or an upstream exceeded its cap.
    """
    limits = BudgetLimit.objects.filter(limit_nanodollars__isnull=False)
    for limit in limits.exclude(period=Period.WEEK):
        over = Budget.rows(limit.key).filter(posted_nanodollars__gt=limit.limit_nanodollars)
        for budget in over.order_by("id"):
            spent = f"{budget.id} has spent {budget.posted_nanodollars} n$"
            yield f"{spent}, its limit is {limit.limit_nanodollars} n$"
    for limit in limits.filter(period=Period.WEEK):
        days = Budget.rows(limit.key._replace(period=Period.DAY.value)).order_by()
        by_week = days.annotate(monday=TruncWeek("period_start")).values_list("monday")
        weeks = by_week.annotate(spent=Sum("posted_nanodollars"))
        for monday, posted in weeks.filter(spent__gt=limit.limit_nanodollars).order_by("monday"):
            spent = f"{limit.key.budget(monday)} has spent {posted} n$"
            yield f"{spent}, its limit is {limit.limit_nanodollars} n$"


def by_budget(rows: "QuerySet[LedgerEntry] | QuerySet[Generation]", amount: str) -> dict[str, int]:
    """Return the sum of the column `amount` for each budget id in which the rows count."""
    sums: dict[str, int] = {}
    for *owners, day, total in rows.order_by().values_list(*_GROUP).annotate(total=Sum(amount)):
        for budget_id in BudgetOwners(*owners).budget_ids(day):
            sums[budget_id] = sums.get(budget_id, 0) + total
    return sums


_BY_DAY = ("day", *closed_days.GROUP)


def _hours_by_day(closed: set[date]) -> dict[Group, list[int]]:
    if not closed:
        return {}
    hours = by_organization(HourlyUsage.objects.filter(hour__gte=closed_days.midnight(min(closed))))
    rows = hours.annotate(day=TruncUTC("day", "hour")).order_by().values_list(*_BY_DAY)
    summed = rows.annotate(*(Sum(name) for name in closed_days.SUMS))
    return {
        (row[0].date(), *row[1 : len(_BY_DAY)]): list(row[len(_BY_DAY) :])
        for row in summed
        if row[0].date() in closed
    }


def _by_dimension(days: dict[Group, list[int]]) -> dict[Group, list[int]]:
    """Return the failed requests and the sums of each day, dimension and member."""
    totals: dict[Group, list[int]] = {}
    for (day, *members), numbers in days.items():
        # The outcome is the last column of a group.
        counted = [numbers[0] if members[-1] in FAILED else 0, *numbers]
        for (dimension, _), member in zip(closed_days.COLUMNS.items(), members, strict=True):
            key = (day, dimension.value, str(member))
            totals[key] = list(map(add, totals.get(key, [0] * len(counted)), counted))
    return totals


def _totals(closed: QuerySet[ClosedDay]) -> dict[Group, list[int]]:
    # Their index begins with the dimension.
    rows = DailyTotals.objects.filter(dimension__in=Dimension.values, day__in=closed).values_list(
        "day", "dimension", "member", "failed_requests", *closed_days.SUMS
    )
    return {(day, dimension, member): numbers for day, dimension, member, *numbers in rows.iterator()}
