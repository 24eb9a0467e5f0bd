"""A web process looks up a generation whose client has received nothing for some time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

import pytest

from chatapi import identity
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.web.following import silence
from chatapi.web.following.silence import MISSING_S, MISSING_UNREAD_S, Finding, MissingWorkers, Silence, Watch
from tests.cast import Person, admit, run
from tests.chatapi.worker.processes import Valkey
from usage.books import ledger
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import Generation

pytestmark = pytest.mark.django_db(transaction=True)

P = ParamSpec("P")
Result = TypeVar("Result")


class Books(GroupCommit):
    """The books, which can be away or too slow."""

    is_away = False
    is_slow = False

    async def read(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Read the row, or raise `DatabaseUnavailable`."""
        if self.is_slow:
            await asyncio.Event().wait()
        if self.is_away:
            raise DatabaseUnavailable("away")
        return await super().read(function, *args, **kwargs)


@pytest.fixture
async def books(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Books]:
    monkeypatch.setattr(silence, "SILENT_S", 0.0)
    monkeypatch.setattr(silence, "READ_S", 0.5)
    books = Books()
    yield books
    await books.close()


class Looker(Silence):
    """Looks when the test says so."""

    def __init__(self, books: Books, missing: dict[str, float], none_connected_s: float = 0.0) -> None:
        super().__init__(books, streams=None)  # type: ignore[arg-type]  # its answers are given here
        self._workers._missing_s, self._workers.none_connected_s = missing, none_connected_s

    async def found(self, watch: Watch) -> Finding | None:
        await self.look()
        return watch.take()


def claimed(alice: Person, overdue: timedelta, worker: str = "dead") -> Generation:
    """Return a claimed generation whose lease ended this long ago."""
    row = admit(alice)
    (held,) = ledger.claim(database_now(), [ledger.Claim(row.pk, worker, 0)])
    assert isinstance(held, ledger.Claimed)
    Generation.objects.filter(pk=row.pk).update(lease_expires_at=database_now() - overdue)
    return row


SECOND = timedelta(seconds=1)


async def test_a_queued_request_waits_on(books: Books, alice: Person) -> None:
    looker, row = Looker(books, {}), await books.read(admit, alice)
    assert await looker.found(looker.watch(row.pk)) is None


async def test_what_is_over_in_the_queue_and_closed_by_nobody_has_expired(
    books: Books, alice: Person
) -> None:
    looker, row = Looker(books, {}), await books.read(admit, alice)
    late = await books.read(
        lambda: Generation.objects.filter(pk=row.pk).update(lease_expires_at=database_now() - 60 * SECOND)
    )
    assert late == 1
    assert await looker.found(looker.watch(row.pk)) is Finding.EXPIRED


async def test_a_settled_generation_is_reported(books: Books, alice: Person) -> None:
    looker, row = Looker(books, {}), await books.read(run, alice)
    assert await looker.found(looker.watch(row.pk)) is Finding.SETTLED


async def test_a_missing_row_is_reported(books: Books) -> None:
    looker = Looker(books, {})
    assert await looker.found(looker.watch(identity.new_id())) is Finding.NO_ROW


@pytest.mark.parametrize(
    ("overdue", "missing_s", "finding"),
    [
        (SECOND, MISSING_S, Finding.WORKER_LOST),
        (SECOND, 0.0, None),  # late, but there: the database may have been locked
        (-SECOND, MISSING_S, None),  # its lease holds: it may have lost its connection, and not its life
    ],
)
async def test_a_worker_is_dead_when_its_lease_and_its_connection_are_over(
    books: Books, alice: Person, overdue: timedelta, missing_s: float, finding: Finding | None
) -> None:
    looker, row = Looker(books, {"dead": missing_s}), await books.read(claimed, alice, overdue)
    assert await looker.found(looker.watch(row.pk)) is finding


async def test_what_the_reaper_has_taken_over_and_can_not_close_is_lost(books: Books, alice: Person) -> None:
    looker, row = Looker(books, {}), await books.read(claimed, alice, SECOND)
    await books.write(ledger.take_over, ledger.TakeOver(10, 6_000, database_now()))
    watch = looker.watch(row.pk)
    assert [await looker.found(watch), await looker.found(watch)] == [None, Finding.WORKER_LOST]


@pytest.mark.parametrize("trouble", ["is_away", "is_slow"])
async def test_without_the_database_a_dead_workers_connection_has_to_do(
    books: Books, alice: Person, trouble: str
) -> None:
    looker, row = Looker(books, {"dead": MISSING_S}), await books.read(claimed, alice, -SECOND)
    watch, other = looker.watch(row.pk), looker.watch(identity.new_id())
    assert await looker.found(watch) is None
    other.take()
    setattr(books, trouble, True)
    assert await looker.found(watch) is None
    looker._workers._missing_s["dead"] = MISSING_UNREAD_S
    assert await looker.found(watch) is Finding.WORKER_LOST
    assert other.take() is None, "some worker may have claimed it, and live"
    looker._workers.none_connected_s = MISSING_UNREAD_S
    assert await looker.found(other) is Finding.UNKNOWN


async def test_a_follower_that_gets_deltas_is_not_asked_about(
    books: Books, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker, row = Looker(books, {}), await books.read(run, alice)
    watch = looker.watch(row.pk)
    monkeypatch.setattr(silence, "SILENT_S", 60.0)
    assert await looker.found(watch) is None


# ---- missing workers


def test_time_counts_only_as_often_as_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    workers = MissingWorkers()
    workers.look({"worker", "other"})
    now += 1
    workers.look({"other"})
    assert (workers.missing_s("worker"), workers.missing_s("other"), workers.none_connected_s) == (1, 0, 0)
    now += 100  # a late event loop
    workers.look(set())
    assert (workers.missing_s("worker"), workers.none_connected_s) == (3, 2)
    workers.look({"worker"})
    assert (workers.missing_s("worker"), workers.none_connected_s) == (0, 0)


def test_workers_that_never_said_that_they_are_there_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    workers = MissingWorkers()
    now += 1
    workers.look(set())
    assert workers.none_connected_s == 0


async def test_a_worker_is_connected_while_it_listens(valkey: Valkey) -> None:
    url = f"unix://{valkey.socket}"
    redis = connect(url)
    stream = RedisStream(redis, "test:", url=url, ttl_ms=5_000)
    listening = asyncio.ensure_future(anext(stream.cancellations("host:1")))
    async with asyncio.timeout(10):
        while await stream.connected_workers() != {"host:1"}:
            await asyncio.sleep(0.01)
        listening.cancel()
        while await stream.connected_workers():
            await asyncio.sleep(0.01)
    await redis.aclose()
