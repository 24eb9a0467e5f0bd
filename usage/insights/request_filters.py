"""What a list of requests may be filtered by: by an index, or by looking at rows."""

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, Exists, Q, QuerySet
from django.db.models.expressions import RawSQL

from accounts import end_users
from accounts.models import Project
from usage.insights.sources import Filters
from usage.models import Generation
from usage.models.generations import ANY_ERROR, FAILED

# How long before the range the search for requests that were settled in it begins; one that was open for
# longer is not found.
_OPEN_AT_MOST = timedelta(hours=6)

Filtering = TypeVar("Filtering", bound=Filters)
# What rollups can be filtered by, and the fields that filter nothing, or by time.
_IN_ROLLUPS = ("organization_id", "project_id", "api_key_id", "model", "outcome", "is_test")
_NO_FILTERS = (
    "time", "since", "until", "sort", "metadata_key", "is_by_request", "is_stored_name", "home_id", "is_void",
)  # fmt: skip
Sort = Literal["newest", "cost", "duration"]


@dataclass(frozen=True, slots=True)
class RequestFilters(Filters):
    """Filters of requests. `since` and `until` (exclusive) bound the `time`; amounts are inclusive.

    The outcome may also be `ANY_ERROR`; the end user may be one of an organization or of a key. Sums count a
    request when it is settled, so the requests behind a sum are those of `time="settled"`.
    """

    time: Literal["admitted", "settled"] = "admitted"
    endpoint: str | None = None
    dialect: str | None = None
    usage_source: str | None = None
    deployment: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    min_nanodollars: int | None = None
    max_nanodollars: int | None = None
    id: UUID | None = None
    sort: Sort = "newest"
    """Sorted by cost or duration, the list has those of the newest `SORTED` requests that are settled."""

    @property
    def is_search(self) -> bool:
        """Return whether rows that match may be far apart in the index."""
        return self.id is None and bool(_unindexed(self) or self.metadata)

    @property
    def of_rollups(self) -> Filters | None:
        """Return the filters without time and order as rollups have them; None if a rollup lacks one."""
        values = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NO_FILTERS
        }
        known = {name: values.pop(name) for name in _IN_ROLLUPS}
        return None if any(value is not None for value in values.values()) else Filters(**known)

    @property
    def admitted_since(self) -> datetime | None:
        """Return the earliest admission that can match, in UTC, where computing with times is safe."""
        since = self.since and self.since.astimezone(UTC)
        return since - _OPEN_AT_MOST if since and self.time == "settled" else since

    @property
    def admitted_until(self) -> datetime | None:
        return self.until and self.until.astimezone(UTC)


# Filters without an index, and their lookups.
_UNINDEXED = {
    "project_id": "project_id",
    "model": "model",
    "outcome": "outcome",
    "endpoint": "endpoint",
    "dialect": "dialect",
    "usage_source": "usage_source",
    "deployment": "deployment",
    "min_nanodollars": "amount_nanodollars__gte",
    "max_nanodollars": "amount_nanodollars__lte",
    "error": "error_code",
    "is_test": "is_test",
}


# The columns by which rows are found and looked at.
SEARCHED_COLUMNS = (
    "id", "admitted_at", "settled_at", "project_id", "model", "outcome", "endpoint", "dialect",
    "usage_source", "deployment", "amount_nanodollars", "error_code", "end_user", "metadata",
    "is_test",
)  # fmt: skip


def matching(rows: QuerySet[Generation], filters: RequestFilters) -> QuerySet[Generation]:
    """Return the rows that match the filters without an index."""
    rows = rows.filter(**_unindexed(filters))
    if filters.metadata is not None:
        has = RawSQL(has_pair("usage_generation"), filters.metadata, BooleanField())  # noqa: S611
        rows = rows.filter(has)
    return rows if filters.id is None else rows.filter(id=filters.id)


# Django's own lookups take a key of digits for the index of a list.
_HAS_PAIR = {
    "sqlite": "EXISTS (SELECT 1 FROM json_each({}.metadata) AS pair WHERE pair.key = %s AND pair.value = %s)",
    "postgresql": "{}.metadata ->> %s = %s",
}
_VALUE = {
    "sqlite": "(SELECT pair.value FROM json_each({}.metadata) AS pair WHERE pair.key = %s)",
    "postgresql": "{}.metadata ->> %s",
}


def has_pair(table: str) -> str:
    """Return the condition that a row of the table has a key and a value in its metadata."""
    return _HAS_PAIR[connection.vendor].format(table)


def value_of_key(table: str) -> str:
    """Return the expression of a key's value in the metadata of a row of the table; empty without it."""
    return f"COALESCE({_VALUE[connection.vendor].format(table)}, '')"


def with_stored_name(filters: Filtering) -> Filtering:
    """Return the filters with the end user as rows have it: by the name or, if the organization has no rows
    with the name, by its digest; in a project that hashes names, the other way round.
    """
    organization_id, name = filters.organization_id or filters.home_id, filters.end_user
    if not name or organization_id is None or filters.is_stored_name:
        return filters
    digest = end_users.digest(name)
    own = Generation.objects.filter(organization_id=organization_id)
    named, hashed = own.filter(end_user=name), own.filter(end_user=digest)
    if filters.project_id is None:
        is_digest = not named.exists()
    else:
        has_digest = Q(Exists(hashed), hashes_end_users=True) | Q(~Exists(named), hashes_end_users=False)
        is_digest = Project.objects.filter(has_digest, pk=filters.project_id).exists()
    return replace(filters, end_user=digest if is_digest else name, is_stored_name=True)


def _unindexed(filters: RequestFilters) -> dict[str, Any]:
    lookups = {column: getattr(filters, name) for name, column in _UNINDEXED.items()}
    if filters.outcome == ANY_ERROR:
        lookups |= {"outcome": None, "outcome__in": FAILED}
    if filters.organization_id is None and filters.end_user:
        lookups["end_user__in"] = (filters.end_user, end_users.digest(filters.end_user))
    if filters.time == "settled":
        lookups |= {"settled_at__gte": filters.since, "settled_at__lt": filters.until}
    return {column: value for column, value in lookups.items() if value is not None}
