"""The one door to the database: shared transactions, poisoned items, a database that is locked, and exact
admission.
"""

import asyncio
import select
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import Error, connection
from django.db.models import F

from accounts.models import APIKey
from tests import locked_database
from tests.usage.conftest import admit_by_two, limit
from usage.books import ledger
from usage.database import group_commit
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.database.sql import execute
from usage.errors import AlreadyResolved, BudgetExceeded, DatabaseUnavailable, is_unavailable
from usage.models import Budget, BudgetLimit, Generation
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
HELD = 50_000

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def commits() -> AsyncIterator[GroupCommit]:
    commits = GroupCommit()
    yield commits
    await commits.close()


@pytest.fixture
def impatient() -> Iterator[None]:
    """Limit waits for a lock to 0.3 s."""
    with locked_database.impatient():
        yield


@pytest.fixture
def own_pool() -> Iterator[None]:
    """Give the test a pool of its own, so that no other test is given one of its dead connections."""
    locked_database.connect_anew()
    yield
    locked_database.connect_anew()


def write_limits(now: datetime, items: Sequence[int]) -> list[int | AlreadyResolved]:
    """Write one row an item, with the size of its batch; -1 is refused, -3 is a bug."""
    if -3 in items:
        raise RuntimeError("a poisoned item")
    rows = [
        BudgetLimit(scope="key", scope_id=item, period="day", limit_nanodollars=len(items))
        for item in items
        if item >= 0
    ]
    BudgetLimit.objects.bulk_create(rows)
    return [AlreadyResolved("no") if item == -1 else item for item in items]


async def test_concurrent_writes_share_transactions(commits: GroupCommit) -> None:
    results = await asyncio.gather(*(commits.write(write_limits, number) for number in range(200)))
    assert results == list(range(200))
    sizes = await commits.read(lambda: list(BudgetLimit.objects.values_list("limit_nanodollars", flat=True)))
    assert len(sizes) == 200
    transactions = sum(1 / size for size in sizes if size)
    assert transactions < 20


async def test_a_write_alone_does_not_wait(commits: GroupCommit) -> None:
    for number in range(3):
        assert await commits.write(write_limits, number) == number


