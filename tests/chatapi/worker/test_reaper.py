"""What the reaper charges for a lost run, and that it takes no living run for a dead one."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from redis.asyncio import Redis

from chatapi.delta_stream import MAX_SEQ, Entry, Job, KeptRequest, StreamServers
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.wire import deltas, requests
from chatapi.wire.deltas import AnyDelta, Failed, Started, Text, Usage
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker.reaper import reaper as reaper_module
from chatapi.worker.reaper.reaper import Reaper
from tests.cast import Person, admit
from usage.books import ledger
from usage.database import clock
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import Generation, Kind, Outcome

pytestmark = pytest.mark.django_db(transaction=True)


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
    """Return a run whose lease lasts."""
    generation = admit(alice, max_output_tokens=5)
    (claimed,) = ledger.claim(database_now(), [ledger.Claim(generation.pk, "worker", 10_000)])
    assert isinstance(claimed, ledger.Claimed)
    return claimed


@pytest.fixture
def lost_run(run: ledger.Claimed) -> UUID:
    """Return a run whose lease has expired; its last heartbeat reported 3 tokens."""
    beat(run, lease_ms=-1)
    return run.id


def beat(run: ledger.Claimed, lease_ms: int) -> None:
    ledger.beat(database_now(), [ledger.Beat("worker", [ledger.Pulse(run.id, run.fence, 3, "")], lease_ms)])


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
    commits: Commits, stream: RedisStream, lost_run: UUID, first_seq: int, text: str, charged: int
) -> None:
    await stream.publish([Entry(lost_run, 1, first_seq, deltas.encode([Text(text)]))])
    assert await Reaper(commits, StreamServers([stream])).reap() == 1
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, charged)
    *_, last = (await stream.seal(lost_run, 2)).deltas
    assert isinstance(last, Failed)
    assert last.code == "worker_lost"


async def test_a_lost_run_whose_job_is_not_readable_is_closed(
    commits: Commits, stream: RedisStream, lost_run: UUID
) -> None:
    await stream.keep_again(KeptRequest(lost_run, Job("web", b'{"of": "another version"}')))
    await stream.publish([Entry(lost_run, 1, 1, deltas.encode([Text(" the")]))])
    assert await Reaper(commits, StreamServers([stream])).reap() == 1
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, 1)


async def lost(commits: Commits, stream: RedisStream, person: Person, prompt: str, *said: AnyDelta) -> UUID:
    """Return a run of this prompt that is lost after it has said this; its model's context has 20 tokens."""
    bounds = {"max_output_tokens": 5, "prompt_tokens_bound": 20, "max_prompt_tokens": 20}
    row = await commits.read(admit, person, **bounds)
    claimed = await commits.write(ledger.claim, ledger.Claim(row.pk, "worker", -1))
    body = json.dumps({"model": "small", "prompt": prompt}).encode()
    await stream.keep_again(KeptRequest(row.pk, Job("web", requests.to_bytes(parse_text(body)))))
    await stream.publish([Entry(row.pk, claimed.fence, 1, deltas.encode(said))])
    assert await Reaper(commits, StreamServers([stream])).reap() == 1
    return row.pk


async def test_a_lost_run_never_costs_more_than_was_held(
    commits: Commits, stream: RedisStream, alice: Person
) -> None:
    """Our tokenizer may find more tokens in a prompt than the model's context has."""
    run_id = await lost(commits, stream, alice, " the" * 100, Text(" the of to in is that"))
    row = await commits.read(Generation.objects.get, pk=run_id)
    assert (row.prompt_tokens, row.completion_tokens) == (20, 5)
    assert row.amount_nanodollars <= row.reserved_nanodollars
    assert [entry.kind for entry in await commits.read(list, row.ledger_entries.all())] == [Kind.CHARGE]


async def test_of_a_lost_run_the_upstream_has_counted_the_prompt(
    commits: Commits, stream: RedisStream, alice: Person
) -> None:
    run_id = await lost(
        commits, stream, alice, " the", Started(prompt_usage=Usage(17, 0, 3)), Text(" the of")
    )
    row = await commits.read(Generation.objects.get, pk=run_id)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (17, 3, 2)


ECHO = parse_text(b'{"model": "small", "prompt": " the of and to in is", "echo": true}')


@pytest.mark.parametrize(
    ("text", "charged", "amount_is_zero"),
    [
        pytest.param(" the of and", 0, True, id="a part of the prompt"),
        pytest.param(" the of and to in is", 0, True, id="the prompt"),
        pytest.param(" the of and to in is that for", 2, False, id="the prompt and two tokens"),
        pytest.param(" in is that", 3, False, id="no echo at all"),
    ],
)
async def test_an_echoed_prompt_is_no_output_of_a_lost_run(
    commits: Commits, stream: RedisStream, lost_run: UUID, text: str, charged: int, amount_is_zero: bool
) -> None:
    await stream.keep_again(KeptRequest(lost_run, Job("web", requests.to_bytes(ECHO))))
    await stream.publish([Entry(lost_run, 1, 1, deltas.encode([Text(text)]))])
    assert await Reaper(commits, StreamServers([stream])).reap() == 1
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, charged)
    row = await commits.read(Generation.objects.get, pk=lost_run)
    assert (row.prompt_tokens, row.amount_nanodollars == 0) == (6 if charged else 0, amount_is_zero)


