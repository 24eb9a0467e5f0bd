"""Requests in keyset pages: complete, in order, of the right owner, and without a scan of the table."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import end_users
from chatapi import identity
from tests.cast import Person, admit, run
from tests.usage.conftest import plan
from tests.usage.range_reads import first_token_ms
from usage.database.clock import database_now
from usage.insights import Filters, Range, RequestFilters, generation_list, requests_page
from usage.models import Generation, Outcome, State, UsageSource
from usage.pricing import Tokens

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
DAY = {"since": BEGIN, "until": BEGIN + timedelta(days=1)}


def at(person: Person, minute: int, **changes: Any) -> Generation:
    """Settle a generation that was admitted this many minutes after `BEGIN`, at one hundred nanodollars a
    minute.
    """
    admitted_at = BEGIN + timedelta(minutes=minute)
    then = UUID(int=int(admitted_at.timestamp() * 1_000) << 80 | identity.new_id().int & (1 << 80) - 1)
    row = admit(person, id=then)
    row.admitted_at, row.state, row.amount_nanodollars, row.first_token_ms = (
        admitted_at,
        State.SETTLED,
        100 * minute,
        10 * minute,
    )
    row.outcome, row.usage_source = Outcome.COMPLETED, UsageSource.UPSTREAM
    for name, value in changes.items():
        setattr(row, name, value)
    row.save()
    return row


def walk(filters: RequestFilters, limit: int = 2) -> list[UUID]:
    """Return the ids of all pages."""
    ids, cursor = [], None
    while True:
        page = requests_page(filters, cursor, limit)
        assert len(page.rows) <= limit
        ids += [row.id for row in page.rows]
        cursor = page.next_cursor
        if cursor is None:
            return ids


@pytest.mark.parametrize("owner", [None, "organization_id", "project_id", "api_key_id"])
def test_pages_have_every_request_once_newest_first(
    alice: Person, bob: Person, charlie: Person, owner: str | None
) -> None:
    # A batch is admitted at one moment: its requests differ by their ids only.
    mine = [at(alice, minute) for minute in (0, 1, 1, 1, 1, 2, 3)]
    others = [at(bob, 1), at(charlie, 2)]
    rows = mine if owner else [*mine, *others]
    rows += others[:1] if owner == "organization_id" else []
    filters = RequestFilters(**{owner: getattr(mine[0], owner)}) if owner else RequestFilters()
    assert walk(filters) == [
        row.id for row in sorted(rows, key=lambda row: (row.admitted_at, row.id), reverse=True)
    ]


def test_a_page_knows_whether_there_is_more(alice: Person) -> None:
    for minute in range(4):
        at(alice, minute)
    first = requests_page(RequestFilters(), limit=2)
    assert first.next_cursor is not None
    second = requests_page(RequestFilters(), first.next_cursor, limit=2)
    assert (len(second.rows), second.next_cursor, second.searched_until) == (2, None, None)


@pytest.mark.parametrize(
    ("filters", "minutes"),
    [
        ({"model": "other"}, [2]),
        ({"outcome": "failed"}, [1]),
        ({"dialect": "llama"}, [3]),
        ({"usage_source": "none"}, [1]),
        ({"outcome": "any_error"}, [3, 1]),
        ({"deployment": "spare"}, [2]),
        ({"time": "settled"}, [3, 2, 1, 0]),
        ({"time": "settled", "since": BEGIN + timedelta(hours=5)}, [3, 0]),
        ({"time": "settled", "until": BEGIN + timedelta(hours=5), "outcome": "any_error"}, [1]),
        ({"time": "settled", "since": BEGIN + timedelta(hours=1), "until": BEGIN + timedelta(hours=5)}, [1]),
        ({"since": BEGIN + timedelta(minutes=2)}, [3, 2]),
        ({"until": BEGIN + timedelta(minutes=2)}, [1, 0]),
        ({"min_nanodollars": 200}, [3, 2]),
        ({"max_nanodollars": 100}, [1, 0]),
        ({"min_nanodollars": 100, "max_nanodollars": 200, "model": "small"}, [1]),
    ],
)
@pytest.mark.parametrize("owner", [None, "organization_id", "api_key_id"])
def test_filters_leave_matching_rows(
    alice: Person, owner: str | None, filters: dict[str, Any], minutes: list[int]
) -> None:
    at(alice, 0, settled_at=BEGIN + timedelta(hours=5))
    at(alice, 1, outcome=Outcome.FAILED, usage_source=UsageSource.NONE, settled_at=BEGIN + timedelta(hours=1))
    at(alice, 2, model="other", deployment="spare")
    row = at(alice, 3, dialect="llama", outcome=Outcome.WORKER_LOST, settled_at=BEGIN + timedelta(hours=5))
    mine = {owner: getattr(row, owner)} if owner else {}
    found = requests_page(RequestFilters(**filters, **mine)).rows
    assert [(row.admitted_at - BEGIN) // timedelta(minutes=1) for row in found] == minutes


@pytest.mark.parametrize("owner", [None, "organization_id"])
@pytest.mark.parametrize("time", ["admitted", "settled"])
@pytest.mark.parametrize(
    "hours",
    [
        (datetime(2026, 10, 25, 0), datetime(2026, 10, 25, 1)),
        (datetime(2026, 3, 29, 1), datetime(2026, 3, 29, 2)),
    ],
)
def test_hours_of_the_night_when_clocks_change_have_their_requests(
    alice: Person, owner: str | None, time: Any, hours: tuple[datetime, datetime]
) -> None:
    since, until = (moment.replace(tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin")) for moment in hours)
    middle = hours[0].replace(tzinfo=UTC) + timedelta(minutes=30)
    row, *others = (
        at(
            alice,
            (moment - BEGIN) // timedelta(minutes=1),
            amount_nanodollars=1,
            first_token_ms=1,
            settled_at=moment,
        )
        for moment in (middle, middle - timedelta(hours=1), middle + timedelta(hours=1))
    )
    mine = {owner: getattr(row, owner)} if owner else {}
    assert requests_page(RequestFilters(time=time, since=since, until=until, **mine)).rows == [row], others


def test_one_request_is_found_by_its_id(alice: Person, charlie: Person) -> None:
    wanted = [at(alice, minute) for minute in range(3)][1]
    wish = RequestFilters(id=wanted.id)
    assert requests_page(wish).rows == [wanted]
    assert requests_page(replace(wish, organization_id=wanted.organization_id, outcome="completed")).rows == [
        wanted
    ]
    assert requests_page(replace(wish, outcome="failed")).rows == []
    assert requests_page(replace(wish, organization_id=charlie.project.organization_id)).rows == []


def test_an_owner_of_another_organization_has_nothing(alice: Person, charlie: Person) -> None:
    at(alice, 0)
    stranger = charlie.project.organization_id
    for filters in (
        Filters(stranger, alice.project.pk),
        Filters(stranger, api_key_id=alice.api_key.pk),
        Filters(project_id=-1),
    ):
        owners: dict[str, Any] = {
            "organization_id": filters.organization_id,
            "project_id": filters.project_id,
            "api_key_id": filters.api_key_id,
        }
        assert requests_page(RequestFilters(**owners)).rows == []
        assert first_token_ms(Range(BEGIN, BEGIN + timedelta(days=1), "day"), filters) is None


@pytest.mark.parametrize("owner", [None, "organization_id", "api_key_id"])
def test_a_search_stops_after_so_many_rows_and_is_continued(
    alice: Person, owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_list, "SEARCHED", 3)
    rare = [at(alice, minute, model="rare" if minute % 7 == 0 else "usual") for minute in range(15)][::7]
    filters = RequestFilters(model="rare", **({owner: getattr(rare[0], owner)} if owner else {}))
    first = requests_page(filters)
    assert ([row.id for row in first.rows], first.searched_until) == (
        [rare[2].id],
        BEGIN + timedelta(minutes=12),
    )
    assert walk(filters) == [row.id for row in reversed(rare)]


@pytest.mark.parametrize("owner", [None, "organization_id", "api_key_id"])
@pytest.mark.parametrize("searched", [2, 3, 4])
def test_a_search_that_stops_within_a_batch_goes_on_in_it(
    alice: Person, owner: str | None, searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_list, "SEARCHED", searched)
    rows = [at(alice, minute) for minute in (0, 1, 1, 1, 1, 1, 1, 2)]
    filters = RequestFilters(model="small", **({owner: getattr(rows[0], owner)} if owner else {}))
    newest_first = sorted(rows, key=lambda row: (row.admitted_at, row.id), reverse=True)
    assert walk(filters, limit=5) == [row.id for row in newest_first]


def test_a_full_page_of_a_search_looks_at_no_more_rows(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_list, "SEARCHED", 5)
    for minute in range(8):
        at(alice, minute)
    filters = RequestFilters(project_id=alice.project.pk, organization_id=alice.project.organization_id)
    with CaptureQueriesContext(connection) as queries:
        assert len(requests_page(filters, limit=4).rows) == 4
    assert not [query["sql"] for query in queries if "OFFSET" in query["sql"]]
    with CaptureQueriesContext(connection) as queries:
        assert len(requests_page(filters, limit=5).rows) == 5
    # How far back it has searched is read from the index alone.
    (end,) = [query["sql"] for query in queries if "OFFSET" in query["sql"]]
    assert '"id"' not in end
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_indexscan = off")  # for so few rows it is as good
    assert ("COVERING INDEX" if connection.vendor == "sqlite" else "Index Only Scan") in plan(end)


def test_requests_that_come_during_a_search_are_in_no_two_pages(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_list, "SEARCHED", 4)
    rows = [at(alice, minute) for minute in range(6)]
    count = generation_list._Scan.row_at

    def come(scan: Any, number: int) -> Any:
        if len(rows) < 8:
            rows.append(at(alice, len(rows)))
            rows.append(at(alice, len(rows)))
        return count(scan, number)

    monkeypatch.setattr(generation_list._Scan, "row_at", come)
    filters = RequestFilters(model=rows[0].model, organization_id=alice.project.organization_id)
    assert walk(filters, limit=10) == [row.id for row in reversed(rows[:6])]


@pytest.mark.parametrize(
    "cursor", ["0", "x-y", "1-" + "g" * 32, "f" * 15 + "-" + "0" * 32, "1-" + "0" * 32 + "\n"]
)
def test_an_invalid_cursor_is_refused(db: None, cursor: str) -> None:
    with pytest.raises(ValueError, match="after: "):
        requests_page(RequestFilters(), cursor)


@pytest.fixture
def plans(alice: Person) -> Iterator[list[str]]:
    """Yield the database's plans for the queries of generations in the block."""
    at(alice, 0)
    found: list[str] = []
    with CaptureQueriesContext(connection) as queries:
        yield found
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # a table this small would be read whole
        for query in queries:
            if "usage_generation" in query["sql"]:
                cursor.execute(
                    ("EXPLAIN " if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN ")
                    + query["sql"]
                )
                found += [str(row[-1]) for row in cursor.fetchall()]
    assert found
    for step in found:
        assert "Seq Scan on usage_generation" not in step
        assert step not in ("SCAN usage_generation", "USE TEMP B-TREE FOR ORDER BY"), found


@pytest.mark.parametrize("owner", [{}, {"organization_id": 1}, {"api_key_id": 1}, {"project_id": 1}])
@pytest.mark.parametrize(
    "wish", [{}, {"outcome": "failed"}, DAY, DAY | {"time": "settled"}, {"deployment": "spare"}]
)
def test_no_page_looks_through_all_requests(
    plans: list[str], alice: Person, owner: dict[str, int], wish: dict[str, Any]
) -> None:
    mine: dict[str, Any] = {
        "organization_id": alice.project.organization_id,
        "project_id": alice.project.pk,
        "api_key_id": alice.api_key.pk,
    }
    filters = RequestFilters(**{name: mine[name] for name in owner}, **wish)
    requests_page(filters)
    requests_page(filters, "64409bc5d2000-" + "f" * 32)
    first_token_ms(
        Range(BEGIN, BEGIN + timedelta(days=1), "day"), Filters(**{name: mine[name] for name in owner})
    )


# ---- time to first token


def percentiles(over: Range, filters: Filters | None = None) -> list[object]:
    """Return the 50th and the 95th percentile and the count, as exact as the buckets of times."""
    found = first_token_ms(over, filters)
    assert found is not None
    return [pytest.approx(found.p50, rel=0.045), pytest.approx(found.p95, rel=0.045), found.sample_size]


def test_percentiles_are_of_those_that_have_begun(alice: Person) -> None:
    for minute in range(1, 21):
        at(alice, minute)
    at(alice, 30, first_token_ms=None)
    assert percentiles(Range(BEGIN, BEGIN + timedelta(days=1), "day")) == [100, 190, 20]
    assert first_token_ms(Range(BEGIN + timedelta(hours=1), BEGIN + timedelta(days=1), "day")) is None


def test_percentiles_look_at_the_newest_only(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_list, "SAMPLE", 5)
    for minute in range(20):
        at(alice, minute, model="even" if minute % 2 == 0 else "odd")
    day = Range(BEGIN, BEGIN + timedelta(days=1), "day")
    assert percentiles(day) == [170, 190, 5]
    assert percentiles(day, Filters(model="even")) == [160, 180, 2]


def test_generations_of_the_ledger_are_found_by_their_time(alice: Person) -> None:
    run(alice, tokens=Tokens(10, 5))
    today = Range.last(1, database_now())
    found = requests_page(RequestFilters(since=today.start, until=today.end)).rows
    assert [(row.project.name, row.prompt_tokens) for row in found] == [("default", 10)]
    assert percentiles(today) == [40, 40, 1]


@pytest.mark.parametrize("is_of_one", [False, True])
def test_a_search_of_a_long_range_has_one_lower_bound(
    alice: Person, monkeypatch: pytest.MonkeyPatch, is_of_one: bool
) -> None:
    """Of two bounds of one column, SQLite may search its index by the one that excludes nothing."""
    monkeypatch.setattr(generation_list, "SEARCHED", 3)
    for minute in range(5):
        at(alice, minute)
    owner = alice.project.organization_id if is_of_one else None
    end = BEGIN + timedelta(days=1)
    with CaptureQueriesContext(connection) as queries:
        requests_page(RequestFilters(organization_id=owner, since=BEGIN, until=end, deployment="none"))
    column = "admitted_at" if is_of_one else "id"
    # The last statement reads the requests of one moment, or one request.
    bounds = [len(re.findall(rf'"{column}" >= \S+', query["sql"])) for query in queries.captured_queries[:-1]]
    assert bounds == [1, 1]


@pytest.mark.parametrize("owner", ["organization_id", "project_id", "api_key_id"])
def test_an_end_user_is_found_by_name_also_if_rows_have_its_digest(alice: Person, owner: str) -> None:
    row = at(alice, 1, end_user=end_users.digest("carol"))
    at(alice, 2, end_user=end_users.digest("dave"))
    filters = RequestFilters(**{owner: getattr(row, owner)}, end_user="carol")
    assert requests_page(filters).rows == [row]
