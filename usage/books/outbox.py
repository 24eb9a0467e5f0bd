"""Writes events into the outbox: each threshold of a period once, in the transaction that crosses it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

from usage.books import weeks
from usage.books.budgets import Posted
from usage.books.weeks import PostedWeek
from usage.database.sql import insert
from usage.models import Event, EventKind
from usage.models.budget_keys import BUDGET_PARTS, EVER, BudgetKey, LimitKey
from usage.models.budgets import owner_of
from usage.pricing import to_usd

# In percent of a budget's limit.
PERCENTS = (50, 80, 100)
SOFT_LIMIT = "warning"
"""The threshold of a soft limit beside another limit."""


class NewEvent(NamedTuple):
    """An event to write, unless the outbox has one of the same kind, subject, period and threshold."""

    kind: EventKind
    organization_id: int | None
    subject: str
    period: str
    threshold: str
    data: Mapping[str, Any]


def write(now: datetime, events: Iterable[NewEvent]) -> None:
    """Write the events that are not in the outbox yet."""
    # In the order of the unique key, so that two transactions with the same events do not deadlock.
    rows = [
        (uuid4(), each.organization_id, each.kind.value, *each[2:5], json.dumps(each.data), now)
        for each in sorted(events, key=lambda each: (each.kind.value, *each[2:5]))
    ]
    if rows:
        columns = ("id", "organization_id", "kind", *NewEvent._fields[2:], "created_at")
        insert("usage_event", columns, rows, "ON CONFLICT DO NOTHING")


def write_crossed(
    now: datetime,
    changes: Mapping[str, tuple[int, int]],
    posted: Sequence[tuple[Any, ...]],
    of_weeks: Sequence[tuple[Any, ...]],
) -> None:
    """Write an event for each threshold that these postings crossed; costs no statement if there is none.

    `changes` is what `budgets.post` got, `posted` its result, and `of_weeks` that of `weeks.read_posted`,
    after their statements were sent.
    """
    events: list[NewEvent] = []
    for row in posted:
        _, _, _, limit, credited, _ = row
        if limit is not None or credited is not None:
            after = Posted._make(row)
            events += _crossed(now, after, after.posted_nanodollars - changes[after.id][1])
    for week in weeks.posted(changes, of_weeks):
        events += _crossed_of_week(now, week)
    write(now, events)


def _crossed(now: datetime, after: Posted, before: int) -> list[NewEvent]:
    found: list[NewEvent] = []
    spent, limit = after.posted_nanodollars, after.signed_limit_nanodollars or 0
    thresholds = _percents(before, spent, limit)
    if limit > 0 and after.reached_soft_limit_at(now):
        thresholds.append(SOFT_LIMIT)
    if thresholds and not _is_over(now, after.id):
        found += budget_events(after.id, thresholds, spent, limit)
    credited, low = after.credited_nanodollars, after.low_credit_nanodollars
    if credited and low is not None and credited - spent < low <= credited - before:
        found.append(low_credit(BudgetKey.parse(after.id).scope_id, credited, credited - spent, low))
    return found


def _crossed_of_week(now: datetime, week: PostedWeek) -> list[NewEvent]:
    before, spent, limit = (
        week.before_nanodollars,
        week.posted_nanodollars,
        week.signed_limit_nanodollars or 0,
    )
    thresholds, soft = _percents(before, spent, limit), week.soft_limit_nanodollars
    if limit > 0 and soft is not None and before < soft <= spent:
        thresholds.append(SOFT_LIMIT)
    is_news = thresholds and not _is_over(now, week.id)
    return budget_events(week.id, thresholds, spent, limit) if is_news else []


def _percents(before: int, spent: int, limit: int) -> list[str]:
    return [str(percent) for percent in PERCENTS if before * 100 < percent * abs(limit) <= spent * 100]


def _is_over(now: datetime, budget_id: str) -> bool:
    """Return whether the budget's period is over: its thresholds are no news for a correction, which posts to
    the day, week and month of its charge.
    """
    resets_on = BudgetKey.parse(budget_id).resets_on
    # A day is allowed for time zones, and for requests that end after midnight.
    return resets_on is not None and resets_on < now.date() - timedelta(days=1)


def budget_events(
    budget_id: str, thresholds: Sequence[str], posted_nanodollars: int, signed_limit_nanodollars: int
) -> list[NewEvent]:
    """Return the events of thresholds that a budget has reached at once; none if its owner is gone."""
    key = BudgetKey.parse(budget_id)
    owner = owner_of(key.scope, key.scope_id)
    if owner is None:
        return []
    start = "" if key.period_start == EVER else str(key.period_start)
    data = {
        "scope": key.scope,
        "scope_id": str(key.scope_id),
        "name": owner.name,
        **{name: getattr(key, name) for name in BUDGET_PARTS},
        "period_start": start or None,
        "limit_usd": to_usd(abs(signed_limit_nanodollars)),
        "is_soft": signed_limit_nanodollars < 0,
        "spent_usd": to_usd(posted_nanodollars),
        "reached": thresholds,
    }
    return [
        NewEvent(
            EventKind.BUDGET,
            owner.organization_id,
            str(LimitKey.of(key)),
            start or key.period,
            threshold,
            data | {"threshold": threshold},
        )
        for threshold in thresholds
    ]


def low_credit(organization_id: int, credited: int, balance: int, low: int) -> NewEvent:
    """Return the event of a low balance. Its period is the sum credited so far, so each booking allows one
    more event.
    """
    return NewEvent(
        EventKind.CREDIT,
        organization_id,
        f"organization/{organization_id}",
        to_usd(credited),
        "",
        {"balance_usd": to_usd(balance), "threshold_usd": to_usd(low), "credited_usd": to_usd(credited)},
    )


def credited(now: datetime, organization_id: int, credited: int) -> None:
    """Allow one more event of low credit after this booking.

    Its period is the sum credited, so an earlier event with the same sum is renamed.
    """
    subject, period = f"organization/{organization_id}", to_usd(credited)
    known = Event.objects.filter(kind=EventKind.CREDIT, subject=subject, period=period)
    known.update(period=f"until {now.isoformat()}")
