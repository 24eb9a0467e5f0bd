"""Requests, newest first, in keyset pages, and how fast the newest began: each read looks at a bounded number
of rows of an index.

Ids are UUIDv7 and so sort by the time at which they were made, just before the admission: all organizations'
requests are read in the order of their ids, one organization's or key's in the order of their admission,
which have an index each.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.db.models import Q, QuerySet

from accounts.models import APIKey, Project
from usage.database.time_limit import time_limit
from usage.insights.range import Range
from usage.insights.sources import Filters, wanted
from usage.models import Generation
from usage.models.outcomes import ANY_ERROR, FAILED

MAX_LIMIT = 500
SEARCHED = 20_000
"""Rows that one page looks at when it has to search; what is further back is the next page's."""
SAMPLE = 5_000
"""Requests that are looked at for the percentiles of what is not counted yet."""
_CLOCK_SLACK = timedelta(minutes=5)
"""How far the clock that makes ids, and the wait for an admission, may be from the database's clock."""
_OPEN_AT_MOST = timedelta(hours=6)
"""How long before the range a request that was settled in it is looked for: one that was open for longer is
not found.
"""


@dataclass(frozen=True, slots=True)
class RequestFilters(Filters):
    """Which requests to show. `since` and `until` (not included) are of the `time`, the amounts are included.

    The outcome may also be `ANY_ERROR`. Sums count requests when they are settled, so what is behind one is
    asked for by that time.
    """

    time: Literal["admitted", "settled"] = "admitted"
    dialect: str | None = None
    usage_source: str | None = None
    deployment: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_nanodollars: int | None = None
    max_nanodollars: int | None = None
    id: UUID | None = None

    @property
    def is_search(self) -> bool:
        """Whether rows that don't fit may lie between those that do, in the order of the index."""
        return self.id is None and bool(_searched_for(self))

    @property
    def admitted_since(self) -> datetime | None:
        """The earliest admission that may fit; in UTC, as what is computed with: a zone's clock jumps twice a
        year.
        """
        since = self.since and self.since.astimezone(UTC)
        return since - _OPEN_AT_MOST if since and self.time == "settled" else since

    @property
    def admitted_until(self) -> datetime | None:
        """The time before which all that may fit was admitted."""
        return self.until and self.until.astimezone(UTC)


_SEARCHED_FOR = {
    "project_id": "project_id",
    "model": "model",
    "outcome": "outcome",
    "dialect": "dialect",
    "usage_source": "usage_source",
    "deployment": "deployment",
    "min_nanodollars": "amount_nanodollars__gte",
    "max_nanodollars": "amount_nanodollars__lte",
}
"""Filters that no index serves, and what they ask of a row."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some requests, newest first. There may be none and yet a `next_cursor`: the search has only come to
    `searched_until`.
    """

    rows: list[Generation]
    next_cursor: str | None
    """What the next page is `after`; None: there is no more."""
    searched_until: datetime | None
    """How far back the page has looked, if it stopped because it had looked at `SEARCHED` rows."""


@time_limit()
def requests_page(filters: RequestFilters, after: str | None = None, limit: int = 50) -> Page:
    """The requests that fit, with their organization, project and key; raises `ValueError` for a cursor that
    is none.
    """
    start = _Cursor.parse(after) if after else None
    limit = max(1, min(limit, MAX_LIMIT))
    located = _located(filters)
    if located is None:
        return Page([], None, None)
    walk = _Walk.along(located)
    if start is not None:
        walk = walk.beyond(start)
    floor = walk.row_at(SEARCHED) if located.is_search else None
    if floor is not None:
        walk = walk.down_to(floor)
    found = list(
        _fitting(walk.newest_first, located).select_related("organization", "project", "api_key")[: limit + 1]
    )
    if len(found) > limit:
        return Page(found[:limit], str(_Cursor.of(found[limit - 1])), None)
    return Page(found, str(floor) if floor else None, floor.admitted_at if floor else None)


