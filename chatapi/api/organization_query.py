"""Parses the query parameters of the organization's usage and costs into a `BucketQuery`.

As in OpenAI's API reference ("Usage"), lists are repeated, `models[]=a&models[]=b` as its SDKs send them or
without the brackets.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.http import HttpRequest

from accounts import end_users
from accounts.models import EndUser
from chatapi.wire.invalid_request import InvalidRequest, duplicate, unknown
from usage.database.clock import Width
from usage.insights.buckets import WIDTHS, Bucket, BucketQuery
from usage.insights.end_user_pages import Place

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A year before the end of Python's dates, so that no page, which has at most 180 days, goes beyond it.
_MAX_TIME = 253_402_300_799 - 366 * 86_400
_PAGE = re.compile(r"page_([0-9a-f]{1,10})(?:_([0-9a-f]{1,15})_([0-9a-f]{1,15}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class UsageRouteSpec:
    """The parameters that one of the routes takes."""

    widths: Mapping[str, tuple[Width, int, int]]
    """By the value of `bucket_width`: the width, and the default and the maximum of buckets on a page."""
    groups: Mapping[str, str | None]
    """The column of each dimension; None if this dimension is not recorded: one group, null."""
    models: str
    """The name of the filter for models."""
    unrecorded: frozenset[str] = frozenset()
    """Filters by values that are not recorded: if one is sent, nothing matches."""


COMPLETIONS = UsageRouteSpec(
    {"1m": ("minute", 60, 1_440), "1h": ("hour", 24, 168), "1d": ("day", 7, 31)},
    {
        "project_id": "project_id",
        "user_id": None,
        "api_key_id": "api_key_id",
        "model": "model",
        "end_user": "end_user_id",
        "batch": None,
        "service_tier": None,
    },
    "models",
    frozenset({"user_ids", "batch"}),
)
COSTS = UsageRouteSpec(
    {"1d": ("day", 7, 180)},
    {
        "project_id": "project_id",
        "user_id": None,
        "line_item": "model",
        "api_key_id": "api_key_id",
        "end_user": "end_user_id",
    },
    "line_items",
)
UNSERVED = UsageRouteSpec(
    COMPLETIONS.widths,
    dict.fromkeys(
        (
            "project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "size", "source",
            "context_level", "vector_store_id", "api_source",
        )
    ),
    "models",
    frozenset({"user_ids", "batch", "sizes", "sources", "context_levels", "vector_store_ids"}),
)  # fmt: skip
"""The spec of OpenAI's usage routes for products that are not served: all their parameters, no results."""


def usage_spec(fields: Collection[str]) -> UsageRouteSpec:
    """Return the parameters of a route whose results have these fields, the dimensions among them."""
    groups = {name: column for name, column in COMPLETIONS.groups.items() if name in fields}
    return replace(COMPLETIONS, groups=groups, unrecorded=COMPLETIONS.unrecorded & {"user_ids", *groups})


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page of buckets."""

    query: BucketQuery
    groups: tuple[str, ...]
    """The dimensions, as the route names them."""
    end: datetime
    """The end of the last page."""
    after: Place | None = None
    """The end user after which the first day of the page continues."""

    def next_page(self, reached: Bucket, after: Place | None) -> str | None:
        """Return the cursor of the page after this bucket, or after this end user of it; None at the end."""
        if after is not None:
            return f"page_{_unix(reached.start):x}_{after.project_id:x}_{after.end_user_id:x}"
        return f"page_{_unix(reached.end):x}" if reached.end < self.end else None


def parse(request: HttpRequest, organization_id: int, spec: UsageRouteSpec, now: datetime) -> PageRequest:
    """Return the page that the request is for; raises `InvalidRequest` naming the parameter."""
    single = _SINGLE | (spec.unrecorded & {"batch"})
    lists = {"group_by", "project_ids", "api_key_ids", "end_users", spec.models, *spec.unrecorded} - single
    sent = parameters(request, single, lists)
    width, usual, most = spec.widths[_one_of(sent, "bucket_width", spec.widths, "1d")]
    limit = _number(sent, "limit", usual, 1, most)
    first, end = _times(sent, WIDTHS[width], now)
    start, after = _page(sent, first, end, WIDTHS[width])
    groups = tuple(dict.fromkeys(_each_of(sent, "group_by", spec.groups)))
    # Filters by user or batch match nothing: keys belong to projects, and there are no batches.
    is_unrecorded = "user_ids" in sent or _one_of(sent, "batch", ("true", "false"), "false") == "true"
    query = BucketQuery(
        organization_id,
        width,
        start,
        max(min(start + limit * WIDTHS[width], end), start),
        tuple(column for name in groups if (column := spec.groups[name]) is not None),
        () if is_unrecorded else _ids(sent, "project_ids"),
        _ids(sent, "api_key_ids"),
        _names(sent, spec.models),
        end_user_ids=_end_user_ids(sent, organization_id),
    )
    _check_end_users(query)
    if after is not None and not query.is_of_all_end_users:
        raise _wrong_page()
    return PageRequest(query, groups, end, after)


# ---- parameters, one by one

Sent = Mapping[str, list[str]]
_SINGLE = frozenset({"start_time", "end_time", "bucket_width", "limit", "page"})


def parameters(request: HttpRequest, single: Set[str], lists: Set[str] = frozenset()) -> Sent:
    """Return the values by name; the name of a list may have brackets.

    An unknown parameter is refused, because the results of an ignored filter would mislead.
    """
    sent: dict[str, list[str]] = {}
    for key, values in request.GET.lists():
        name = key.removesuffix("[]")
        if key not in single and name not in lists:
            raise unknown(key, sorted(single | lists))
        sent.setdefault(name, []).extend(values)
    for name in single & sent.keys():
        if len(sent[name]) > 1:
            raise duplicate(name)
    return sent


def _times(sent: Sent, width: timedelta, now: datetime) -> tuple[datetime, datetime]:
    """Return the start of the first bucket and the end of the last one that has begun, in full buckets."""
    if not sent.get("start_time"):
        raise InvalidRequest(
            "Missing required parameter: 'start_time'.", "start_time", "missing_required_parameter"
        )
    start = _EPOCH + timedelta(seconds=_number(sent, "start_time", 0, 0, _MAX_TIME))
    # Not rounded down to a second: in the first second of a minute, that minute has begun.
    end = now
    if "end_time" in sent:
        end = _EPOCH + timedelta(seconds=_number(sent, "end_time", 0, 0, _MAX_TIME))
        if end <= start:
            raise InvalidRequest("Invalid value for 'end_time': it must be after 'start_time'.", "end_time")
    end = min(end, now)
    return start - (start - _EPOCH) % width, end + (_EPOCH - end) % width


def _page(sent: Sent, first: datetime, end: datetime, width: timedelta) -> tuple[datetime, Place | None]:
    """Return the cursor's time and the end user after which it continues, else the first bucket and None."""
    if "page" not in sent:
        return first, None
    found = _PAGE.fullmatch(sent["page"][0])
    start = _EPOCH + timedelta(seconds=min(int(found[1], 16), _MAX_TIME)) if found else None
    if found is None or start is None or not first <= start <= end or (start - first) % width:
        raise _wrong_page()
    return start, Place(int(found[2], 16), int(found[3], 16)) if found[2] else None


