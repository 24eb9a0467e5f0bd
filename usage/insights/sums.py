"""Sums of the rollups: of a range, of its hours or days, and of the groups that spent most."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from django.db.models import Case, CharField, DateTimeField, F, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast

from usage.database.replica import report
from usage.insights import request_sums
from usage.insights.generation_list import NewestRequests
from usage.insights.labels import Labels, labels_of
from usage.insights.range import DAY, Range
from usage.insights.sources import NUMERIC_GROUPS, Filters, GroupBy, Source, overages, rows_of, sources
from usage.rollups import closed_days

# Groups of a series that have their own name: nobody can tell more colours apart.
MAX_GROUPS = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of requests. Cached and written tokens are among the prompt's, reasoning tokens among the
    completion's.
    """

    requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    amount_nanodollars: int = 0

    @classmethod
    def of(cls, sums: Iterable[int]) -> "Totals":
        """Return the totals of the sums of a source, in their order."""
        failed, *others = sums
        return cls(failed_requests=failed, **dict(zip(closed_days.SUMS, others, strict=True)))

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Totals)))

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(Totals)))

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def uncached_tokens(self) -> int:
        """Return the prompt's tokens that were neither read from a cache nor written to one."""
        return self.prompt_tokens - self.cached_tokens - self.cache_write_tokens

    @property
    def error_rate(self) -> float:
        """Return the share of failed requests, from 0 to 1; 0 without requests."""
        return self.failed_requests / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The sums of one group, such as a project, a model or an error code."""

    group_id: str
    label: str
    totals: Totals


@dataclass(frozen=True, slots=True)
class Point:
    """The sums of one group in one bucket. `group_id` is None for the groups "all" and "other"."""

    start: datetime
    group_id: str | None
    group_label: str
    totals: Totals


@dataclass(frozen=True, slots=True)
class GroupList:
    """Some groups of a chart, in the order of all, and the number of all."""

    rows: Sequence[Row]
    count: int


@dataclass(frozen=True, slots=True)
class Series:
    """A chart's points: by time, then the most expensive group first."""

    points: Sequence[Point]
    listed: GroupList | None
    """The groups that the chart's spec lists."""
    others: Sequence[Totals]
    """The totals of other specs."""
    whole: Sequence[Totals] = ()
    """The sums of all requests of each bucket, where the groups don't add up to them."""


@dataclass(frozen=True, slots=True)
class SumsSpec:
    """What to add up: the requests of a range that match the filters, by group if there is one."""

    over: Range
    group_by: GroupBy | None = None
    filters: Filters = field(default_factory=Filters)
    newest: NewestRequests | None = None
    """The newest requests of the range, if they are known already."""
    is_overage: bool = False
    """Whether to add up ledger entries over reserved amounts instead of requests."""
    listed: range | None = None
    """The groups to list by name: their ranks, from the most expensive group."""

    def sources(self, *, by_start: bool) -> Iterator[Source]:
        """Yield the rollups that cover the range, or its newest requests if rollups know too little."""
        if self.is_overage:
            yield overages(self.over, self.filters)
            return
        if request_sums.are_needed(self.group_by, self.filters):
            yield request_sums.source(self.over, self.group_by, self.filters, self.newest)
            return
        yield from sources(self.over, self.group_by, self.filters, by_start=by_start)


Sums = dict[Any, Totals]
"""Totals by the ids or names of the groups; without groups by None."""
Ranked = Sequence[tuple[Any, Totals]]
"""The same, the most expensive group first."""
_Group = tuple[Any, str | None, str]
_Buckets = dict[tuple[int, Any], Totals]


@report
def totals(over: Range, filters: Filters | None = None) -> Totals:
    (found,) = sums_of([SumsSpec(over, None, filters or Filters())])
    return found.get(None, Totals())


@report
def sums_of(specs: Sequence[SumsSpec]) -> list[Sums]:
    """Return the sums of each spec, in one statement; of all end users, only the most expensive."""
    found: list[Sums] = [{} for _ in specs]
    for number, _, group, sums in _read(specs):
        known = found[number].get(group)
        found[number][group] = known + sums if known else sums
    return found