def newest_first_token_ms(over: Range, filters: Filters) -> list[int]:
    """From claim to first token, of those of the newest `SAMPLE` requests in the range that fit and have
    begun to answer.
    """
    located = _located(RequestFilters(**wanted(filters), since=over.start, until=over.end))
    if located is None:
        return []
    walk = _Walk.along(located)
    floor = walk.row_at(SAMPLE)
    rows = (walk.down_to(floor) if floor else walk).rows
    return [ms for ms in _fitting(rows, located).values_list("first_token_ms", flat=True) if ms is not None]


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A request's place in either order."""

    admitted_at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{(self.admitted_at - _EPOCH) // _MICROSECOND:x}-{self.id.hex}"

    @classmethod
    def of(cls, row: Generation) -> "_Cursor":
        return cls(row.admitted_at, row.id)

    @classmethod
    def parse(cls, text: str) -> "_Cursor":
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError(f"after: {text[:100]!r} is not a cursor of a page before.")
        return cls(_EPOCH + int(found[1], 16) * _MICROSECOND, UUID(found[2]))


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_CURSOR = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Rows in the order of one index, newest first, and the part of it that is walked."""

    rows: QuerySet[Generation]
    is_by_id: bool

    @classmethod
    def along(cls, filters: RequestFilters) -> "_Walk":
        """All rows of the organization, the key or the service, between the filters' times."""
        owner = {"api_key_id": filters.api_key_id, "organization_id": filters.organization_id}
        rows = Generation.objects.filter(
            **{name: value for name, value in owner.items() if value is not None}
        )
        is_by_id = not any(owner.values())
        if (since := filters.admitted_since) is not None:
            rows = rows.filter(admitted_at__gte=since)
            rows = rows.filter(id__gte=_first_id(since - _CLOCK_SLACK)) if is_by_id else rows
        if (until := filters.admitted_until) is not None:
            rows = rows.filter(admitted_at__lt=until)
            rows = rows.filter(id__lt=_first_id(until + _CLOCK_SLACK)) if is_by_id else rows
        return cls(rows, is_by_id)

    @property
    def newest_first(self) -> QuerySet[Generation]:
        return self.rows.order_by("-id") if self.is_by_id else self.rows.order_by("-admitted_at", "-id")

    def beyond(self, place: _Cursor) -> "_Walk":
        if self.is_by_id:
            return replace(self, rows=self.rows.filter(id__lt=place.id))
        # The first condition says nothing new, but it is what the index can begin with.
        earlier = Q(admitted_at__lt=place.admitted_at) | Q(admitted_at=place.admitted_at, id__lt=place.id)
        return replace(self, rows=self.rows.filter(admitted_at__lte=place.admitted_at).filter(earlier))

    def down_to(self, place: _Cursor) -> "_Walk":
        if self.is_by_id:
            return replace(self, rows=self.rows.filter(id__gte=place.id))
        later = Q(admitted_at__gt=place.admitted_at) | Q(admitted_at=place.admitted_at, id__gte=place.id)
        return replace(self, rows=self.rows.filter(admitted_at__gte=place.admitted_at).filter(later))

    def row_at(self, count: int) -> _Cursor | None:
        """The place of the row so many steps away, which bounds what follows; None when there are fewer rows."""
        place = self.newest_first.values_list("admitted_at", "id")[count - 1 : count].first()
        return _Cursor(*place) if place else None


def _first_id(moment: datetime) -> UUID:
    """The lowest id of that millisecond (RFC 9562, section 5.7)."""
    return UUID(int=max((moment - _EPOCH) // timedelta(milliseconds=1), 0) << 80)


def _located(filters: RequestFilters) -> RequestFilters | None:
    """The same, with the one owner whose index is read; None when key, project and organization don't belong
    together.
    """
    wanted = filters.organization_id
    if filters.api_key_id is not None:
        keys = APIKey.objects.filter(pk=filters.api_key_id)
        keys = keys if filters.project_id is None else keys.filter(project=filters.project_id)
        keys = keys if wanted is None else keys.filter(project__organization=wanted)
        return replace(filters, organization_id=None, project_id=None) if keys.exists() else None
    if filters.project_id is not None:
        home = Project.objects.filter(pk=filters.project_id).values_list("organization_id", flat=True).first()
        return replace(filters, organization_id=home) if home is not None and wanted in (None, home) else None
    return filters


def _fitting(rows: QuerySet[Generation], filters: RequestFilters) -> QuerySet[Generation]:
    """Those of the rows that have what an index can't find."""
    rows = rows.filter(**_searched_for(filters))
    return rows if filters.id is None else rows.filter(id=filters.id)


def _searched_for(filters: RequestFilters) -> dict[str, Any]:
    """What no index finds, as a row must have it."""
    wanted = {column: getattr(filters, name) for name, column in _SEARCHED_FOR.items()}
    if filters.outcome == ANY_ERROR:
        wanted |= {"outcome": None, "outcome__in": FAILED}
    if filters.time == "settled":
        wanted |= {"settled_at__gte": filters.since, "settled_at__lt": filters.until}
    return {column: value for column, value in wanted.items() if value is not None}
