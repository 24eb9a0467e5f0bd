"""Refused requests: of known keys by key, status, error code and hour, without a valid key by reason and day.

A request whose key is known and no longer valid counts in both. Strangers choose none of the words that are
stored, so they can't fill the tables.

The books begin with admission, so nothing else records them. Each web process counts in memory and adds its
counts to the rows every few seconds and when it ends; a process that is killed loses the counts since its
last write.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from threading import Lock
from typing import NamedTuple

from django.db.models import Q, Sum

from accounts.errors import (
    CertificateRefused,
    IPNotAllowed,
    KeyRefusal,
    NotAuthenticated,
    TooManyFailedAttempts,
)
from usage.database.clock import hour_of
from usage.database.group_commit import GroupCommit
from usage.database.replica import report
from usage.database.sql import db_value, execute, insert, rows_of_values
from usage.errors import DatabaseUnavailable
from usage.models import RefusedKeys, RefusedRequests

WRITE_EVERY_S = 5.0
# Distinct refusals that a process holds in memory; requests beyond them count per key under `OTHER`.
MAX_ENTRIES = 5_000
MAX_ROWS_PER_STATEMENT = 1_000
OTHER = "other"
# Stands for the key of requests without a known one: no row has this id.
NO_KEY = 0
# As long as generations are kept at least.
KEPT = timedelta(days=35)

_REASONS = frozenset(KeyRefusal)

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """A key, and the status and error code that its client gets."""

    api_key_id: int
    status: int
    code: str


class RefusedRequestCounter:
    """The counts of one process that are not written yet; its event loop and its threads may use them."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._counts: Counter[Refusal] = Counter()
        self._lock = Lock()

    def count(self, refusal: Refusal, requests: int = 1) -> None:
        with self._lock:
            # Without a known key there are few reasons.
            is_full = refusal.api_key_id != NO_KEY and len(self._counts) >= self._max_entries
            if is_full and refusal not in self._counts:
                refusal = Refusal(refusal.api_key_id, 0, OTHER)
                if refusal not in self._counts and len(self._counts) >= 2 * self._max_entries:
                    return  # the database has been away for long, and memory is bounded
            self._counts[refusal] += requests

    def count_key_refusal(
        self, error: NotAuthenticated | TooManyFailedAttempts | IPNotAllowed | CertificateRefused
    ) -> None:
        if isinstance(error, NotAuthenticated):
            self.count(Refusal(error.api_key_id or NO_KEY, 401, error.reason))
        elif isinstance(error, IPNotAllowed):
            self.count(Refusal(error.api_key_id, 401, KeyRefusal.IP_NOT_ALLOWED))
        elif isinstance(error, CertificateRefused):
            self.count(Refusal(error.api_key_id, 401, KeyRefusal.CERTIFICATE_REFUSED))
        else:
            self.count(Refusal(NO_KEY, 429, KeyRefusal.TOO_MANY_WRONG))

    async def write(self, commits: GroupCommit) -> None:
        """Add the counts to this hour's rows; if the database is unavailable, keep them for the next time."""
        with self._lock:
            written, self._counts = self._counts, Counter()
        if not written:
            return
        try:
            await commits.write(add, written)
        except DatabaseUnavailable:
            for refusal, requests in written.items():
                self.count(refusal, requests)

    async def write_forever(self, commits: GroupCommit) -> None:
        """Write every few seconds until cancelled, and then a last time."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                await self.write(commits)
        finally:
            await self.write(commits)


# The counter of this process.
refused_requests = RefusedRequestCounter()


def add(now: datetime, items: Sequence[Mapping[Refusal, int]]) -> list[None]:
    """Add the counts to the rows of this hour and day; an operation of `GroupCommit`. Keys that don't exist
    are left out of those of the hour.
    """
    total: Counter[Refusal] = Counter()
    for counts in items:
        total.update(counts)
    # Sorted, so that all processes lock the rows in one order.
    rows = [(*refusal, requests) for refusal, requests in sorted(total.items())]
    for start in range(0, len(rows), MAX_ROWS_PER_STATEMENT):
        _add_rows(hour_of(now), rows[start : start + MAX_ROWS_PER_STATEMENT])
    _add_key_refusals(now.astimezone(UTC).date(), total)
    return [None] * len(items)


def _add_rows(hour: datetime, rows: Sequence[tuple[int, int, str, int]]) -> None:
    values, parameters = rows_of_values("refused", ["key_id", "http_status", "error_code", "times"], rows)
    columns = "organization_id, project_id, api_key_id, hour, status, code, requests"
    execute(
        f"""{values} INSERT INTO usage_refusedrequests ({columns})
        SELECT p.organization_id, k.project_id, k.id, %s, http_status, error_code, times
        FROM refused JOIN accounts_apikey AS k ON k.id = key_id
        JOIN accounts_project AS p ON p.id = k.project_id
        WHERE true ORDER BY key_id, http_status, error_code
        ON CONFLICT (hour, api_key_id, status, code)
        DO UPDATE SET
            requests = usage_refusedrequests.requests + excluded.requests""",  # noqa: S608  the text is ours
        [*parameters, db_value(hour)],
    )


def _add_key_refusals(day: date, total: Mapping[Refusal, int]) -> None:
    reasons: Counter[str] = Counter()
    for refusal, requests in total.items():
        if refusal.code in _REASONS:
            reasons[refusal.code] += requests
    if reasons:
        rows = [(day, reason, requests) for reason, requests in sorted(reasons.items())]
        adding = "DO UPDATE SET requests = usage_refusedkeys.requests + excluded.requests"
        insert(
            "usage_refusedkeys", ["day", "reason", "requests"], rows, f"ON CONFLICT (day, reason) {adding}"
        )


class RefusedOfKey(NamedTuple):
    """The refused requests of a key, as its page shows them."""

    by_code: list[tuple[int, str, int]]
    """Status, code and number of the refused requests of the last 24 hours, the most frequent first."""
    last_invalid: RefusedRequests | None
    """The newest hour in which the key was not valid, and why."""


def of_key(api_key_id: int, now: datetime) -> RefusedOfKey:
    since = hour_of(now) - timedelta(hours=23)
    rows = RefusedRequests.objects.filter(api_key=api_key_id)
    invalid = rows.filter(status=401, code__in=_REASONS).order_by("-hour", "-id")
    by_code: Counter[tuple[int, str]] = Counter()
    last_invalid = None
    for row in rows.filter(Q(hour__gte=since) | Q(pk__in=invalid.values("pk")[:1])).order_by("hour", "id"):
        if row.hour >= since:
            by_code[row.status, row.code] += row.requests
        if row.status == 401 and row.code in _REASONS:
            last_invalid = row
    most = sorted(by_code.items(), key=lambda each: (-each[1], each[0][1]))
    return RefusedOfKey([(*refusal, requests) for refusal, requests in most], last_invalid)


@report
def key_refusals(since: date) -> list[tuple[date, str, int]]:
    """Return day, reason and number of the requests without a valid key since then, newest first."""
    rows = RefusedKeys.objects.filter(day__gte=since).order_by("-day", "-requests", "reason")
    return list(rows.values_list("day", "reason", "requests"))


def key_refusal_totals() -> dict[str, int]:
    """Return the number of requests without a valid key by reason, of all days: it only grows."""
    found = RefusedKeys.objects.order_by().values_list("reason").annotate(total=Sum("requests"))
    return {**dict.fromkeys(sorted(_REASONS), 0), **dict(found)}


class KeyRefusals(NamedTuple):
    """The refused requests of one key with one status and code."""

    api_key_id: int
    status: int
    code: str
    key: str
    project: str
    organization: str
    requests: int


def by_key(start: datetime, end: datetime, limit: int, **owners: int) -> list[KeyRefusals]:
    """Return the keys that were refused most in the hours between, of these owners, each with the reason."""
    rows = RefusedRequests.objects.filter(hour__gte=hour_of(start), hour__lt=end, **owners).order_by()
    names = ("api_key__name", "project__name", "organization__name")
    totals = rows.values_list("api_key_id", "status", "code", *names).annotate(total=Sum("requests"))
    return [KeyRefusals(*row) for row in totals.order_by("-total", "api_key_id", "code")[:limit]]


def forget_old(now: datetime, items: Sequence[None]) -> list[None]:
    """Delete the counts that are older than `KEPT`; an operation of `GroupCommit`."""
    execute("DELETE FROM usage_refusedrequests WHERE hour < %s", [db_value(hour_of(now - KEPT))])
    return [None] * len(items)
