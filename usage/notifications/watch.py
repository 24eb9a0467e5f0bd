"""Looks for what no settlement notices: expiring keys, unusual spend, rising failures, failed ledger checks.

Each finding is an event of a day, or of an expiry, so it is written once however often it is found.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import CharField, Exists, F, Func, OuterRef, Q, Subquery, Sum, Value
from django.db.models.functions import Cast, Concat

from accounts import access
from accounts.models import APIKey, Organization
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.database.clock import local_day
from usage.database.sql import db_value, fetch_all
from usage.database.time_limit import time_limit
from usage.failpoints import failpoint
from usage.models import FAILED, Budget, Event, EventKind, HourlyUsage, LedgerCheck, Period, Scope
from usage.models.budget_keys import OUTER_LIMIT
from usage.notifications import missed
from usage.pricing import NANODOLLARS, to_usd

Find = Callable[[datetime], Iterable[NewEvent]]

# Before the expiry of a key, the last one first.
KEY_DAYS = (1, 7)
_ISO = "%Y-%m-%dT%H:%M:%SZ"
# A day's spend is unusual above this amount, and above this multiple of the second highest of the days
# before.
UNUSUAL_USD, UNUSUAL_TIMES = 5, 2
DAYS_BEFORE, LEAST_DAYS_WITH_SPEND = 14, 7
# Failures rise if at least this number and this percentage of the requests since the start of the hour before
# have failed.
LEAST_FAILURES, FAILED_PERCENT = 10, 20


@time_limit()
def look(now: datetime, find: Find) -> list[NewEvent]:
    """Return what one of `LOOKS` finds now and is not in the outbox yet."""
    return without_known(list(find(now)))


def without_known(events: Sequence[NewEvent]) -> list[NewEvent]:
    """Return the events that are not in the outbox."""
    # With the kinds, for which there is an index.
    kinds, subjects = {each.kind for each in events}, {each.subject for each in events}
    rows = Event.objects.filter(kind__in=kinds, subject__in=subjects)
    known = set(rows.values_list("kind", "subject", "period", "threshold"))
    return [each for each in events if (each.kind, *each[2:5]) not in known]


def write(now: datetime, items: Sequence[Sequence[NewEvent]]) -> list[None]:
    """Write what was found; an operation of `GroupCommit`."""
    outbox.write(now, [event for found in items for event in found])
    failpoint("watch.in_tx")
    return [None for _ in items]


class _Second(Func):
    """A time to the second, as in the period of a key's event."""

    output_field = CharField()

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> Any:
        return self.as_sql(
            compiler, connection, template=f"strftime('{_ISO.replace('%', '%%%%')}', %(expressions)s)"
        )

    def as_postgresql(self, compiler: Any, connection: Any, **_: Any) -> Any:
        iso = """'YYYY-MM-DD"T"HH24:MI:SS"Z"'"""
        return self.as_sql(
            compiler, connection, template=f"to_char(%(expressions)s AT TIME ZONE 'UTC', {iso})"
        )


def expiring_keys(now: datetime) -> Iterator[NewEvent]:
    """Yield an event for each usable key that expires within a week, and within a day."""
    begin = now
    for days in KEY_DAYS:
        end = now + timedelta(days=days)
        known = Event.objects.filter(
            kind=EventKind.KEY,
            subject=Concat(Value("key/"), Cast(OuterRef("pk"), CharField())),
            period=_Second(OuterRef("expires_at")),
            threshold=str(days),
        )
        # A key that is made for less is expected to expire.
        lives_longer = Q(expires_at__gt=F("created_at") + timedelta(days=days))
        soon = access.usable_keys().filter(
            lives_longer, ~Exists(known), expires_at__gt=begin, expires_at__lte=end
        )
        rows = soon.select_related("project__organization").order_by("expires_at")
        yield from (_expiring(key, days) for key in rows[: missed.MAX_FOUND])
        begin = end


def _expiring(key: APIKey, days: int) -> NewEvent:
    assert key.expires_at is not None
    return NewEvent(
        EventKind.KEY,
        key.project.organization_id,
        f"key/{key.pk}",
        key.expires_at.strftime(_ISO),
        str(days),
        {
            "key_id": str(key.pk),
            "name": f"{key.project.organization.name} / {key.project.name} / {key.name}",
            "redacted_value": key.redacted,
            "expires_at": key.expires_at.isoformat(),
            "days": days,
        },
    )


