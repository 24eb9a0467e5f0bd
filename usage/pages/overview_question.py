"""What the Overview's address asks for: a range of time, filters, a grouping, and what the chart measures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args

from usage import insights
from usage.insights import Filters, GroupBy, Range, Totals
from usage.pages import figures
from usage.pages.page_query import TIME, Chip, address, chips, filters_in, filters_query, only

GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)
_DAYS = ((1, "Today"), (7, "7 days"), (30, "30 days"), (90, "90 days"))
_USUAL_DAYS = "7"


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
        return filters_query(self.filters) | only(self.time, ("time_zone",))

    def rows_url(self, **narrowed: object) -> str:
        """The requests behind a number."""
        return address("requests", {**only(self.time, TIME), **filters_query(self.filters), **narrowed})

    def days(self) -> list[Choice]:
        """The usual ranges."""
        chosen = "" if "start" in self.time or "end" in self.time else self.time.get("days", _USUAL_DAYS)
        rest = {**self._view, **self.hidden}
        return [Choice(text, address("index", {"days": number, **rest}), str(number) == chosen) for number, text in _DAYS]

    def measures(self) -> list[Choice]:
        """What the chart can measure."""
        rest = {**self.time, **self._view, **self.hidden}
        return [Choice(each.title, address("index", rest | {"measure": name}), name == self.measure) for name, each in MEASURES.items()]

    def chips(self) -> list[Chip]:
        """The filters that are set."""
        return chips("index", {**self.time, **self._view}, self.filters)

    @property
    def _view(self) -> dict[str, object]:
        return {"group": self.group_by, "measure": self.measure}


def parse(query: Mapping[str, str], now: datetime) -> Question:
    """The question that an address asks; raises `ValueError` with a text for its reader."""
    return Question(
        insights.parse_range({"days": _USUAL_DAYS, **query}, now),
        filters_in(query),
        _one_of(query, "group", GROUPS, "model"),
        _one_of(query, "measure", tuple(MEASURES), "spend"),
        only(query, (*TIME, "bucket")),
    )


def _one_of(query: Mapping[str, str], name: str, choices: Sequence[Any], usual: Any) -> Any:
    found = query.get(name) or usual
    if found not in choices:
        raise ValueError(f"{name}: {found[:40]!r} is none of {', '.join(choices)}.")
    return found
