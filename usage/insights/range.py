"""The range of time of a report, divided into hours or days."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal, cast, get_args
from zoneinfo import ZoneInfo

from usage.database.clock import hour_of

Bucket = Literal["hour", "day"]
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The longest range for each bucket: charts have no room for more, and reports should not read more.
MAX_DAYS: Mapping[Bucket, int] = {"hour": 31, "day": 400}
USUAL_DAYS = 7
# Up to this length, ranges are divided into hours by default.
HOURLY_UP_TO = 2 * DAY
# Away from the ends of Python's calendar, because ranges are compared with the ones before and converted to
# other time zones.
_YEARS = range(1000, 9000)


@dataclass(frozen=True, slots=True)
class Range:
    """A range from `start` up to, and not including, `end`, in the reader's time zone, whose days it has.

    A UTC hour of the rollup counts in the bucket in which it begins. Days may have 23 or 25 hours. Times are
    compared in UTC: Python compares times of one zone by its clock, which shows one hour of the year twice.
    """

    start: datetime
    end: datetime
    bucket: Bucket

    @classmethod
    def last(cls, days: int, now: datetime, time_zone: str = "UTC", bucket: Bucket | None = None) -> "Range":
        """Return the last calendar days, including today, up to the end of the hour."""
        local = now.astimezone(ZoneInfo(time_zone))
        first = datetime.combine(local.date() - (days - 1) * DAY, time(), local.tzinfo)
        return cls.between(first, _end_of_hour(local), bucket)

    @classmethod
    def between(cls, start: datetime, end: datetime, bucket: Bucket | None = None) -> "Range":
        """Return the range; raises `ValueError` if it is empty or too long."""
        bucket = bucket or ("hour" if end - start <= HOURLY_UP_TO else "day")
        if end.astimezone(UTC) <= start.astimezone(UTC):
            raise ValueError("The range must end after it starts.")
        if end - start > MAX_DAYS[bucket] * DAY:
            raise ValueError(f"The range is too long: by the {bucket} it can have {MAX_DAYS[bucket]} days.")
        return cls(start, end, bucket)

    @property
    def before(self) -> "Range":
        """Return the range of equal length before; if this one begins with a day, whole days earlier."""
        if self.start.time() == time():
            # At least one day: where midnight comes twice, the clock shows no time between the two.
            shift = max(-(-(self.end - self.start) // DAY), 1) * DAY
            return Range(self.start - shift, self.end - shift, self.bucket)
        start = self.start.astimezone(UTC)
        earlier = start - (self.end.astimezone(UTC) - start)
        return Range(earlier.astimezone(self.start.tzinfo), self.start, self.bucket)

    def compared(self, now: datetime) -> "tuple[Range, Range] | None":
        """Return the part whose hours are over, and as many hours before to compare it with.

        They are whole days earlier if the range begins with a day. None if no hour of the range is over.
        """
        end = min(self.end.astimezone(UTC), hour_of(now.astimezone(UTC)))
        part = replace(self, end=end.astimezone(self.end.tzinfo))
        if (counted := part.counted) is None:
            return None
        if self.start.time() != time():
            return part, counted.before
        # Shifted as far as the whole range: seven days are compared with the seven before, even when today
        # has no hour that is over.
        shift = self.start - self.before.start
        return part, replace(part, start=self.start - shift, end=part.end - shift)

    def after(self, part: "Range") -> "Range | None":
        """Return the rest of the range, behind this part of it; None if there is none."""
        rest = replace(self, start=part.end)
        return rest if rest.start.astimezone(UTC) < rest.end.astimezone(UTC) else None

    def in_utc_days(self, now: datetime) -> "Range":
        """Return the range widened to full UTC days; the current day ends with this hour."""
        start, end = self.start.astimezone(UTC), self.end.astimezone(UTC)
        midnight = end + (_EPOCH - end) % DAY
        first = start - (start - _EPOCH) % DAY
        return Range(first, max(end, min(midnight, _end_of_hour(now.astimezone(UTC)))), "day")

    @property
    def counted(self) -> "Range | None":
        """Return the range of the UTC hours that begin in it, which alone count; None if none does."""
        start, end = full_hour(self.start), full_hour(self.end)
        return Range(start, end, self.bucket) if start.astimezone(UTC) < end.astimezone(UTC) else None

    def fits(self, bucket: Bucket) -> bool:
        """Return whether the range is short enough for these buckets."""
        return self.end - self.start <= MAX_DAYS[bucket] * DAY

    @property
    def has_utc_days(self) -> bool:
        return self.bucket == "day" and not any(each.utcoffset() for each in self.starts())

    def starts(self) -> list[datetime]:
        """Return when each bucket begins: the first at `start`, the others on full hours or at midnight."""
        starts, start, end = [], self.start, self.end.astimezone(UTC)
        while start.astimezone(UTC) < end:
            starts.append(start)
            start = self._next(start)
        return starts

    def _next(self, start: datetime) -> datetime:
        if self.bucket == "hour":
            # Through UTC: twice a year, the zone's clock repeats or skips an hour.
            return _end_of_hour(start.astimezone(UTC)).astimezone(start.tzinfo)
        return datetime.combine(start.date() + DAY, time(), start.tzinfo)


def parse_range(query: Mapping[str, str], now: datetime) -> Range:
    """Parse a page's query; raises `ValueError` with a message for the reader.

    `days=7` (the default) is the last days including today. `start=` and `end=` are dates (`end` is included)
    or times such as `2026-11-21T13:00` (`end` is not). `bucket=hour|day` and `time_zone=Europe/Berlin` go
    with both. A range that has begun ends with this hour at the latest.
    """
    zone, bucket = _time_zone(query.get("time_zone") or "UTC"), _bucket(query.get("bucket") or None)
    if query.get("start") or query.get("end"):
        start = _moment("start", query.get("start", ""), zone)
        this_hour = _end_of_hour(now.astimezone(zone))
        end = _moment("end", query["end"], zone, is_end=True) if query.get("end") else this_hour
        # What is still to come has no usage, and would be compared with a time that has.
        goes_on = start.astimezone(UTC) < this_hour.astimezone(UTC) < end.astimezone(UTC)
        return Range.between(start, this_hour if goes_on else end, bucket)
    return Range.last(_days(query.get("days") or str(USUAL_DAYS)), now, zone.key, bucket)


def full_hour(moment: datetime) -> datetime:
    """Return the first full hour of UTC from the moment on, in the moment's zone."""
    utc = moment.astimezone(UTC)
    return (utc + (_EPOCH - utc) % HOUR).astimezone(moment.tzinfo)


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
    """Parse a time, or a date: its first moment, or for an end that of the next day."""
    with suppress(ValueError, OverflowError):
        if len(text) == len("2026-11-21"):
            moment = datetime.combine(date.fromisoformat(text) + is_end * DAY, time(), zone)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment.astimezone(zone) if moment.tzinfo else moment.replace(tzinfo=zone)
        if moment.year in _YEARS:
            return moment
    instead = f", not {text!r}" if text else ""
    raise ValueError(f"{name}: write a date such as 2026-11-21 or a time such as 2026-11-21T13:00{instead}.")