def sums_by_group(over: Range, group_by: GroupBy, filters: Filters | None = None) -> Sums:
    return sums_of([SumsSpec(over, group_by, filters or Filters())])[0]


def top(over: Range, group_by: GroupBy, filters: Filters | None = None, n: int = 5) -> list[Row]:
    """Return the `n` groups that spent most, the most expensive first, then the one with more requests."""
    return tops(over, [group_by], filters, n)[group_by]


@report
def tops(
    over: Range, groups: Sequence[GroupBy], filters: Filters | None = None, n: int = 5
) -> dict[GroupBy, list[Row]]:
    """Return what `top` does of several kinds of groups, in two statements."""
    sums = sums_of([SumsSpec(over, group_by, filters or Filters()) for group_by in groups])
    found = {group_by: by_amount(each)[:n] for group_by, each in zip(groups, sums, strict=True)}
    labels = labels_of({group_by: [key for key, _ in rows] for group_by, rows in found.items()})
    return {
        group_by: [Row(str(key), labels[group_by, key], totals) for key, totals in rows]
        for group_by, rows in found.items()
    }


def series(over: Range, group_by: GroupBy | None = None, filters: Filters | None = None) -> list[Point]:
    """Return a point for every bucket and group: by time, then the most expensive group first.

    The `MAX_GROUPS` most expensive groups have their own points; the rest are one group, "other". Of end
    users, these are all other requests of the project.
    """
    return list(series_beside(SumsSpec(over, group_by, filters or Filters()), []).points)


@report
def series_beside(chart: SumsSpec, others: Sequence[SumsSpec]) -> Series:
    """Return the chart's points, as `series` does, and the totals of other specs."""
    ranking = [] if chart.group_by is None else [chart]
    found = sums_of([*ranking, *others]) if ranking or others else []
    ranked = [row for sums in found[: len(ranking)] for row in by_amount(sums)]
    labels = labels_of(named_of(chart, ranked))
    rest = [sum(sums.values(), Totals()) for sums in found[len(ranking) :]]
    return Series(points_of(chart, ranked, labels), listed_of(chart, ranked, labels), rest)


@report
def series_and_whole(chart: SumsSpec, others: Sequence[SumsSpec]) -> Series:
    """Return what `series_beside` does, and the sums of all requests of each bucket, which groups by error
    and of the newest requests don't add up to.
    """
    own_sums, *found = sums_of([chart, *others])
    ranked = by_amount(own_sums)
    labels = labels_of(named_of(chart, ranked))
    groups = _groups_of(chart, ranked, labels)
    own, whole = _sums_by_bucket([chart, replace(chart, group_by=None)], [key for key, _, _ in groups])
    sums = [whole.get((bucket, None), Totals()) for bucket in range(len(chart.over.starts()))]
    rest = [sum(each.values(), Totals()) for each in found]
    return Series(_points(chart, groups, own), listed_of(chart, ranked, labels), rest, sums)


def named_of(spec: SumsSpec, ranked: Ranked) -> dict[GroupBy, list[Any]]:
    """Return the groups whose labels a page shows: those of the chart, and those that it lists."""
    if spec.group_by is None:
        return {}
    chosen = [*ranked[:MAX_GROUPS], *(_at(ranked, spec.listed) if spec.listed else ())]
    return {spec.group_by: list(dict.fromkeys(key for key, _ in chosen))}


def listed_of(spec: SumsSpec, ranked: Ranked, labels: Labels) -> GroupList | None:
    """Return the groups that the spec lists; None if it lists none."""
    if spec.listed is None or spec.group_by is None:
        return None
    rows = [Row(str(key), labels[spec.group_by, key], totals) for key, totals in _at(ranked, spec.listed)]
    return GroupList(rows, len(ranked))


def _at(ranked: Ranked, places: range) -> Ranked:
    return ranked[places.start : places.stop]


def points_of(spec: SumsSpec, ranked: Ranked, labels: Labels) -> list[Point]:
    """Return the points of `series`, from the groups in their order."""
    groups = _groups_of(spec, ranked, labels)
    named = [key for key, _, _ in groups]
    (sums,) = _sums_by_bucket([spec], named)
    if spec.group_by == "end_user" and None in named and not spec.filters.is_by_request:
        sums = _with_rest(sums, spec, named)
    return _points(spec, groups, sums)


