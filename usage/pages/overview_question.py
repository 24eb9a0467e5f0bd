"""What the Overview's address asks for: a range of time, filters, a grouping, and what the chart measures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from usage import insights
from usage.insights import Bucket, Filters, GroupBy, Range, Totals
from usage.models import Kind
from usage.models.outcomes import ANY_ERROR
from usage.pages import figures
from usage.pages.page_query import TIME, Chip, address, chips, filters_in, filters_query, only

GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)
_DAYS = ((1, "Today"), (7, "7 days"), (30, "30 days"), (90, "90 days"))
_USUAL_DAYS = "7"
_ENTRIES = {"organization": "organization__id__exact", "model": "model", "outcome": "outcome__exact"}
"""What the list of ledger entries calls those of our filters that it has."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What the chart's columns are as high as."""

    title: str
    value: Callable[[Totals], int]
    written: Callable[[int], str]


MEASURES = {
    "spend": Measure("Spend", lambda sums: sums.amount_nanodollars, figures.money),
    "requests": Measure("Requests", lambda sums: sums.requests, figures.count),
    "tokens": Measure("Tokens", lambda sums: sums.total_tokens, figures.count),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few things to choose from, by a link."""

    text: str
    url: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for, complete."""

    over: Range
    filters: Filters
    group_by: GroupBy
    measure: str
    time: Mapping[str, str]
    """The part of the address that says the range."""

    @property
    def first_day(self) -> str:
        """The range's first day, as a form's date."""
        return f"{self.over.start:%Y-%m-%d}"

    @property
    def last_day(self) -> str:
        """The range's last day, as a form's date."""
        return f"{self.over.end - timedelta(microseconds=1):%Y-%m-%d}"

    @property
    def hidden(self) -> dict[str, object]:
        """What the form keeps without showing it."""
        return filters_query(self.filters) | only(self.time, ("time_zone", "bucket"))

    def rows_url(self, **narrowed: object) -> str:
        """The requests behind a number, which counts those that were settled in the range."""
        return address(
            "requests",
            {**only(self.time, TIME), **filters_query(self.filters), **narrowed, "time": "settled"},
        )

    @property
    def errors_url(self) -> str:
        """The requests that failed, in whatever way; of one outcome that is asked for, all that there are."""
        return self.rows_url() if self.filters.outcome else self.rows_url(outcome=ANY_ERROR)

    def entries_url(self, kind: Kind) -> str:
        """The ledger's entries of that kind behind a number; of one project or key, which their list can't be
        asked for, the requests.
        """
        filters = filters_query(self.filters)
        if not filters.keys() <= _ENTRIES.keys():
            return self.rows_url()
        start, end = (
            f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00" for moment in (self.over.start, self.over.end)
        )
        narrowed = {_ENTRIES[name]: value for name, value in filters.items()}
        return address(
            "usage_ledgerentry_changelist",
            {"kind__exact": kind, "created_at__gte": start, "created_at__lt": end, **narrowed},
        )

    def days(self) -> list[Choice]:
        """The usual ranges."""
        chosen = self.time.get("days", "")
        rest = {**self._view, **self.hidden}
        return [
            Choice(text, address("index", {"days": number, **rest}), str(number) == chosen)
            for number, text in _DAYS
        ]

    def buckets(self) -> list[Choice]:
        """What the chart's columns can be; nothing to choose where there would be too many hours."""
        if not self.over.fits("hour"):
            return []
        rest = {**self.time, **self._view, **self.hidden}
        names: tuple[Bucket, ...] = get_args(Bucket)
        return [
            Choice(
                f"{name}s".capitalize(), address("index", rest | {"bucket": name}), name == self.over.bucket
            )
            for name in names
        ]

    def measures(self) -> list[Choice]:
        """What the chart can measure."""
        rest = {**self.time, **self._view, **self.hidden}
        return [
            Choice(each.title, address("index", rest | {"measure": name}), name == self.measure)
            for name, each in MEASURES.items()
        ]

    def chips(self) -> list[Chip]:
        """The filters that are set."""
        return chips("index", {**self.time, **self._view}, self.filters)

    @property
    def _view(self) -> dict[str, object]:
        return {"group": self.group_by, "measure": self.measure}


def parse(query: Mapping[str, str], now: datetime) -> Question:
    """The question that an address asks; raises `ValueError` with a text for its reader."""
    filters = filters_in(query)
    if filters.outcome == ANY_ERROR:
        raise ValueError(
            f"outcome: {ANY_ERROR!r} is for lists of requests; sums are of one outcome, or of all."
        )
    return Question(
        _over(query, now),
        filters,
        _one_of(query, "group", GROUPS, "model"),
        _one_of(query, "measure", tuple(MEASURES), "spend"),
        _time(query),
    )


def _time(query: Mapping[str, str]) -> dict[str, str]:
    """What says the range, said in full: other pages have other usual ranges."""
    time = only(query, (*TIME, "bucket"))
    if "start" in time or "end" in time:
        return {name: value for name, value in time.items() if name != "days"}
    return {"days": _USUAL_DAYS, **time}


def _over(query: Mapping[str, str], now: datetime) -> Range:
    """The range; hours that were chosen for a shorter one give way to days where there would be too many."""
    asked = {"days": _USUAL_DAYS, **query}
    usual = insights.parse_range(asked | {"bucket": ""}, now)
    is_too_long = asked.get("bucket") == "hour" and not usual.fits("hour")
    return usual if is_too_long else insights.parse_range(asked, now)


def _one_of(query: Mapping[str, str], name: str, choices: Sequence[Any], usual: Any) -> Any:
    found = query.get(name) or usual
    if found not in choices:
        raise ValueError(f"{name}: {found[:40]!r} is none of {', '.join(choices)}.")
    return found