async def test_a_refused_item_is_its_own_error(commits: GroupCommit) -> None:
    results = await asyncio.gather(
        *(commits.write(write_limits, item) for item in (1, -1, 2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [int, AlreadyResolved, int]


async def test_a_poisoned_item_fails_alone(commits: GroupCommit) -> None:
    results = await asyncio.gather(
        *(commits.write(write_limits, item) for item in (1, 2, -3, 4)), return_exceptions=True
    )
    assert [type(result) for result in results] == [int, int, RuntimeError, int]
    assert await commits.read(lambda: sorted(BudgetLimit.objects.values_list("scope_id", flat=True))) == [
        1,
        2,
        4,
    ]


async def test_operations_of_several_kinds_run_in_one_order_in_all_processes(commits: GroupCommit) -> None:
    ran: list[str] = []

    def first(now: datetime, items: Sequence[None]) -> list[None]:
        ran.append("first")
        return list(items)

    def second(now: datetime, items: Sequence[None]) -> list[None]:
        ran.append("second")
        return list(items)

    async with held_up(commits):
        asked = [asyncio.ensure_future(commits.write(operation, None)) for operation in (second, first)]
        await asyncio.sleep(0)
    await asyncio.gather(*asked)
    assert ran == ["first", "second"]


async def test_operations_of_several_kinds_share_a_transaction_and_its_clock(commits: GroupCommit) -> None:
    def tell_time(now: datetime, items: Sequence[None]) -> list[datetime]:
        return [now for _ in items]

    def tell_time_too(now: datetime, items: Sequence[None]) -> list[datetime]:
        return [now for _ in items]

    async with held_up(commits):
        asked = [
            asyncio.ensure_future(commits.write(operation, None)) for operation in (tell_time, tell_time_too)
        ]
        await asyncio.sleep(0)
    first, second = await asyncio.gather(*asked)
    assert first == second
    assert abs((first - await commits.read(database_now)).total_seconds()) < 10


async def test_a_locked_database_is_unavailable_in_time_and_well_again_afterwards(
    impatient: None, commits: GroupCommit
) -> None:
    with locked_database.locked("usage_budgetlimit"):
        async with asyncio.timeout(5):
            with pytest.raises(DatabaseUnavailable):
                await commits.write(write_limits, 1)
    assert await commits.write(write_limits, 2) == 2
    assert await commits.read(lambda: list(BudgetLimit.objects.values_list("scope_id", flat=True))) == [2]


def test_a_wrong_statement_is_no_outage() -> None:
    with pytest.raises(Error) as found:
        execute("SELECT nothing FROM usage_generation", [])
    assert not is_unavailable(found.value)


def turn_read_only(now: datetime, items: Sequence[int]) -> list[int | AlreadyResolved]:
    """Make the server read-only, as a standby is."""
    execute("SET TRANSACTION READ ONLY")
    return write_limits(now, items)


def stand_still(now: datetime, items: Sequence[int]) -> list[int | AlreadyResolved]:
    """Stop this process in the middle of a transaction, until the server has ended it."""
    results = write_limits(now, items)
    execute("SET LOCAL idle_in_transaction_session_timeout = 1")
    said_goodbye, _, _ = select.select([connection.connection.fileno()], [], [], 10)
    assert said_goodbye
    return results


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite is no server")
@pytest.mark.parametrize("trouble", [turn_read_only, stand_still])
async def test_a_server_that_writes_nothing_or_gave_us_up_is_unavailable(
    trouble: Any, commits: GroupCommit
) -> None:
    results = await asyncio.gather(
        *(commits.write(trouble, number) for number in (1, 2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [DatabaseUnavailable, DatabaseUnavailable]
    assert await commits.write(write_limits, 3) == 3
    assert await commits.read(lambda: list(BudgetLimit.objects.values_list("scope_id", flat=True))) == [3]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite is no server")
@pytest.mark.usefixtures("own_pool")
async def test_a_restart_of_the_server_between_two_writes_fails_none(
    commits: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool then has more dead connections than the writer's own."""
    monkeypatch.setattr(group_commit, "IDLE_S", -1)

    def own_process(now: datetime, items: Sequence[None]) -> list[int]:
        return [connection.connection.info.backend_pid for _ in items]

    end([await commits.write(own_process, None), *await pooled()])
    assert await commits.write(write_limits, 1) == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite is no server")
@pytest.mark.usefixtures("own_pool")
async def test_a_restart_of_the_server_before_the_first_write_fails_none(commits: GroupCommit) -> None:
    """The writer has no connection yet, and those of its pool are dead."""
    end(await pooled())
    assert await commits.write(write_limits, 1) == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite is no server")
@pytest.mark.usefixtures("own_pool")
async def test_a_restart_of_the_server_between_two_writes_at_once_fails_one_at_most(
    commits: GroupCommit,
) -> None:
    """A connection that was used a moment ago is not checked; the one after a failure is."""

    def end_all(now: datetime, items: Sequence[list[int]]) -> list[None]:
        end([connection.connection.info.backend_pid, *items[0]])
        return [None for _ in items]

    others = await pooled()
    with pytest.raises(DatabaseUnavailable):
        await commits.write(end_all, others)
    assert await commits.write(write_limits, 1) == 1


async def pooled() -> list[int]:
    """Leave three connections in the pool, and return their processes."""

    def use_another() -> int:
        connection.ensure_connection()
        have_met.wait(10)
        process = connection.connection.info.backend_pid
        connection.close()
        return int(process)

    have_met = threading.Barrier(3)
    return list(await asyncio.gather(*(asyncio.to_thread(use_another) for _ in range(3))))


def end(processes: Sequence[int]) -> None:
    """End the server's processes of these connections."""
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT pg_terminate_backend(process, 5000) FROM unnest(%s) AS process", [processes])


async def test_a_waiter_that_is_cancelled_does_not_take_its_write_back(commits: GroupCommit) -> None:
    async with held_up(commits):
        writing = asyncio.ensure_future(commits.write(write_limits, 7))
        await asyncio.sleep(0)
        writing.cancel()
    assert await commits.write(write_limits, 8) == 8
    assert await commits.read(lambda: sorted(BudgetLimit.objects.values_list("scope_id", flat=True))) == [
        7,
        8,
    ]


async def test_closing_finishes_queued_operations() -> None:
    commits = GroupCommit()
    writing = [asyncio.ensure_future(commits.write(write_limits, number)) for number in range(20)]
    await asyncio.sleep(0)
    await commits.close()
    assert await asyncio.gather(*writing) == list(range(20))


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
async def test_a_deadlocked_batch_is_retried() -> None:
    have_met = threading.Barrier(2)

    def add_to_both(now: datetime, items: Sequence[tuple[int, int]]) -> list[None]:
        for number in items[0]:
            BudgetLimit.objects.filter(scope_id=number).update(limit_nanodollars=F("limit_nanodollars") + 1)
            with suppress(threading.BrokenBarrierError):
                have_met.wait(0.5)
        return [None]

    doors = [GroupCommit(), GroupCommit()]
    for number in (1, 2):
        await doors[0].write(write_limits, number)
    await asyncio.gather(doors[0].write(add_to_both, (1, 2)), doors[1].write(add_to_both, (2, 1)))
    assert await doors[0].read(
        lambda: set(BudgetLimit.objects.values_list("limit_nanodollars", flat=True))
    ) == {3}
    for door in doors:
        await door.close()


def test_several_processes_admit_exactly_as_many_as_fit(key: APIKey, ask: Ask) -> None:
    """Check I5, the first requests of a key included."""
    limit("key", key.pk, "month", 7 * HELD + 1)
    results = asyncio.run(admit_by_two([ask() for _ in range(50)]))
    assert len([result for result in results if isinstance(result, UUID)]) == 7
    assert len([result for result in results if isinstance(result, BudgetExceeded)]) == 43
    assert Generation.objects.count() == 7
    assert set(Budget.objects.values_list("posted_nanodollars", "pending_nanodollars")) == {(0, 7 * HELD)}
    assert verify().differences == []


@asynccontextmanager
async def held_up(commits: GroupCommit) -> AsyncIterator[None]:
    """Keep the writer busy inside the block, so that operations queue up."""
    is_busy, may_go_on = threading.Event(), threading.Event()

    def wait(now: datetime, items: Sequence[None]) -> list[None]:
        is_busy.set()
        may_go_on.wait(10)
        return list(items)

    waiting = asyncio.ensure_future(commits.write(wait, None))
    await asyncio.to_thread(is_busy.wait, 10)
    try:
        yield
    finally:
        may_go_on.set()
        await waiting