def _groups_of(spec: SumsSpec, ranked: Ranked, labels: Labels) -> list[_Group]:
    """Return the chart's groups: each with the name in the database, the id and the label."""
    if spec.group_by is None:
        return [(None, None, "all")]
    groups: list[_Group] = [(key, str(key), labels[spec.group_by, key]) for key, _ in ranked[:MAX_GROUPS]]
    return [*groups, *([(None, None, "other")] if len(ranked) > MAX_GROUPS else [])]


def _points(spec: SumsSpec, groups: Sequence[_Group], sums: _Buckets) -> list[Point]:
    nothing = Totals()
    return [
        Point(start, name, label, sums.get((bucket, key), nothing))
        for bucket, start in enumerate(spec.over.starts())
        for key, name, label in groups
    ]


def by_amount(sums: Mapping[Any, Totals]) -> list[tuple[Any, Totals]]:
    """Return the groups, the most expensive first."""
    # The id decides last, so that equal groups keep their colours from one view of the page to the next.
    return sorted(sums.items(), key=lambda row: (-row[1].amount_nanodollars, -row[1].requests, row[0]))


def _read(
    specs: Sequence[SumsSpec], named: Sequence[Any] = (), *, by_start: bool = False
) -> list[tuple[int, Any, Any, Totals]]:
    """Return rows in one statement: the index of a spec, the start of a bucket, a group, and their sums.

    None among the named groups stands for all others.
    """
    queries = []
    for number, spec in enumerate(specs):
        for source in spec.sources(by_start=by_start):
            columns: dict[str, Any] = {
                "spec": Value(number),
                "bucket": source.start if by_start else Value(None, DateTimeField()),
                "member_name": _group(spec.group_by, source, named),
            }
            rows = source.rows.order_by().annotate(**columns)
            queries.append(rows.values_list(*columns).annotate(**source.sums))
    found = []
    for number, start, name, *sums in rows_of(queries):
        is_number = name is not None and specs[number].group_by in NUMERIC_GROUPS
        found.append((number, start, int(name) if is_number else name, Totals.of(sums)))
    return found


def _sums_by_bucket(specs: Sequence[SumsSpec], named: list[Any]) -> list[_Buckets]:
    """Return the sums by bucket and group of specs of one range; None among the named groups stands for all
    others.

    A bucket is named by its index: on the day on which clocks are put back, two of them begin at 2:00.
    """
    starts = [start.astimezone(UTC) for start in specs[0].over.starts()]
    found: list[_Buckets] = [{} for _ in specs]
    for number, moment, group, sums in _read(specs, named, by_start=True):
        # The UTC day of an end user may begin before the range does; it counts in the first bucket.
        key = (max(bisect_right(starts, moment) - 1, 0), group)
        known = found[number].get(key)
        found[number][key] = known + sums if known else sums
    return found


def _with_rest(found: _Buckets, spec: SumsSpec, named: list[Any]) -> _Buckets:
    """Return the sums of the named end users, and of each UTC day all others and requests without one: a sum
    of all end users would read a row for each.
    """
    over = spec.over
    end = -(-(over.end - _EPOCH) // DAY) * DAY + _EPOCH
    days = Range(over.start - (over.start - _EPOCH) % DAY, end, "day")
    (rest,) = _sums_by_bucket([SumsSpec(days, None, spec.filters)], [None])
    own = {key: sums for key, sums in found.items() if key[1] in named and key[1] is not None}
    for (bucket, _), sums in own.items():
        rest[bucket, None] = rest.get((bucket, None), Totals()) - sums
    return own | rest


def _group(group_by: GroupBy | None, source: Source, named: Sequence[Any]) -> Combinable:
    """Return the name of a row's group as text; NULL without groups, and for groups that are not named."""
    if group_by is None:
        return Cast(Value(None), CharField())
    member: Combinable = F(source.group)
    if group_by in NUMERIC_GROUPS and not source.is_text:
        member = Cast(member, CharField())
    if None not in named:
        return member  # which costs the database much less
    chosen = [each for each in named if each is not None]
    members = list(map(str, chosen)) if source.is_text else chosen
    return Case(When(**{f"{source.group}__in": members}, then=member), default=None)
