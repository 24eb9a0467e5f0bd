"""All sums of an Overview in three statements: those of all groups, the names, and those of the chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from usage.database.replica import report
from usage.insights import request_sums
from usage.insights.counters import Overage
from usage.insights.first_tokens import Percentiles, percentiles, weighed
from usage.insights.labels import labels_of
from usage.insights.range import Range
from usage.insights.sources import GroupBy
from usage.insights.sums import (
    MAX_GROUPS,
    GroupList,
    Point,
    Row,
    SumsSpec,
    Totals,
    by_amount,
    listed_of,
    named_of,
    points_of,
    sums_of,
)

# Groups of a ranking that have a name; the rest are added up by the page.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class OverviewSums:
    """What an Overview shows of a range, and of the range before if that can be compared."""

    now: Totals
    compared: Totals
    """The sums without the running hour, to compare with `before`."""
    before: Totals | None
    """The sums of the range before; None if it has no requests or can't be compared."""
    overage: Overage
    outcomes: Mapping[str, Totals]
    """The sums by outcome; empty where they are not known, as of an end user."""
    tops: Mapping[GroupBy, Sequence[Row]]
    """The groups that spent most, at most `_NAMED`."""
    points: Sequence[Point]
    listed: GroupList | None
    """The groups that the chart's spec lists."""
    first_token: Percentiles | None
    first_token_compared: Percentiles | None
    first_token_before: Percentiles | None


@report
def overview_sums(
    chart: SumsSpec, tops: Sequence[GroupBy], compared: tuple[Range, Range] | None
) -> OverviewSums:
    """Return the sums of the chart's range and filters, by its group and by those of `tops`.

    `compared` has the part of the range that can be compared, and the range before. To read a long range
    once, the part's sums are those of the range without the running hour's.
    """
    over, filters = chart.over, chart.filters
    # The rollup of end users has neither outcomes nor times.
    whole: GroupBy | None = None if filters.has_days_of_end_user else "outcome"
    groups = list(dict.fromkeys([whole, *tops, chart.group_by]))
    running = over.after(compared[0]) if compared else None
    beside = [each for each in (compared and compared[1], running) if each]
    ranges = list(dict.fromkeys([over, *(compared or ())]))
    samples = [] if filters.has_days_of_end_user else weighed(ranges, filters)
    is_in_books = not filters.has_days_of_end_user and not request_sums.are_needed(None, filters)
    specs = [
        *(SumsSpec(over, group_by, filters, chart.newest) for group_by in groups),
        *(SumsSpec(each, None, filters) for each in (*beside, *samples)),
        *([SumsSpec(over, None, filters, is_overage=True)] if is_in_books else []),
    ]
    found = sums_of(specs)
    by_group = dict(zip(groups, found, strict=False))
    rest = [sum(each.values(), Totals()) for each in found[len(groups) :]]
    ranked = {group_by: by_amount(by_group[group_by]) for group_by in groups if group_by}
    of_chart = ranked[chart.group_by] if chart.group_by else []
    most_named = max(_NAMED, MAX_GROUPS)
    named = {group_by: [key for key, _ in rows[:most_named]] for group_by, rows in ranked.items()}
    for group_by, keys in named_of(chart, of_chart).items():
        named[group_by] = list(dict.fromkeys([*named[group_by], *keys]))
    labels = labels_of(named)
    speeds: dict[Range, Percentiles | None] = {}
    if not filters.has_days_of_end_user:
        of_samples = zip(samples, rest[len(beside) :], strict=False)
        requests = {each: sums.requests for each, sums in of_samples}
        speeds = dict(zip(ranges, percentiles(ranges, filters, requests), strict=True))
    now = sum(by_group[whole].values(), Totals())
    return OverviewSums(
        now=now,
        compared=now - rest[1] if running else now,
        before=rest[0] if compared and rest[0].requests else None,
        overage=Overage.of(rest[-1]) if is_in_books else Overage(),
        outcomes=by_group[whole] if whole else {},
        tops={
            group_by: [
                Row(str(key), labels[group_by, key], totals) for key, totals in ranked[group_by][:_NAMED]
            ]
            for group_by in tops
        },
        points=points_of(chart, of_chart, labels) if chart.group_by else [],
        listed=listed_of(chart, of_chart, labels),
        first_token=speeds.get(over),
        first_token_compared=speeds.get(compared[0]) if compared else None,
        first_token_before=speeds.get(compared[1]) if compared else None,
    )