def unusual_spend(now: datetime) -> Iterator[NewEvent]:
    """Yield an event for each organization whose day costs at least $5 and more than twice the second highest
    of the 14 days before it, at least 7 of which had spend.
    """
    zones: dict[date, list[str]] = {}
    for zone in Organization.objects.order_by().values_list("time_zone", flat=True).distinct():
        zones.setdefault(local_day(now, zone), []).append(zone)
    for day, here in zones.items():
        owners = Organization.objects.filter(time_zone__in=here).values("pk")
        for row in _unusual(day).filter(scope_id__in=owners)[: missed.MAX_FOUND]:
            data = {"spent_usd": to_usd(row.posted_nanodollars), "usual_usd": to_usd(row.usual)}
            yield _of_day(EventKind.SPEND, row.scope_id, str(day), data)


def _unusual(day: date) -> Any:
    """Return the organizations' budgets of this day with unusual spend that have no event."""
    before = Budget.rows(OUTER_LIMIT).filter(
        period_start__range=(day - timedelta(days=DAYS_BEFORE), day - timedelta(days=1)),
        posted_nanodollars__gt=0,
    )
    amounts = before.order_by("-posted_nanodollars").values("posted_nanodollars")
    known = Event.objects.filter(
        kind=EventKind.SPEND,
        subject=Concat(Value("organization/"), Cast(OuterRef("scope_id"), CharField())),
        period=str(day),
    )
    rows = Budget.of_owners(Scope.ORGANIZATION, Period.DAY, day).filter(
        ~Exists(known), posted_nanodollars__gte=UNUSUAL_USD * NANODOLLARS
    )
    nth = LEAST_DAYS_WITH_SPEND
    rows = rows.annotate(usual=Subquery(amounts[1:2]), nth=Subquery(amounts[nth - 1 : nth]))
    return rows.filter(nth__isnull=False, posted_nanodollars__gt=UNUSUAL_TIMES * F("usual")).order_by("pk")


def rising_failures(now: datetime) -> Iterator[NewEvent]:
    """Yield an event for each organization of whose requests with live keys 10 or more, and a fifth or more,
    failed since the start of the hour before.
    """
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    rows = HourlyUsage.objects.filter(
        organization__in=callers(since), hour__gte=since, api_key__is_test=False
    ).order_by()
    sums = rows.values("organization").annotate(
        all=Sum("requests"), failed=Sum("requests", filter=Q(outcome__in=FAILED), default=0)
    )
    for row in sums.filter(failed__gte=LEAST_FAILURES):
        if row["failed"] * 100 >= FAILED_PERCENT * row["all"]:
            data = {"since": since.isoformat(), "requests": row["all"], "failed": row["failed"]}
            yield _of_day(EventKind.FAILURES, row["organization"], str(now.astimezone(UTC).date()), data)


def failed_checks(_: datetime) -> Iterator[NewEvent]:
    """Yield an event for each day on which a check of the books found differences that are still open."""
    for check in LedgerCheck.objects.filter(differences__gt=0, resolved_at__isnull=True):
        day = str(check.checked_at.astimezone(UTC).date())
        data = {"differences": check.differences, "first_difference": check.first_difference}
        yield NewEvent(EventKind.LEDGER, None, "ledger", day, "", data)


def callers(since: datetime, model: str | None = None) -> list[int]:
    """Return the organizations with a request of a live key since that hour, to any model or to this one."""
    of_model = "" if model is None else "AND h.model = %s"
    # One look into the index for each organization: hours have none by time alone.
    rows = fetch_all(
        f"""SELECT o.id FROM accounts_organization AS o WHERE 1 = (SELECT 1 FROM usage_hourlyusage AS h
        JOIN accounts_apikey AS k ON k.id = h.api_key_id
        WHERE h.organization_id = o.id AND h.hour >= %s {of_model} AND NOT k.is_test
        LIMIT 1)""",  # noqa: S608
        [db_value(since), *([] if model is None else [model])],
    )
    return [organization_id for (organization_id,) in rows]


def _of_day(kind: EventKind, organization_id: int, day: str, data: Mapping[str, object]) -> NewEvent:
    return NewEvent(kind, organization_id, f"organization/{organization_id}", day, "", data)


# Each is done apart, because one that takes too long or fails must not stop the others.
LOOKS: Sequence[Find] = (
    missed.of_budgets, missed.of_credit, missed.of_alerts, expiring_keys, unusual_spend, rising_failures,
    failed_checks,
)  # fmt: skip
