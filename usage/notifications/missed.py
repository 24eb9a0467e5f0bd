"""Finds reached thresholds without an event. Settlements do not check spend alerts; other events are missing
after an older release or a changed limit.
"""

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import (
    BigIntegerField,
    Case,
    CharField,
    Exists,
    F,
    Max,
    Model,
    OuterRef,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce, Concat

from accounts.models import Organization
from usage.books import budget_limits, outbox, weeks
from usage.books.outbox import PERCENTS, SOFT_LIMIT, NewEvent
from usage.database.clock import local_day
from usage.database.sql import db_value, fetch_all, rows_of_values
from usage.models import Budget, BudgetLimit, Credit, Event, EventKind, Period, Scope, SpendAlert
from usage.models.budget_keys import ROW_PERIODS, BudgetKey, LimitKey
from usage.models.budgets import CREDIT_BUDGET, LOW_CREDIT
from usage.pricing import to_usd

# What a look finds at most; the next one goes on.
MAX_FOUND = 500
# The limits, or organizations with credit, that one look reads; those of the next minute reads others.
AT_ONCE = 5_000
_THRESHOLDS = [*((str(percent), percent) for percent in PERCENTS), (SOFT_LIMIT, 0)]


def of_budgets(now: datetime) -> Iterator[NewEvent]:
    """Yield the events of current budgets that are not in the outbox."""
    zones = dict(Organization.objects.values_list("pk", "time_zone"))
    days = {local_day(now, zone) for zone in set(zones.values())}
    reached = _reached(days, _turn(now, BudgetLimit)) if days else ()
    for (budget_id, posted, limit), rows in groupby(reached, key=lambda row: row[:3]):
        key = BudgetKey.parse(budget_id)
        for event in outbox.budget_events(budget_id, [row[3] for row in rows], posted, limit):
            today = local_day(now, zones.get(event.organization_id or 0, "UTC"))
            # In some time zones, the period is over already.
            if Period(key.period).start(today) == key.period_start:
                yield event


def _turn(now: datetime, model: type[Model]) -> range:
    """Return the ids that a look in this minute reads: a part of them, so that millions are no more work."""
    last = model._default_manager.aggregate(last=Max("pk"))["last"] or 0
    begin = int(now.timestamp() // 60) % (last // AT_ONCE + 1) * AT_ONCE
    return range(begin, begin + AT_ONCE)


def _reached(days: set[date], ids: range) -> Iterator[tuple[str, int, int, str]]:
    """Yield the budgets of these days with a threshold that they have reached without an event, of the limits
    with these ids.
    """
    values, parameters = rows_of_values("t", ["threshold", "percent"], _THRESHOLDS)
    current = sorted({(period.value, period.start(day)) for day in days for period in ROW_PERIODS})
    between, mondays = f"BETWEEN {ids[0]} AND {ids[-1]}", {Period.WEEK.start(day) for day in days}
    limit, is_reached = budget_limits.SIGNED, f"l.id {between} AND {_IS_REACHED}"
    columns = (
        "SELECT b.id AS id, b.posted_nanodollars, "
        f"{limit} AS signed, t.threshold, t.percent AS percent, l.id AS limit_id"
    )
    rows = fetch_all(
        f"""{values} {columns} FROM usage_budgetlimit AS l
        JOIN usage_budget AS b ON {budget_limits.IS_OWN}
        CROSS JOIN t
        WHERE (b.period, b.period_start) IN (VALUES {", ".join(["(%s, %s)"] * len(current))}) AND {is_reached}
        UNION ALL {columns} FROM usage_budgetlimit AS l
        JOIN ({weeks.of_limits(mondays, f"w.id {between}")}) AS b ON b.limit_id = l.id
        CROSS JOIN t
        WHERE {is_reached}
        ORDER BY limit_id, id, percent LIMIT {MAX_FOUND}""",
        [*parameters, *(db_value(value) for pair in current for value in pair)],
    )
    for budget_id, posted, signed, threshold, *_ in rows:
        # The statement has rounded the share of the limit down.
        if threshold == SOFT_LIMIT or posted * 100 >= int(threshold) * abs(signed):
            yield budget_id, posted, signed, threshold


# Whether the budget `b` of the limit `l` has reached the threshold `t` without an event, in SQL.
_IS_REACHED = f"""CASE WHEN t.percent > 0
            THEN {budget_limits.SIGNED} <> 0
                AND b.posted_nanodollars >= ABS({budget_limits.SIGNED}) / 100 * t.percent
            ELSE l.limit_nanodollars > 0 AND b.posted_nanodollars >= l.soft_limit_nanodollars END
        AND NOT EXISTS (SELECT 1 FROM usage_event AS e
            WHERE e.kind = '{EventKind.BUDGET.value}' AND e.threshold = t.threshold
            AND e.subject = {LimitKey.text_in_sql("b")}
            AND e.period = CASE b.period WHEN 'ever' THEN 'ever'
                ELSE CAST(b.period_start AS TEXT) END)"""  # noqa: S608  the text is ours


def of_credit(now: datetime) -> Iterator[NewEvent]:
    """Return the event of each organization whose credit is low now."""
    ids = _turn(now, Credit)
    owner = " AND ".join(f"b.{name} = '{value}'" for name, value in CREDIT_BUDGET.items())
    rows = fetch_all(
        f"""SELECT c.organization_id, c.credited_nanodollars,
            c.credited_nanodollars - COALESCE(b.posted_nanodollars, 0), {LOW_CREDIT}
        FROM {Credit._meta.db_table} AS c
        LEFT JOIN usage_budget AS b ON {owner} AND b.scope_id = c.organization_id
        WHERE c.organization_id BETWEEN %s AND %s AND c.credited_nanodollars > 0
        AND c.credited_nanodollars - COALESCE(b.posted_nanodollars, 0) < {LOW_CREDIT}""",  # noqa: S608
        [ids[0], ids[-1]],
    )
    return (outbox.low_credit(*row) for row in rows)


def of_alerts(now: datetime) -> Iterator[NewEvent]:
    """Yield the event of each spend alert whose amount is reached in the month of today or of yesterday,
    without alerts of archived projects.
    """
    ids = _turn(now, SpendAlert)
    alerts = SpendAlert.objects.filter(pk__range=(ids[0], ids[-1])).exclude(project__is_active=False)
    # As values of the key, so that the type checker finds a new field of it missing here.
    scope: Any = OuterRef("owner_scope")
    scope_id: Any = OuterRef("owner_id")
    zones: dict[tuple[date, datetime], list[str]] = {}
    for zone in alerts.order_by().values_list("organization__time_zone", flat=True).distinct():
        today = local_day(now, zone)
        # A request that ends after midnight is charged to the month in which it began.
        for month in {Period.MONTH.start(day) for day in (today, today - timedelta(days=1))}:
            day_after = Period.MONTH.end(month)
            assert day_after
            end = datetime.combine(day_after, time(), ZoneInfo(zone))
            zones.setdefault((month, end), []).append(zone)
    for (month, end), here in zones.items():
        key = BudgetKey(scope, scope_id, Period.MONTH.value, month)
        known = Event.objects.filter(
            kind=EventKind.ALERT,
            subject=Concat(Value("spend_alert/"), Cast(OuterRef("pk"), CharField())),
            period=str(month),
        )
        # A new alert says nothing about a month that was over when it was added.
        made = alerts.filter(created_at__lt=end, organization__time_zone__in=here)
        reached = made.filter(~Exists(known)).annotate(
            owner_scope=Case(
                When(project=None, then=Value(Scope.ORGANIZATION.value)), default=Value(Scope.PROJECT.value)
            ),
            owner_id=Coalesce("project_id", "organization_id", output_field=BigIntegerField()),
            spent=Subquery(Budget.rows(key).values("posted_nanodollars")),
        )
        rows = reached.filter(spent__gte=F("threshold_nanodollars")).select_related("project").order_by("pk")
        yield from (_of_alert(row, month, row.spent) for row in rows[:MAX_FOUND])


def _of_alert(alert: SpendAlert, month: date, spent_nanodollars: int) -> NewEvent:
    return NewEvent(
        EventKind.ALERT,
        alert.organization_id,
        f"spend_alert/{alert.pk}",
        str(month),
        "",
        {
            "alert_id": str(alert.pk),
            "project_id": str(alert.project_id) if alert.project else None,
            "project": alert.project.name if alert.project else None,
            "period_start": str(month),
            "threshold_usd": to_usd(alert.threshold_nanodollars),
            "spent_usd": to_usd(spent_nanodollars),
            "subject_prefix": alert.subject_prefix,
        },
    )
