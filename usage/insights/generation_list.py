"""Requests in keyset pages, newest first, and the newest times to first token.

Each read looks at a bounded number of rows of an index. The requests of one organization or key are read in
the order of their admission, by an index of each. Those of all organizations are read in the order of their
ids: UUIDv7, which sort by the time just before the admission.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet
from django.db.models.expressions import Combinable, RawSQL

from accounts.models import APIKey, Project
from usage.database.replica import report
from usage.database.time_limit import time_limit
from usage.insights.range import Range
from usage.insights.request_filters import (
    SEARCHED_COLUMNS,
    RequestFilters,
    matching,
    with_stored_name,
)
from usage.insights.sources import Filters
from usage.models import Generation

MAX_LIMIT = 500
# Rows that one page looks at to apply filters without an index; the next page continues there.
SEARCHED = 20_000
# Rows that are sorted by cost or duration, for which there is no index.
SORTED = 100_000
# Requests that are read for percentiles of days that are not closed.
SAMPLE = 2_000
# How much the time in an id may differ from the admission's, which is the database's time.
_CLOCK_SLACK = timedelta(minutes=5)
_TOOK = ExpressionWrapper(F("settled_at") - F("admitted_at"), DurationField())
_SORTED_BY: dict[str, Combinable] = {"cost": F("amount_nanodollars"), "duration": _TOOK}


@dataclass(frozen=True, slots=True)
class Page:
    """Some requests, newest first. An empty page may have a `next_cursor`, if the search has not ended."""

    rows: list[Generation]
    next_cursor: str | None
    """Where the next page begins; None if this is the last one."""
    searched_until: datetime | None
    """How far back the page has searched, if it stopped after `SEARCHED` rows, or sorted, after `SORTED`."""


def requests_page(filters: RequestFilters, after: str | None = None, limit: int = 50) -> Page:
    """Return requests with their organization, project and key; raises `ValueError` for an invalid cursor."""
    # One that is looked up by its id may have come a moment ago.
    read = report(_page) if filters.id is None else time_limit()(_page)
    return read(filters, after, max(1, min(limit, MAX_LIMIT)))


def _page(filters: RequestFilters, after: str | None, limit: int) -> Page:
    if filters.sort != "newest":
        return _sorted_page(filters, _Place.parse(after) if after else None, limit)
    start = _Cursor.parse(after) if after else None
    resolved = _with_one_owner(filters)
    if resolved is None:
        return Page([], None, None)
    scan = _Scan.of(resolved)
    if start is not None:
        scan = scan.after(start)
    if resolved.is_search:
        found, floor = _searched(scan, resolved, limit + 1)
    else:
        found, floor = _with_owners(matching(scan.newest_first, resolved)[: limit + 1]), None
    if len(found) > limit:
        return Page(found[:limit], str(_Cursor.of(found[limit - 1])), None)
    return Page(found, str(floor) if floor else None, floor.admitted_at if floor else None)


def _searched(
    scan: "_Scan", filters: RequestFilters, count: int
) -> "tuple[list[Generation], _Cursor | None]":
    """Return the newest `count` rows that match, and the place where the search stopped before."""
    found = sorted(_with_owners(scan.search(filters, SEARCHED, count)), key=scan.place_of, reverse=True)
    floor = scan.row_at(SEARCHED) if len(found) < count else None
    if floor is None:
        return found, None
    # The search may have stopped within a batch, whose rows have one time: the others of it follow. Requests
    # that arrived between the two reads move the floor up. Rows below it are left to the next page.
    last = _with_owners(matching(scan.at(floor).newest_first, filters)[:count])
    found = [row for row in found if scan.place_of(row) >= scan.place_of(floor) and row not in last]
    return found + last, floor


def _with_owners(rows: QuerySet[Generation]) -> list[Generation]:
    return list(rows.select_related("organization", "project", "api_key"))


def _sorted_page(filters: RequestFilters, after: "_Place | None", limit: int) -> Page:
    """Return requests with the highest cost or duration, of the newest `SORTED`.

    No index has this order, so the database sorts a bounded number of rows.
    """
    resolved = _with_one_owner(filters)
    if resolved is None:
        return Page([], None, None)
    rows, floor = _newest(resolved, SORTED)
    rows = matching(rows.filter(settled_at__isnull=False), resolved).annotate(place=_SORTED_BY[filters.sort])
    if after is not None:
        value: Any = after.value if filters.sort == "cost" else timedelta(microseconds=after.value)
        rows = rows.filter(Q(place__lt=value) | Q(place=value, id__lt=after.id))
    found: list[Any] = _with_owners(rows.order_by("-place", "-id")[: limit + 1])
    cursor = str(_Place.of(found[limit - 1])) if len(found) > limit else None
    return Page(found[:limit], cursor, floor.admitted_at if floor else None)


class NewestRequests(NamedTuple):
    """The matching ones among the newest `SEARCHED` requests of a range."""

    rows: "QuerySet[Generation]"
    since: datetime | None
    """The time of the oldest request that was searched, if older ones were not; else None."""


def newest_settled(over: Range, filters: Filters) -> NewestRequests:
    """Return the newest requests that were admitted and finished in the range."""
    return newest_matching(replace(_asked(over, filters), time="settled"))


def newest_matching(filters: RequestFilters) -> NewestRequests:
    """Return those of the newest requests that match."""
    resolved = _with_one_owner(filters)
    if resolved is None:
        return NewestRequests(Generation.objects.none(), None)
    rows, floor = _newest(resolved, SEARCHED)
    return NewestRequests(matching(rows, resolved), floor.admitted_at if floor else None)


def _asked(over: Range, filters: Filters) -> RequestFilters:
    """Return the filters of the requests that were admitted in the range."""
    return RequestFilters(
        **filters.by_column(),
        is_stored_name=filters.is_stored_name,
        home_id=filters.home_id,
        is_void=filters.is_void,
        error=filters.error,
        metadata=filters.metadata,
        is_test=filters.is_test,
        since=over.start,
        until=over.end,
    )


def _newest(filters: RequestFilters, count: int) -> "tuple[QuerySet[Generation], _Cursor | None]":
    """Return the newest rows, and the oldest of them if there are more."""
    scan = _Scan.of(filters)
    floor = scan.row_at(count)
    return (scan.down_to(floor) if floor else scan).rows, floor


def newest_first_tokens(ranges: Sequence[Range], filters: Filters) -> "list[QuerySet[Generation]]":
    """Return those of the newest `SAMPLE` requests in each range that match and have begun to answer."""
    resolved = _with_one_owner(_asked(ranges[0], filters)) if ranges else None
    found = []
    for over in ranges:
        own = resolved and replace(resolved, since=over.start, until=over.end)
        newest = _Scan.of(own).newest_first if own else Generation.objects.none()
        rows = Generation.objects.filter(pk__in=newest.values("pk")[:SAMPLE], first_token_ms__isnull=False)
        found.append(matching(rows, own) if own else rows)
    return found


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The place of a request in either order."""

    admitted_at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{(self.admitted_at - _EPOCH) // _MICROSECOND:x}-{self.id.hex}"

    @classmethod
    def of(cls, row: Generation) -> "_Cursor":
        return cls(row.admitted_at, row.id)

    @classmethod
    def parse(cls, text: str) -> "_Cursor":
        time, generation_id = _parsed(_CURSOR, text)
        return cls(_EPOCH + time * _MICROSECOND, generation_id)


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a request in the order by cost, in nanodollars, or by duration, in microseconds."""

    value: int
    id: UUID

    def __str__(self) -> str:
        return f"{self.value:x}-{self.id.hex}"

    @classmethod
    def of(cls, row: Any) -> "_Place":
        is_time = isinstance(row.place, timedelta)
        return cls(row.place // _MICROSECOND if is_time else row.place, row.id)

    @classmethod
    def parse(cls, text: str) -> "_Place":
        return cls(*_parsed(_PLACE, text))


def _parsed(form: re.Pattern[str], text: str) -> tuple[int, UUID]:
    found = form.fullmatch(text)
    if found is None:
        raise ValueError(f"after: {text[:100]!r} is not a cursor of a page before.")
    return int(found[1], 16), UUID(found[2])


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_CURSOR = re.compile(r"([0-9a-f]{1,14})-([0-9a-f]{32})", re.ASCII)
# Not above what a column holds.
_PLACE = re.compile(r"([0-7]?[0-9a-f]{1,15})-([0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A part of an index, newest first.

    It has one lower bound: of two, SQLite may search by the one that excludes less.
    """

    unbounded: QuerySet[Generation]
    is_by_id: bool
    lower: Q = field(default_factory=Q)
    upper: Q = field(default_factory=Q)

    @property
    def rows(self) -> QuerySet[Generation]:
        return self.unbounded.filter(self.lower, self.upper)

    @classmethod
    def of(cls, filters: RequestFilters) -> "_Scan":
        """Return all rows of the organization, the key or the service between the filters' times."""
        owner = {"api_key_id": filters.api_key_id, "organization_id": filters.organization_id}
        rows = Generation.objects.filter(
            **{name: value for name, value in owner.items() if value is not None}
        )
        if filters.end_user and filters.organization_id is not None:
            rows = rows.filter(end_user=filters.end_user)
        is_by_id = not any(owner.values())
        lower, upper = Q(), Q()
        if (since := filters.admitted_since) is not None:
            lower = Q(id__gte=_first_id(since - _CLOCK_SLACK)) if is_by_id else Q(admitted_at__gte=since)
            rows = rows.filter(admitted_at__gte=since) if is_by_id else rows
        if (until := filters.admitted_until) is not None:
            upper = Q(id__lt=_first_id(until + _CLOCK_SLACK)) if is_by_id else Q(admitted_at__lt=until)
            rows = rows.filter(admitted_at__lt=until) if is_by_id else rows
        return cls(rows, is_by_id, lower, upper)

    @property
    def newest_first(self) -> QuerySet[Generation]:
        return self.rows.order_by("-id") if self.is_by_id else self.rows.order_by("-admitted_at", "-id")

    def after(self, place: _Cursor) -> "_Scan":
        if self.is_by_id:
            return replace(self, upper=self.upper & Q(id__lt=place.id))
        # The first condition is implied by the second, but it is the one that the index can use.
        earlier = Q(admitted_at__lt=place.admitted_at) | Q(admitted_at=place.admitted_at, id__lt=place.id)
        return replace(self, upper=self.upper & Q(admitted_at__lte=place.admitted_at) & earlier)

    def down_to(self, place: _Cursor) -> "_Scan":
        if self.is_by_id:
            return replace(self, lower=Q(id__gte=place.id))
        later = Q(admitted_at__gt=place.admitted_at) | Q(admitted_at=place.admitted_at, id__gte=place.id)
        return replace(self, lower=Q(admitted_at__gte=place.admitted_at) & later)

    def at(self, place: _Cursor) -> "_Scan":
        """Return the rows at a place of `row_at`."""
        same = Q(id=place.id) if self.is_by_id else Q(admitted_at=place.admitted_at)
        return replace(self, lower=same)

    def search(self, filters: RequestFilters, searched: int, count: int) -> QuerySet[Generation]:
        """Return the newest `count` rows that match, in any order; at most `searched` rows are looked at.

        The database looks at rows in the order of the index, and stops at the last one that is wanted.
        """
        newest = self.newest_first.values(*SEARCHED_COLUMNS)[:searched]
        looked_at, parameters = newest.query.sql_with_params()
        conditions = matching(Generation.objects.all(), filters).query
        tests, tested = conditions.get_compiler(DEFAULT_DB_ALIAS).compile(conditions.where)
        tests = tests.replace("usage_generation", "newest")  # the values are parameters
        # Without an order of its own, for which SQLite would look at all rows: they come in the inner one.
        ids = f"SELECT id FROM ({looked_at}) AS newest WHERE {tests} LIMIT {count}"  # noqa: S608
        return Generation.objects.filter(pk__in=RawSQL(ids, (*parameters, *tested)))  # noqa: S611  ours

    def row_at(self, count: int) -> _Cursor | None:
        """Return the place of the n-th row; None if there are fewer.

        For an organization or a key, it is before all rows of its time, so that its index alone is read.
        """
        if self.is_by_id:
            place = self.newest_first.values_list("admitted_at", "id")[count - 1 : count].first()
            return _Cursor(*place) if place else None
        times = self.rows.order_by("-admitted_at").values_list("admitted_at", flat=True)
        time = times[count - 1 : count].first()
        return _Cursor(time, UUID(int=0)) if time else None

    def place_of(self, row: "Generation | _Cursor") -> Any:
        """Return what the rows are ordered by."""
        return row.id if self.is_by_id else (row.admitted_at, row.id)


def _first_id(moment: datetime) -> UUID:
    """Return the lowest UUIDv7 of that millisecond (RFC 9562, section 5.7)."""
    return UUID(int=max((moment - _EPOCH) // timedelta(milliseconds=1), 0) << 80)


def _with_one_owner(filters: RequestFilters) -> RequestFilters | None:
    """Return the filters with only the owner whose index is read.

    None if no request can match, because the key is not of the project or the organization, or there is no
    such project.
    """
    if filters.is_void:
        return None
    organization_id = filters.organization_id
    if filters.api_key_id is not None:
        keys = APIKey.objects.filter(pk=filters.api_key_id)
        keys = keys if filters.project_id is None else keys.filter(project=filters.project_id)
        keys = keys if organization_id is None else keys.filter(project__organization=organization_id)
        is_alone = filters.project_id is None and organization_id is None
        is_possible = is_alone or keys.exists()
        return replace(filters, organization_id=None, project_id=None) if is_possible else None
    if filters.project_id is not None and organization_id is None:
        homes = Project.objects.filter(pk=filters.project_id).values_list("organization_id", flat=True)
        home_id = filters.home_id or homes.first()
        return None if home_id is None else with_stored_name(replace(filters, organization_id=home_id))
    return with_stored_name(filters)
