"""What the reaper charges for a lost run, and that it takes no living run for a dead one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from chatapi.delta_stream import DeltaStream, Entry
from chatapi.redis_client import connect
from chatapi.wire import deltas
from chatapi.wire.deltas import Failed, Text
from chatapi.worker.reaper import Reaper
from tests.cast import Person, admit
from tests.chatapi.worker.processes import Valkey
from usage import ledger
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import Generation, Outcome

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
async def stream(valkey: Valkey) -> AsyncIterator[DeltaStream]:
    redis = connect(f"unix://{valkey.socket}")
    yield DeltaStream(redis, f"test-{uuid4().hex}:", ttl_ms=5_000)
    await redis.aclose()


class Commits(GroupCommit):
    """The real one, but the database can be away, or locked by somebody else."""

    is_away = False

    def __init__(self) -> None:
        super().__init__()
        self.unlocked, self.somebody_waits = asyncio.Event(), asyncio.Event()
        self.unlocked.set()

    async def write(self, *arguments: Any) -> Any:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.somebody_waits.set()
        await self.unlocked.wait()
        return await super().write(*arguments)


@pytest.fixture
async def commits() -> AsyncIterator[Commits]:
    commits = Commits()
    yield commits
    await commits.close()


@pytest.fixture
def run(alice: Person) -> ledger.Claimed:
    """A run whose lease lasts."""
    generation = admit(alice, max_output_tokens=5)
    (claimed,) = ledger.claim(database_now(), [ledger.Claim(generation.pk, "worker", 10_000)])
    assert isinstance(claimed, ledger.Claimed)
    return claimed


@pytest.fixture
def lost_run(run: ledger.Claimed) -> UUID:
    """A run whose lease has run out; its last heartbeat told of 3 tokens."""
    beat(run, lease_ms=-1)
    return run.id


def beat(run: ledger.Claimed, lease_ms: int) -> None:
    ledger.beat(database_now(), [ledger.Beat([ledger.Pulse(run.id, run.fence, 3)], lease_ms)])


async def outcome(commits: Commits, generation_id: UUID) -> tuple[str, int]:
    row = await commits.read(Generation.objects.get, pk=generation_id)
    return row.outcome, row.completion_tokens


@pytest.mark.parametrize(
    ("first_seq", "text", "charged"),
    [
        pytest.param(1, " the", 1, id="a whole log is what counts"),
        pytest.param(4, " the", 3, id="where its beginning is lost the heartbeat knows more"),
        pytest.param(1, " the of and to in is that", 5, id="never more than the cap"),
    ],
)
async def test_a_lost_run_is_charged_for_what_its_log_shows(
    commits: Commits, stream: DeltaStream, lost_run: UUID, first_seq: int, text: str, charged: int
) -> None:
    await stream.publish([Entry(lost_run, 1, first_seq, deltas.encode([Text(text)]))])
    assert await Reaper(commits, stream).reap() == 1
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, charged)
    *_, last = (await stream.seal(lost_run, 2)).deltas
    assert isinstance(last, Failed)
    assert last.code == "worker_lost"


async def test_after_a_time_without_database_the_living_may_beat_first(
    commits: Commits, stream: DeltaStream, lost_run: UUID, settings: Any
) -> None:
    settings.LEASE_MS = 400
    reaper = Reaper(commits, stream)
    commits.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await reaper.reap()
    commits.is_away = False
    assert await reaper.reap() == 0
    async with asyncio.timeout(10):
        while await reaper.reap() == 0:
            pass
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, 3)


async def test_what_runs_out_while_it_waits_for_a_lock_may_beat_first(
    commits: Commits, stream: DeltaStream, run: ledger.Claimed, settings: Any
) -> None:
    settings.LEASE_MS, settings.HEARTBEAT_MS = 400, 100
    reaper = Reaper(commits, stream)
    commits.unlocked.clear()
    reaping = asyncio.create_task(reaper.reap())
    await commits.somebody_waits.wait()
    await commits.read(beat, run, lease_ms=0)
    await asyncio.sleep(0.2)  # longer than a heartbeat, which has to wait as well
    commits.unlocked.set()
    assert await reaping == 0
    assert await reaper.reap() == 0
    async with asyncio.timeout(10):
        while await reaper.reap() == 0:
            pass
    assert await outcome(commits, run.id) == (Outcome.WORKER_LOST, 3)


async def test_one_that_waited_too_long_is_closed_even_without_redis(
    commits: Commits, alice: Person, tmp_path_factory: pytest.TempPathFactory
) -> None:
    generation = await commits.read(lambda: admit(alice, queue_ttl_ms=-1))
    nowhere = connect(f"unix://{tmp_path_factory.mktemp('empty')}/valkey.sock")
    await Reaper(commits, DeltaStream(nowhere, "", ttl_ms=5_000)).reap()
    assert await outcome(commits, generation.pk) == (Outcome.NOT_STARTED, 0)
    await nowhere.aclose()
