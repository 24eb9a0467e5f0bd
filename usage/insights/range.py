"""The range of time that a report is about, cut into hours or days."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal, cast, get_args
from zoneinfo import ZoneInfo

Bucket = Literal["hour", "day"]
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MAX_DAYS: Mapping[Bucket, int] = {"hour": 31, "day": 400}
"""The longest range in each kind of bucket: a chart has no room for more, and a report should not read more.
"""
USUAL_DAYS = 7
HOURLY_UP_TO = 2 * DAY
"""Up to this length a range is cut into hours unless one asks for days."""
_YEARS = range(1000, 9000)
"""Python has no time before the year 1 and after 9999, and a range is compared with the one before, and told
in other time zones.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """From `start` up to, and not including, `end`; both in the reader's time zone, which says where days
    begin.

    The rollup knows full UTC hours only: each counts where it begins. Days are the calendar's, whether they
    have 23 hours or 25; what comes first is told in UTC: times of one zone are compared as its clock shows
    them, and once a year it shows an hour twice.
    """

    start: datetime
    end: datetime
    bucket: Bucket

    @classmethod
    def last(cls, days: int, now: datetime, time_zone: str = "UTC", bucket: Bucket | None = None) -> "Range":
        """The last so many calendar days there, today among them, up to the end of the hour."""
        local = now.astimezone(ZoneInfo(time_zone))
        first = datetime.combine(local.date() - (days - 1) * DAY, time(), local.tzinfo)
        return cls.between(first, _end_of_hour(local), bucket)

    @classmethod
    def between(cls, start: datetime, end: datetime, bucket: Bucket | None = None) -> "Range":
        """From `start` to `end`; raises `ValueError` when that is nothing, or longer than `MAX_DAYS`."""
        bucket = bucket or ("hour" if end - start <= HOURLY_UP_TO else "day")
        if end.astimezone(UTC) <= start.astimezone(UTC):
            raise ValueError("The range must end after it starts.")
        if end - start > MAX_DAYS[bucket] * DAY:
            raise ValueError(f"The range is too long: by the {bucket} it can have {MAX_DAYS[bucket]} days.")
        return cls(start, end, bucket)

    @property
    def before(self) -> "Range":
        """The equally long range to compare with: whole days earlier, to the same hour, if this one begins
        with a day.
        """
        if self.start.time() == time():
            # One day at least: where midnight comes twice, the clock has not moved on from the first to the
            # second.
            shift = max(-(-(self.end - self.start) // DAY), 1) * DAY
            return Range(self.start - shift, self.end - shift, self.bucket)
        start = self.start.astimezone(UTC)
        earlier = start - (self.end.astimezone(UTC) - start)
        return Range(earlier.astimezone(self.start.tzinfo), self.start, self.bucket)

    def fits(self, bucket: Bucket) -> bool:
        """Whether it is short enough to be cut into these."""
        return self.end - self.start <= MAX_DAYS[bucket] * DAY

    @property
    def has_utc_days(self) -> bool:
        """Whether its buckets are days of UTC."""
        return self.bucket == "day" and not any(each.utcoffset() for each in self.starts())

    def starts(self) -> list[datetime]:
        """When each bucket begins; the first one at `start`, the others on full hours, or at midnight."""
        starts, start, end = [], self.start, self.end.astimezone(UTC)
        while start.astimezone(UTC) < end:
            starts.append(start)
            start = self._next(start)
        return starts

    def _next(self, start: datetime) -> datetime:
        if self.bucket == "hour":
            # Through UTC: the wall clock repeats or leaves out an hour twice a year.
            return _end_of_hour(start.astimezone(UTC)).astimezone(start.tzinfo)
        return datetime.combine(start.date() + DAY, time(), start.tzinfo)


def parse_range(query: Mapping[str, str], now: datetime) -> Range:
    """The range that a page's query asks for; raises `ValueError` with a text for its reader.

    `days=7` (the default) are the last days with today, else `start=` and `end=` are dates (`end` is
    included) or times (`2026-11-21T13:00`, `end` is not); `bucket=hour|day` and `time_zone=Europe/Berlin` go
    with both.
    """
    zone, bucket = _time_zone(query.get("time_zone") or "UTC"), _bucket(query.get("bucket") or None)
    if query.get("start") or query.get("end"):
        start = _moment("start", query.get("start", ""), zone)
        end = (
            _moment("end", query["end"], zone, is_end=True)
            if query.get("end")
            else _end_of_hour(now.astimezone(zone))
        )
        return Range.between(start, end, bucket)
    return Range.last(_days(query.get("days") or str(USUAL_DAYS)), now, zone.key, bucket)


def _end_of_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0) + HOUR


def _time_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"time_zone: {name!r} is not an IANA time zone, such as Europe/Berlin.") from None


def _bucket(name: str | None) -> Bucket | None:
    if name not in (None, *get_args(Bucket)):
        raise ValueError(f"bucket: {name!r} is neither 'hour' nor 'day'.")
    return cast(Bucket | None, name)


def _days(text: str) -> int:
    most = max(MAX_DAYS.values())
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= most):
        raise ValueError(f"days: {text!r} is not a number from 1 to {most}.")
    return int(text)


def _moment(name: str, text: str, zone: ZoneInfo, *, is_end: bool = False) -> datetime:
    """A date's first moment there (an end's: the next day's), or a time."""
    with suppress(ValueError, OverflowError):
        moment = _first_moment(text, zone, is_end) if len(text) == len("2026-11-21") else _time(text, zone)
        if moment.year in _YEARS:
            return moment
    raise ValueError(f"{name}: {text!r} is not a date or time, such as 2026-11-21 or 2026-11-21T13:00.")


def _first_moment(day: str, zone: ZoneInfo, is_end: bool) -> datetime:
    return datetime.combine(date.fromisoformat(day) + is_end * DAY, time(), zone)


def _time(text: str, zone: ZoneInfo) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(zone) if moment.tzinfo else moment.replace(tzinfo=zone)
