"""Ranges: which hours and days a report is about, in whose time zone, and what a query may ask for."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from usage.insights import Range, parse_range
from usage.pages.links import usual_ranges

WRITE = "write a date such as 2026-11-21 or a time such as 2026-11-21T13:00"
NOW = datetime(2026, 11, 21, 13, 25, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
LAST_HOUR = {"start": "2026-11-21T09:00"}
HALF_PAST = {"start": "2026-11-21T09:30"}
KOLKATA = {"days": "1", "time_zone": "Asia/Kolkata"}


def written(over: Range) -> str:
    """Return the range in UTC, its end with the hours since the midnight before its start."""
    start, end = over.start.astimezone(UTC), over.end.astimezone(UTC)
    midnight = start.replace(hour=0, minute=0)
    return f"{start:%Y-%m-%dT%H:%MZ} {(end - midnight) // timedelta(hours=1):02}:{end:%MZ}"


def test_today_begins_at_the_readers_midnight_and_ends_with_this_hour() -> None:
    today = Range.last(1, NOW, "Europe/Berlin")
    assert today.start == datetime(2026, 11, 20, 23, tzinfo=UTC)
    assert today.end == datetime(2026, 11, 21, 14, tzinfo=UTC)
    assert (today.bucket, len(today.starts())) == ("hour", 15)


def test_days_begin_at_midnight_also_where_the_clock_is_changed() -> None:
    starts = Range(
        datetime(2026, 10, 24, tzinfo=BERLIN), datetime(2026, 10, 27, tzinfo=BERLIN), "day"
    ).starts()
    assert [each.isoformat() for each in starts] == [
        "2026-10-24T00:00:00+02:00",
        "2026-10-25T00:00:00+02:00",
        "2026-10-26T00:00:00+01:00",
    ]


def test_the_hour_that_comes_twice_has_two_buckets() -> None:
    starts = Range(
        datetime(2026, 10, 25, tzinfo=BERLIN), datetime(2026, 10, 26, tzinfo=BERLIN), "hour"
    ).starts()
    assert len({each.astimezone(UTC) for each in starts}) == len(starts) == 25


@pytest.mark.parametrize(
    ("start", "end", "bars"),
    [
        ("2026-10-24T23:00Z", "2026-10-25T01:00Z", 2),
        ("2026-10-25T00:30Z", "2026-10-25T01:15Z", 2),
        ("2026-10-25T00:00Z", "2026-10-25T01:00Z", 1),
    ],
)
def test_a_range_may_end_on_the_clock_before_it_starts(start: str, end: str, bars: int) -> None:
    found = parse_range({"start": start, "end": end, "time_zone": "Europe/Berlin"}, NOW)
    assert len(found.starts()) == bars
    length = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    before = found.before
    assert before.end.astimezone(UTC) == found.start.astimezone(UTC)
    assert before.end.astimezone(UTC) - before.start.astimezone(UTC) == length


def test_a_range_that_ends_before_it_starts_is_refused_when_clocks_change_too() -> None:
    with pytest.raises(ValueError, match="must end after it starts"):
        parse_range(
            {"start": "2026-10-25T01:15Z", "end": "2026-10-25T00:30Z", "time_zone": "Europe/Berlin"}, NOW
        )


def test_days_of_more_hours_are_days_all_the_same() -> None:
    month = parse_range(
        {"start": "2026-10-01", "end": "2026-10-31", "bucket": "hour", "time_zone": "Europe/Berlin"}, NOW
    )
    assert len(month.starts()) == 31 * 24 + 1
    two_days = parse_range({"start": "2026-10-24", "end": "2026-10-25", "time_zone": "Europe/Berlin"}, NOW)
    assert (two_days.bucket, len(two_days.starts())) == ("hour", 49)
    assert two_days.before.start == datetime(2026, 10, 22, tzinfo=BERLIN)


def test_a_day_that_begins_twice_is_compared_with_the_day_before() -> None:
    found = parse_range(
        {"start": "2026-11-01T04:00Z", "end": "2026-11-01T05:00Z", "time_zone": "America/Havana"}, NOW
    )
    assert found.before.end.astimezone(UTC) < found.start.astimezone(UTC)


def test_days_are_compared_with_the_same_hours_of_the_days_before() -> None:
    week = Range.last(7, NOW)
    assert week.before.start == week.start - timedelta(days=7)
    assert week.before.end == week.end - timedelta(days=7)
    assert Range.last(1, NOW).before.end == datetime(2026, 11, 20, 14, tzinfo=UTC)


def test_hours_are_compared_with_the_hours_just_before() -> None:
    hours = Range(datetime(2026, 11, 21, 9, tzinfo=UTC), datetime(2026, 11, 21, 12, tzinfo=UTC), "hour")
    assert hours.before == Range(datetime(2026, 11, 21, 6, tzinfo=UTC), hours.start, "hour")


@pytest.mark.parametrize(
    ("time_zone", "now"),
    [
        ("Asia/Kolkata", "2026-11-21T04:40Z"),
        ("Asia/Kathmandu", "2026-11-21T04:10Z"),
        ("Europe/Berlin", "2026-03-29T01:10Z"),
        ("Europe/Berlin", "2026-10-25T00:10Z"),
        ("Europe/Berlin", "2026-10-25T01:10Z"),
    ],
)
def test_the_last_hour_begins_with_the_hour_of_utc_that_is_over(time_zone: str, now: str) -> None:
    moment = datetime.fromisoformat(now)
    query = usual_ranges(moment.astimezone(ZoneInfo(time_zone)))["Last hour"]
    found = parse_range({**query, "time_zone": time_zone}, moment)
    assert found.start.astimezone(UTC) == moment.replace(minute=0) - timedelta(hours=1)


def test_a_query_without_words_is_about_the_last_seven_days() -> None:
    assert parse_range({}, NOW) == Range.last(7, NOW)


@pytest.mark.parametrize(
    ("query", "now", "part", "before"),
    [
        (LAST_HOUR, "2026-11-21T10:05Z", "2026-11-21T09:00Z 10:00Z", "2026-11-21T08:00Z 09:00Z"),
        ({"days": "1"}, "2026-11-21T10:05Z", "2026-11-21T00:00Z 10:00Z", "2026-11-20T00:00Z 10:00Z"),
        # In the first hour of a day, a week's other days are compared with those of the week before.
        ({"days": "2"}, "2026-11-21T00:05Z", "2026-11-20T00:00Z 24:00Z", "2026-11-18T00:00Z 24:00Z"),
        # The day begins within an hour of UTC, which counts on the day before.
        (KOLKATA, "2026-11-21T04:05Z", "2026-11-20T18:30Z 28:00Z", "2026-11-19T18:30Z 28:00Z"),
        # One hour begins in this time, and one before it.
        (HALF_PAST, "2026-11-21T11:05Z", "2026-11-21T09:30Z 11:00Z", "2026-11-21T09:00Z 10:00Z"),
        # The same days, last ones and picked by hand.
        ({"days": "2"}, "2026-11-21T10:05Z", "2026-11-20T00:00Z 34:00Z", "2026-11-18T00:00Z 34:00Z"),
        ({"start": "2026-11-20", "end": "2026-11-21"}, "2026-11-21T10:05Z",
         "2026-11-20T00:00Z 34:00Z", "2026-11-18T00:00Z 34:00Z"),
        ({"start": "2026-11-19", "end": "2026-11-19"}, "2026-11-21T10:05Z",
         "2026-11-19T00:00Z 24:00Z", "2026-11-18T00:00Z 24:00Z"),
    ],
)  # fmt: skip
def test_hours_that_are_over_are_compared_with_as_many_before(
    query: dict[str, str], now: str, part: str, before: str
) -> None:
    moment = datetime.fromisoformat(now)
    found = parse_range(query, moment).compared(moment)
    assert found is not None
    assert [written(each) for each in found] == [part, before]


@pytest.mark.parametrize(
    ("query", "now"),
    [
        ({"days": "1"}, "2026-11-21T00:05Z"),
        (KOLKATA, "2026-11-20T19:35Z"),
        ({"start": "2026-11-23", "end": "2026-11-24"}, "2026-11-21T10:05Z"),
    ],
)
def test_without_an_hour_that_is_over_nothing_is_compared(query: dict[str, str], now: str) -> None:
    moment = datetime.fromisoformat(now)
    assert parse_range(query, moment).compared(moment) is None


def test_a_querys_dates_are_included() -> None:
    found = parse_range({"start": "2026-11-01", "end": "2026-11-03", "time_zone": "Europe/Berlin"}, NOW)
    assert (found.start, found.end) == (
        datetime(2026, 11, 1, tzinfo=BERLIN),
        datetime(2026, 11, 4, tzinfo=BERLIN),
    )
    assert (found.bucket, len(found.starts())) == ("day", 3)


def test_a_querys_times_are_taken_as_they_are() -> None:
    found = parse_range({"start": "2026-11-20T09:30", "end": "2026-11-20T12:00+02:00", "bucket": "hour"}, NOW)
    assert (found.start, found.end) == (
        datetime(2026, 11, 20, 9, 30, tzinfo=UTC),
        datetime(2026, 11, 20, 10, tzinfo=UTC),
    )
    assert parse_range({"start": "2026-11-20"}, NOW).end == datetime(2026, 11, 21, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({"days": "0"}, "days: '0' is not a number from 1 to 400."),
        ({"days": "٧"}, "days: '٧' is not"),
        ({"days": "9" * 5_000}, "days:"),
        ({"days": "32", "bucket": "hour"}, "too long: by the hour it can have 31 days"),
        ({"bucket": "minute"}, "bucket: 'minute' is neither"),
        ({"time_zone": "../../etc/passwd"}, "time_zone:"),
        ({"time_zone": "Mars/Olympus"}, "time_zone: 'Mars/Olympus' is not an IANA time zone"),
        ({"start": "yesterday"}, f"start: {WRITE}, not 'yesterday'"),
        ({"end": "2026-11-21"}, f"start: {WRITE}."),
        ({"start": "2026-11-21", "end": "9999-12-31"}, f"end: {WRITE}, not '9999-12-31'"),
        ({"start": "0999-12-31", "end": "2026-11-20"}, f"start: {WRITE}, not '0999-12-31'"),
        (
            {"start": "1000-01-01T00:00+05:00", "end": "2026-11-20"},
            f"start: {WRITE}, not '1000-01-01T00:00+05:00'",
        ),
        ({"start": "8999-12-31", "end": "8999-12-31"}, f"end: {WRITE}, not '8999-12-31'"),
        ({"start": "2026-11-21", "end": "2026-11-20"}, "must end after it starts"),
        ({"start": "2025-01-01", "end": "2026-11-20"}, "too long: by the day it can have 400 days"),
    ],
)
def test_an_invalid_query_is_explained(query: dict[str, str], shown: str) -> None:
    with pytest.raises(ValueError, match=re.escape(shown)):
        parse_range(query, NOW)
