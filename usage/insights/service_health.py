"""The state of the service: its queue, its leases, the requests that failed to run, and the books."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from usage.database.clock import clock_in_statement, database_now, hour_of
from usage.database.sql import db_value, fetch_all, to_datetime
from usage.database.time_limit import time_limit
from usage.insights.range import HOUR

MAX_UNSEALED = 10_000


@dataclass(frozen=True, slots=True)
class LastCheck:
    """When the books were last checked, and the newest differences that are still open.

    These may have been found by an earlier check.
    """

    checked_at: datetime
    differences: int
    first_difference: str


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the service, as the tables show it."""

    now: datetime
    """The database's time."""
    queue_depth: int
    """Admitted generations that no worker has claimed."""
    oldest_queued_s: float | None
    oldest_late_s: float | None
    """The longest wait of a queued generation that is interactive, or has used half of its queue time."""
    running: int
    longest_running_s: float | None
    """Time since the oldest of the running requests was claimed."""
    oldest_lease_s: float | None
    """Time since the oldest open lease expired; negative if none has expired."""
    closed_since: datetime
    """The full hour, a day ago, from which on `lost` and `not_started` are counted."""
    lost: int
    """Requests whose worker was lost: the reaper closed them."""
    not_started: int
    """Requests that no worker claimed in time, or that could not be queued."""
    last_sealed_at: datetime | None
    unsealed_entries: int
    """The number of entries without a seal, counted up to `MAX_UNSEALED`."""
    last_check: LastCheck | None
    """None if the books were never checked."""

    @property
    def has_more_unsealed(self) -> bool:
        """Return whether more entries than `unsealed_entries` may have no seal."""
        return self.unsealed_entries >= MAX_UNSEALED


# Entries are counted up to a bound only: without it a long pause of the sealing would make this slow. The
# index of hours begins with the organization. An old difference stays, because later checks look at recent
# days only and can't see it.
_HEALTH = """
    WITH opened AS (
        SELECT COUNT(*) AS all_open, MIN(lease_expires_at) AS lease,
            COUNT(CASE WHEN state = 'admitted' THEN 1 END) AS queued, MIN(claimed_at) AS claimed,
            MIN(CASE WHEN state = 'admitted' THEN admitted_at END) AS oldest,
            MIN(CASE WHEN state = 'admitted' AND (COALESCE(queue_class, 1) = 1 OR {is_late})
                THEN admitted_at END) AS oldest_late
        FROM usage_generation WHERE NOT (state = 'settled')),
    closed AS (
        SELECT SUM(CASE WHEN outcome = 'worker_lost' THEN requests ELSE 0 END) AS lost,
            SUM(CASE WHEN outcome = 'not_started' THEN requests ELSE 0 END) AS not_started
        FROM usage_hourlyusage WHERE hour >= {since} AND outcome IN ('worker_lost', 'not_started')
            AND organization_id IN (SELECT id FROM accounts_organization)),
    seal AS (SELECT last_id, sealed_at FROM usage_ledgerseal ORDER BY id DESC LIMIT 1),
    difference AS (
        SELECT differences, first_difference FROM usage_ledgercheck
        WHERE differences > 0 AND resolved_at IS NULL ORDER BY checked_at DESC LIMIT 1)
    SELECT queued, oldest, oldest_late, all_open - queued, claimed, lease,
        lost, not_started, sealed_at,
        (SELECT COUNT(*) FROM (
            SELECT 1 FROM usage_ledgerentry WHERE id > COALESCE((SELECT last_id FROM seal), 0)
            ORDER BY id LIMIT {most_unsealed}) AS unsealed),
        (SELECT MAX(checked_at) FROM usage_ledgercheck WHERE differences IS NOT NULL),
        {now}, differences, first_difference
    FROM opened CROSS JOIN closed LEFT JOIN seal ON TRUE LEFT JOIN difference ON TRUE"""


@time_limit()
def health() -> Health:
    """Return the state of the queue, the leases, the failed requests, the seals and the last check."""
    is_late, since, clock, parameters = _clock()
    sql = _HEALTH.format(is_late=is_late, since=since, now=clock, most_unsealed=MAX_UNSEALED)
    ((queued, oldest, late, running, claimed, lease, lost, not_started, *books),) = fetch_all(sql, parameters)
    sealed_at, unsealed, checked_at, read_at, *difference = books
    now, checked = to_datetime(read_at).replace(tzinfo=UTC), _moment(checked_at)
    return Health(
        now=now,
        queue_depth=queued,
        oldest_queued_s=_seconds(now, oldest),
        oldest_late_s=_seconds(now, late),
        running=running,
        longest_running_s=_seconds(now, claimed),
        oldest_lease_s=_seconds(now, lease),
        closed_since=_closed_since(now),
        lost=int(lost or 0),
        not_started=int(not_started or 0),
        last_sealed_at=_moment(sealed_at),
        unsealed_entries=unsealed,
        last_check=LastCheck(checked, difference[0] or 0, difference[1] or "") if checked else None,
    )


def _clock() -> tuple[str, str, str, list[Any]]:
    """Return as SQL whether half of a generation's time in the queue is over, the beginning of the counted
    hours, and the database's time; and their parameters.
    """
    now_sql, parameters = clock_in_statement()
    if connection.vendor == "sqlite":
        is_late = f"julianday(admitted_at) + julianday(lease_expires_at) < 2 * julianday({now_sql})"
        return is_late, "%s", now_sql, [*parameters, db_value(_closed_since(database_now())), *parameters]
    is_late = f"lease_expires_at - {now_sql} < {now_sql} - admitted_at"
    return is_late, f"date_trunc('hour', {now_sql}, 'UTC') - interval '23 hours'", now_sql, parameters


def _closed_since(now: datetime) -> datetime:
    # Full hours, because the rollup has no shorter ones.
    return hour_of(now) - timedelta(days=1) + HOUR


def _moment(value: Any) -> datetime | None:
    """Return the time in UTC; SQLite stores it without a zone."""
    return None if value is None else to_datetime(value).replace(tzinfo=UTC)


def _seconds(now: datetime, then: Any) -> float | None:
    moment = _moment(then)
    return None if moment is None else (now - moment).total_seconds()
