"""How an answer ends whose end does not come from Redis: the books tell it, and never a good end behind a
text that may lack something.
"""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from chatapi import identity
from chatapi.delta_stream import Entry, Job, KeptRequest, StreamServers, StreamUnavailable
from chatapi.fair_turns import FairTurns
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.web import relay as module
from chatapi.web.following import silence
from chatapi.web.following.inbox import Inbox
from chatapi.web.following.silence import Silence
from chatapi.web.relay import LOST, relay
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Finished, Started, Text, Usage
from tests.cast import Person, run
from tests.chatapi.worker.processes import Valkey
from usage.database.group_commit import GroupCommit
from usage.models import Generation

pytestmark = pytest.mark.django_db(transaction=True)

TOLD: list[AnyDelta] = [Started(), Text("hello"), Text(" world")]
GOOD_END: list[AnyDelta] = [Finished("stop"), Usage(1_000, 200, 400)]


class Stream(RedisStream):
    """The usual one, and whether anyone has asked for a job."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.was_asked = asyncio.Event()

    async def has_job(self, generation_id: UUID) -> bool:
        """Note that the relay has asked."""
        found = await super().has_job(generation_id)
        self.was_asked.set()
        return found


@pytest.fixture
async def services(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Yield the services of a relay, with a silent inbox and books that are asked at once."""
    monkeypatch.setattr(silence, "SILENT_S", 0.0)
    monkeypatch.setattr(silence, "LOOK_S", 0.01)
    redis, commits = connect(f"unix://{valkey.socket}"), GroupCommit()
    stream = Stream(redis, "test:", url=f"unix://{valkey.socket}", ttl_ms=5_000)
    inbox = Inbox(stream, "web", turns=FairTurns(), tick_s=0.01)
    await inbox.start()
    streams = StreamServers([stream])
    watching = Silence(commits, streams)
    asking = asyncio.create_task(watching.ask_books())
    yield SimpleNamespace(
        stream=stream,
        streams=streams,
        inbox=inbox,
        commits=commits,
        silence=watching,
        is_closing=False,
    )
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await inbox.stop()
    await commits.close()
    await redis.aclose()


async def heard(services: Any, generation_id: UUID) -> list[AnyDelta]:
    """Return the frames that the client of that generation gets."""
    follower = services.inbox.follow(generation_id, 1)
    return [delta async for batch in relay(services, follower, 0) for delta in batch]


@pytest.fixture
async def settled(services: Any, alice: Person) -> UUID:
    """Return a completed generation of the books."""
    row = await services.commits.read(run, alice)
    return UUID(str(row.pk))


async def test_it_pings_at_the_last_tick_before_the_silence_would_be_too_long(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 60.0)
    follower, looked = services.inbox.follow(identity.new_id(), 1), 0
    look = follower.next

    async def counted() -> list[AnyDelta]:
        nonlocal looked
        looked += 1
        return await look()  # type: ignore[no-any-return]

    monkeypatch.setattr(follower, "next", counted)
    pings = relay(services, follower, int(1_500 * services.inbox.tick_s))
    assert [await anext(pings) for _ in range(5)] == [[]] * 5
    assert looked <= 6, "the first tick may come early; at every other one it has to ping"


async def test_missing_deltas_come_when_valkey_answers_again(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENT_S", 60.0)
    tail, failures = services.stream.tail, [StreamUnavailable("away")] * 3

    async def unreliable(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await tail(*arguments, **named)

    monkeypatch.setattr(services.stream, "tail", unreliable)
    follower = services.inbox.follow(identity.new_id(), 1)
    await services.stream.publish([Entry(follower.id, 1, 1, deltas.encode(TOLD))])
    await services.stream.publish([Entry(follower.id, 1, 4, deltas.encode(GOOD_END), "web", is_last=True)])
    assert [delta async for batch in relay(services, follower, 0) for delta in batch] == [*TOLD, *GOOD_END]
    assert not failures


async def test_the_row_has_an_end_that_was_never_published(services: Any, settled: UUID) -> None:
    row = await services.commits.read(Generation.objects.get, pk=settled)
    await services.stream.publish([Entry(settled, 1, 1, deltas.encode(TOLD))])
    usage = Usage(1_000, 200, 400, completed_at=int(row.settled_at.timestamp()))
    assert await heard(services, settled) == [*TOLD, Finished("stop"), usage]


async def test_an_end_that_is_in_the_log_is_sent_once(services: Any, settled: UUID) -> None:
    await services.stream.publish([Entry(settled, 1, 1, deltas.encode([*TOLD, *GOOD_END]), is_last=True)])
    assert await heard(services, settled) == [*TOLD, *GOOD_END]


async def test_an_end_that_is_about_to_be_published_is_waited_for(services: Any, settled: UUID) -> None:
    """The worker has just settled the generation: the row is final, the log is still empty, and the job still
    exists.
    """
    await services.stream.keep_again(KeptRequest(settled, Job("web", b"{}")))
    hearing = asyncio.create_task(heard(services, settled))
    await services.stream.was_asked.wait()
    await services.stream.publish([Entry(settled, 1, 1, deltas.encode(GOOD_END), is_last=True)])
    assert await hearing == GOOD_END


async def test_an_end_that_nobody_lives_to_tell_is_not_waited_for_long(
    services: Any, settled: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISHING_MS", 100)
    await services.stream.keep_again(KeptRequest(settled, Job("web", b"{}")))
    assert await heard(services, settled) == [LOST]


async def test_a_good_end_never_follows_a_log_that_is_gone(services: Any, settled: UUID) -> None:
    assert await heard(services, settled) == [LOST]


async def test_a_good_end_never_follows_a_log_that_lost_its_beginning(services: Any, settled: UUID) -> None:
    await services.stream.publish([Entry(settled, 1, 4, deltas.encode([Text("!")]))])
    assert await heard(services, settled) == [LOST]
