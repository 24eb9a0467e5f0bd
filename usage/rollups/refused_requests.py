"""Refused requests of known keys, counted by key, status, error code and hour.

The books begin with admission, so nothing else records them. Each web process counts in memory and adds its
counts to the hour's rows every few seconds and when it ends; a process that is killed loses the counts since
its last write.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Sum

from usage.database.group_commit import GroupCommit
from usage.database.replica import report
from usage.database.sql import db_value, execute, rows_of_values
from usage.errors import DatabaseUnavailable
from usage.models import RefusedRequests
from usage.rollups import hour_of

WRITE_EVERY_S = 5.0
# Distinct refusals that a process holds in memory; requests beyond them count per key under `OTHER`.
MAX_ENTRIES = 5_000
MAX_ROWS_PER_STATEMENT = 1_000
OTHER = "other"
# As long as generations are kept at least.
KEPT = timedelta(days=35)

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """A key, and the status and error code that its client gets."""

    api_key_id: int
    status: int
    code: str


class RefusedRequestCounter:
    """The counts of one process that are not written yet. Not thread-safe: for its event loop only."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._counts: Counter[Refusal] = Counter()

    def count(self, refusal: Refusal, requests: int = 1) -> None:
        if refusal not in self._counts and len(self._counts) >= self._max_entries:
            refusal = Refusal(refusal.api_key_id, 0, OTHER)
            if refusal not in self._counts and len(self._counts) >= 2 * self._max_entries:
                return  # the database has been away for long, and memory is bounded
        self._counts[refusal] += requests

    async def write(self, commits: GroupCommit) -> None:
        """Add the counts to this hour's rows; if the database is unavailable, keep them for the next time."""
        written, self._counts = self._counts, Counter()
        if not written:
            return
        try:
            await commits.write(add, written)
        except DatabaseUnavailable:
            for refusal, requests in written.items():
                self.count(refusal, requests)

    async def write_for_ever(self, commits: GroupCommit) -> None:
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
    """Add the counts to the rows of this hour; an operation of `GroupCommit`. Keys that no longer exist are
    left out.
    """
    total: Counter[Refusal] = Counter()
    for counts in items:
        total.update(counts)
    # Sorted, so that all processes lock the rows in one order.
    rows = [(*refusal, requests) for refusal, requests in sorted(total.items())]
    for start in range(0, len(rows), MAX_ROWS_PER_STATEMENT):
        _add_rows(hour_of(now), rows[start : start + MAX_ROWS_PER_STATEMENT])
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


def of_key(api_key_id: int, now: datetime) -> list[tuple[int, str, int]]:
    """Return the key's refused requests of the last 24 hours: status, code and number, the most first."""
    rows = RefusedRequests.objects.filter(api_key=api_key_id, hour__gte=hour_of(now) - timedelta(hours=23))
    return list(
        rows.order_by()
        .values_list("status", "code")
        .annotate(total=Sum("requests"))
        .order_by("-total", "code")
    )


@report
def of_hours(start: datetime, end: datetime, **owners: int) -> list[tuple[int, str, int]]:
    """Return the refused requests of the hours between, of these owners, by status and code, the most
    first.
    """
    rows = RefusedRequests.objects.filter(hour__gte=start, hour__lt=end)
    totals = rows.filter(**owners).order_by().values_list("status", "code").annotate(total=Sum("requests"))
    return list(totals.order_by("-total", "code"))


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
