"""The usual ranges of time, one click away on every page about usage."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from usage.database.clock import hour_of

_DAYS = (7, 30, 90)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few links to choose from."""

    text: str
    url: str
    is_chosen: bool


def usual_ranges(now: datetime) -> Mapping[str, Mapping[str, str]]:
    """Return the names of the ranges with their parameters, for a reader with the clock of `now`.

    A range that ends now has no end, so its URL stays current.
    """
    hour = hour_of(now) - timedelta(hours=1)
    yesterday, month = now.date() - timedelta(days=1), now.date().replace(day=1)
    last = month - timedelta(days=1)
    return {
        "Last hour": {"start": f"{hour:%Y-%m-%dT%H:%M}"},
        "Today": {"days": "1"},
        "Yesterday": {"start": str(yesterday), "end": str(yesterday)},
        **{f"{days} days": {"days": str(days)} for days in _DAYS},
        "This month": {"start": str(month)},
        "Last month": {"start": str(last.replace(day=1)), "end": str(last)},
    }
