"""Requests of known keys that were refused, counted by key, status, error code and hour.

The books begin with what is admitted, so nothing else has a record of them. Each web process counts in memory
and adds its counts to the hour's rows every few seconds, and when it ends; a process that is killed loses the
counts since its last write.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Sum

from usage.database.group_commit import GroupCommit
from usage.database.sql import db_value, execute, rows_of_values
from usage.errors import DatabaseUnavailable
from usage.models import RefusedRequests
from usage.rollups import hour_of

WRITE_EVERY_S = 5.0
MAX_ENTRIES = 5_000
"""Distinct refusals that a process holds in memory; the requests beyond them are counted per key under
`OTHER`.
"""
MAX_ROWS_PER_STATEMENT = 1_000
OTHER = "other"
KEPT = timedelta(days=35)
"""As long as the detail rows of requests are kept at least."""

log = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """One way in which a key's requests are refused; `code` is the error's code as the client gets it."""

    api_key_id: int
    status: int
    code: str


class RefusedRequestCounter:
    """The counts of one process that are not written yet; used on its event loop only."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._counts: Counter[Refusal] = Counter()

    def count(self, refusal: Refusal, requests: int = 1) -> None:
        """Count requests that were refused in this way."""
        if refusal not in self._counts and len(self._counts) >= self._max_entries:
            refusal = Refusal(refusal.api_key_id, 0, OTHER)
            if refusal not in self._counts and len(self._counts) >= 2 * self._max_entries:
                return  # so many keys while the database is away: memory comes first
        self._counts[refusal] += requests

    async def write(self, commits: GroupCommit) -> None:
        """Add the counts to their hour's rows; they are kept for the next time if the database is away."""
        written, self._counts = self._counts, Counter()
        if not written:
            return
        try:
            await commits.write(add, written)
        except DatabaseUnavailable:
            for refusal, requests in written.items():
                self.count(refusal, requests)

    async def write_for_ever(self, commits: GroupCommit) -> None:
        """Write every few seconds until cancelled, and then once more: the process ends."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                await self.write(commits)
        finally:
            await self.write(commits)


refused_requests = RefusedRequestCounter()
"""Those of this process."""


def add(now: datetime, items: Sequence[Mapping[Refusal, int]]) -> list[None]:
    """Add the counts to the rows of this hour; an operation of `GroupCommit`. Keys that no longer exist are
    left out.
    """
    total: Counter[Refusal] = Counter()
    for counts in items:
        total.update(counts)
    rows = [
        (*refusal, requests) for refusal, requests in sorted(total.items())
    ]  # rows are locked in one order
    for start in range(0, len(rows), MAX_ROWS_PER_STATEMENT):
        _add_rows(hour_of(now), rows[start : start + MAX_ROWS_PER_STATEMENT])
    return [None] * len(items)


def _add_rows(hour: datetime, rows: Sequence[tuple[int, int, str, int]]) -> None:
    values, parameters = rows_of_values("refused", ["key_id", "http_status", "error_code", "times"], rows)
    execute(
        f"""{values} INSERT INTO usage_refusedrequests (organization_id, project_id, api_key_id, hour, status, code, requests)
        SELECT p.organization_id, k.project_id, k.id, %s, refused.http_status, refused.error_code, refused.times
        FROM refused JOIN accounts_apikey AS k ON k.id = refused.key_id JOIN accounts_project AS p ON p.id = k.project_id
        WHERE true ORDER BY refused.key_id, refused.http_status, refused.error_code
        ON CONFLICT (hour, api_key_id, status, code) DO UPDATE SET requests = usage_refusedrequests.requests + excluded.requests""",  # noqa: S608
        [*parameters, db_value(hour)],
    )


def of_key(api_key_id: int, now: datetime) -> list[tuple[int, str, int]]:
    """The key's refused requests of this hour and the 23 before it: status, code and number, the most first."""
    rows = RefusedRequests.objects.filter(api_key=api_key_id, hour__gte=hour_of(now) - timedelta(hours=23))
    return list(
        rows.order_by()
        .values_list("status", "code")
        .annotate(total=Sum("requests"))
        .order_by("-total", "code")
    )


def forget_old(now: datetime, items: Sequence[None]) -> list[None]:
    """Delete the counts of long ago; an operation of `GroupCommit`."""
    execute("DELETE FROM usage_refusedrequests WHERE hour < %s", [db_value(hour_of(now - KEPT))])
    return [None] * len(items)