def _wrong_page() -> InvalidRequest:
    return InvalidRequest("Invalid value for 'page': it is not the 'next_page' of this query.", "page")


def _number(sent: Sent, name: str, usual: int, least: int, most: int) -> int:
    if name not in sent:
        return usual
    text = sent[name][0]
    if not _is_number(text):
        raise InvalidRequest(
            f"Invalid type for '{name}': expected an integer, in digits.", name, "invalid_type"
        )
    if not least <= int(text) <= most:
        raise InvalidRequest(f"Invalid value for '{name}': expected an integer from {least} to {most}.", name)
    return int(text)


def _one_of(sent: Sent, name: str, allowed: Iterable[str], usual: str) -> str:
    return next(iter(_each_of(sent, name, allowed)), usual)


def _each_of(sent: Sent, name: str, allowed: Iterable[str]) -> list[str]:
    for value in sent.get(name, []):
        if value not in allowed:
            words = ", ".join(f"'{word}'" for word in allowed)
            raise InvalidRequest(
                f"Invalid value for '{name}': {value[:100]!r}. Supported values are: {words}.", name
            )
    return sent.get(name, [])


def _ids(sent: Sent, name: str) -> tuple[int, ...] | None:
    """Return ids as in `/v1/key` and `createkey --json`."""
    for value in sent.get(name, []):
        if not _is_number(value):
            raise InvalidRequest(f"Invalid value for '{name}': {value[:100]!r} is not an id.", name)
    return tuple(map(int, sent[name])) if name in sent else None


def _names(sent: Sent, name: str) -> tuple[str, ...] | None:
    if any("\0" in value for value in sent.get(name, [])):
        raise InvalidRequest(f"Invalid value for '{name}': a name has no NUL.", name)
    return tuple(sent[name]) if name in sent else None


def _end_user_ids(sent: Sent, organization_id: int) -> tuple[int, ...] | None:
    """Return the ids of the organization's end users that have these names, or digests of them."""
    if (names := _names(sent, "end_users")) is None:
        return None
    stored = {*names, *map(end_users.digest, names)}
    rows = EndUser.objects.filter(project__organization=organization_id, name__in=stored)
    return tuple(rows.values_list("pk", flat=True))


def _check_end_users(query: BucketQuery) -> None:
    """Raise `InvalidRequest` if usage by end user is requested by key, or in buckets shorter than a day."""
    if not query.is_by_end_user:
        return
    if query.width != "day":
        message = "Invalid value for 'bucket_width': usage of end users is kept by day, so it must be '1d'."
        raise InvalidRequest(message, "bucket_width")
    param = "group_by" if "api_key_id" in query.group_by else "api_key_ids"
    if param == "group_by" or query.api_key_ids is not None:
        message = f"Invalid value for '{param}': usage of end users is not kept by API key."
        raise InvalidRequest(message, param)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _unix(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(seconds=1)