async def test_an_echo_whose_beginning_is_lost_is_no_output_either(
    commits: Commits, stream: RedisStream, lost_run: UUID
) -> None:
    """The echo can't be compared with the prompt; the last heartbeat's count, which leaves it out, is
    charged.
    """
    await stream.keep_again(KeptRequest(lost_run, Job("web", requests.to_bytes(ECHO))))
    await stream.publish([Entry(lost_run, 1, 2, deltas.encode([Text(" and to in is that")]))])
    assert await Reaper(commits, StreamServers([stream])).reap() == 1
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, 3)


FROM_ANOTHER_VERSION = msgspec.msgpack.encode([[2, " the"], [99, "a kind of delta that we do not know"]])


async def test_a_lost_run_whose_log_is_not_readable_is_closed(
    commits: Commits, stream: RedisStream, lost_run: UUID
) -> None:
    """The last heartbeat's count is charged, and readers of the log get its end."""
    await stream.publish(
        [Entry(lost_run, 1, 1, deltas.encode([Text(" the")])), Entry(lost_run, 1, 2, FROM_ANOTHER_VERSION)]
    )
    assert await Reaper(commits, StreamServers([stream])).reap() == 1
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, 3)
    name, ([end], seq) = await stream.tail(lost_run, b"1-2", 3)
    assert (name, seq) == (b"2-%d" % MAX_SEQ, MAX_SEQ)
    assert isinstance(end, Failed)


async def test_a_job_that_is_not_readable_keeps_no_other_from_its_own(
    redis: Redis, stream: RedisStream
) -> None:
    known, unknown = uuid4(), uuid4()
    await stream.keep_again(KeptRequest(known, Job("web", b"{}")))
    await redis.set(stream.key("job", unknown.hex), b"from another version")
    assert await stream.jobs([unknown, known]) == [(None, None), (Job("web", b"{}"), None)]


async def test_after_a_time_without_database_the_living_may_beat_first(
    commits: Commits, stream: RedisStream, lost_run: UUID, settings: Any
) -> None:
    settings.LEASE_MS = 400
    reaper = Reaper(commits, StreamServers([stream]))
    commits.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await reaper.reap()
    commits.is_away = False
    assert await reaper.reap() == 0
    async with asyncio.timeout(10):
        while await reaper.reap() == 0:
            pass
    assert await outcome(commits, lost_run) == (Outcome.WORKER_LOST, 3)


async def test_when_the_clock_has_leapt_the_living_may_beat_first(
    commits: Commits, stream: RedisStream, run: ledger.Claimed, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """The machine has slept, and its workers with it: none of them is dead."""
    reaper = Reaper(commits, StreamServers([stream]))
    assert await reaper.reap() == 0

    def later() -> datetime:
        return database_now() + timedelta(hours=1)

    monkeypatch.setattr(reaper_module, "database_now", later)
    monkeypatch.setattr(clock, "begin", later)
    assert await reaper.reap() == 0
    settings.LEASE_MS = 400
    pulse = ledger.Pulse(run.id, run.fence, 3, "")
    assert await commits.write(ledger.beat, ledger.Beat("worker", [pulse], 300)) == {run.id}
    async with asyncio.timeout(10):
        while await reaper.reap() == 0:
            pass
    assert await outcome(commits, run.id) == (Outcome.WORKER_LOST, 3)


async def test_what_runs_out_while_it_waits_for_a_lock_may_beat_first(
    commits: Commits, stream: RedisStream, run: ledger.Claimed, settings: Any
) -> None:
    settings.LEASE_MS, settings.HEARTBEAT_MS = 400, 100
    reaper = Reaper(commits, StreamServers([stream]))
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
    url = f"unix://{tmp_path_factory.mktemp('empty')}/valkey.sock"
    nowhere = connect(url)
    stream = RedisStream(nowhere, "", url=url, ttl_ms=5_000)
    await Reaper(commits, StreamServers([stream])).reap()
    assert await outcome(commits, generation.pk) == (Outcome.NOT_STARTED, 0)
    await nowhere.aclose()


async def test_a_worker_that_must_end_while_it_settles_answers_its_client(
    commits: Commits, stream: RedisStream, lost_run: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_settled, may_answer, write = asyncio.Event(), asyncio.Event(), commits.write

    async def write_slowly(operation: Any, item: Any) -> Any:
        result = await write(operation, item)
        if operation is ledger.settle:
            is_settled.set()
            await may_answer.wait()
        return result

    monkeypatch.setattr(commits, "write", write_slowly)
    reaper = Reaper(commits, StreamServers([stream]))
    reaping = asyncio.create_task(reaper.reap())
    await is_settled.wait()
    reaping.cancel()
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await reaping
    assert [type(delta) for delta in (await stream.seal(lost_run, 3)).deltas] == [Failed]
