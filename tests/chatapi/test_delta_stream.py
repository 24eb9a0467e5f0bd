"""The delta stream over a real Valkey: order, gaps, repeats, fences, and a server that dies."""

import asyncio
import re
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import msgspec
import pytest
from pytest_django.fixtures import Settings
from redis.asyncio import Redis

from accounts import redis_time_limit
from chatapi import delta_stream, identity
from chatapi.checks.numbers import WEEK_MS
from chatapi.delta_stream import (
    Cancellation,
    DeltaStream,
    Entry,
    Frame,
    Job,
    KeptRequest,
    Rest,
    Signs,
    StreamLost,
    StreamUnavailable,
)
from chatapi.fair_turns import ITERATION_UNITS, FairTurns
from chatapi.models import MAX_TIMEOUT_MS
from chatapi.redis_client import connect
from chatapi.redis_servers import stream_servers
from chatapi.transports.redis_stream import RedisPresence, RedisStream
from chatapi.transports.redis_stream import stream as stream_module
from chatapi.web.following import follower as module
from chatapi.web.following import log_feed
from chatapi.web.following.follower import PART_FRAMES, Follower
from chatapi.web.following.inbox import Inbox
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed, Text, Usage
from tests.chaos_proxy import Blackhole, ChaosProxy, Stall
from tests.chatapi.worker.processes import Valkey

TTL_MS = 5_000
# Less than a test waits for anything.
SHORT_MS = 300
END = Usage(1, 2)


def test_the_package_names_each_method_and_its_callers() -> None:
    table = (delta_stream.__doc__ or "").partition("of it:\n\n")[2].partition("\n\n")[0]
    methods = {name for name in vars(DeltaStream) if not name.startswith("_")}
    assert set(re.findall(r"[a-z_]+(?=,|$)", table, re.MULTILINE)) == methods


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    name = "valkey" if "valkey" in request.fixturenames else "shared_valkey"
    return f"unix://{request.getfixturevalue(name).socket}"


@pytest.fixture
async def redis(url: str) -> AsyncIterator[Redis]:
    redis = connect(url)
    yield redis
    await redis.aclose()


@pytest.fixture
def stream(redis: Redis, url: str) -> RedisStream:
    return RedisStream(redis, f"test-{uuid4().hex}:", url=url, ttl_ms=TTL_MS)


@pytest.fixture
async def inbox(stream: DeltaStream, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Inbox]:
    inbox = Inbox(stream, "web", turns=FairTurns(), tick_s=0.5)
    await inbox.start()
    yield inbox
    await inbox.stop()
    # Where a loop that fails is logged, and started again.
    assert not [each for each in caplog.get_records("call") if each.name == "chatapi.concurrency"]


@pytest.fixture
async def slow_follower(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> Follower:
    """Return a follower that may keep hardly anything waiting."""
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 20)
    return inbox.follow(identity.new_id(), 1)


def texts(first: int, last: int) -> list[AnyDelta]:
    return [Text(f"{number} ") for number in range(first, last + 1)]


def entry(
    generation_id: UUID, first_seq: int, batch: list[AnyDelta], *, fence: int = 1, inbox: str = "web"
) -> Entry:
    return Entry(
        generation_id, fence, first_seq, deltas.encode(batch), inbox, is_last=isinstance(batch[-1], TERMINAL)
    )


async def to_the_end(follower: Follower) -> list[AnyDelta]:
    """Return all deltas of the follower."""
    return [delta for part in await parts_to_the_end(follower) for delta in part]


async def parts_to_the_end(follower: Follower) -> list[list[AnyDelta]]:
    """Return all batches of the follower."""
    parts: list[list[AnyDelta]] = [[]]
    async with asyncio.timeout(10):
        while not (parts[-1] and isinstance(parts[-1][-1], TERMINAL)):
            parts.append(await follower.next())
    return parts[1:]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def short_lived(redis: Redis, url: str) -> RedisStream:
    """Return a stream whose logs expire soon after their generation's end."""
    return RedisStream(redis, f"test-{uuid4().hex}:", url=url, ttl_ms=SHORT_MS)


async def is_gone(stream: DeltaStream, generation_id: UUID) -> bool:
    return not await stream.has_log(generation_id)


async def inbox_entries(stream: DeltaStream, name: str) -> int:
    """Return how many entries wait in the inbox."""
    return len(await stream.read_inbox(name, after=b"", block_ms=1))


async def expires_in_ms(redis: Redis, stream: RedisStream, kind: str, name: str) -> int:
    """Return how long Redis keeps a key. This is the promise itself, and a day is too long to await it."""
    return int(await redis.pttl(stream.key(kind, name)))


async def test_deltas_come_in_order(stream: DeltaStream, inbox: Inbox) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    for seq in range(1, 30):
        await stream.publish([entry(follower.id, seq, texts(seq, seq))])
    await stream.publish([entry(follower.id, 30, [END])])
    assert await to_the_end(follower) == [*texts(1, 29), END]


async def test_what_was_published_together_comes_together(stream: DeltaStream, inbox: Inbox) -> None:
    one, other = inbox.follow(identity.new_id(), 1), inbox.follow(identity.new_id(), 1)
    batches = [entry(one.id, 1, texts(1, 2)), entry(other.id, 1, texts(7, 7)), entry(one.id, 3, texts(3, 4))]
    assert await stream.publish(batches) == set()
    assert await one.next() == texts(1, 4)
    assert await other.next() == texts(7, 7)


async def test_a_backlog_comes_in_parts_between_which_others_have_their_turn(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 1 << 20)
    follower = inbox.follow(identity.new_id(), 1)
    for seq in range(1, 2_000):
        follower.feed(Frame(b"", seq, deltas.encode(texts(seq, seq))))
    follower.feed(Frame(b"", 2_000, deltas.encode([END])))
    turns = asyncio.create_task(count_turns())
    parts = await parts_to_the_end(follower)
    turns.cancel()
    assert [delta for part in parts for delta in part] == [*texts(1, 1_999), END]
    assert max(map(len, parts)) <= PART_FRAMES
    assert await turns >= 2_000 // ITERATION_UNITS


async def count_turns() -> int:
    """Count the turns of another task until it is cancelled."""
    turns = 0
    with suppress(asyncio.CancelledError):
        while True:
            turns += 1
            await asyncio.sleep(0)
    return turns


async def test_what_is_too_much_to_wait_here_comes_from_the_log_with_its_end(
    stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 1_000)
    follower = inbox.follow(identity.new_id(), 1)
    entries = [entry(follower.id, seq, texts(seq, seq), inbox="") for seq in range(1, 1_000)]
    entries.append(entry(follower.id, 1_000, [END], inbox=""))
    await stream.publish(entries)
    for each in entries:  # and nothing comes after the end
        follower.feed(Frame(b"", each.first_seq, each.batch))
    parts = await parts_to_the_end(follower)
    assert [delta for part in parts for delta in part] == [*texts(1, 999), END]
    assert max(map(len, parts)) <= PART_FRAMES


async def test_small_deltas_that_wait_here_take_little_memory(inbox: Inbox) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    data = deltas.encode([Text("a")])
    tracemalloc.start()
    try:
        for seq in range(1, 2_001):
            follower.feed(Frame(bytes(bytearray(32)), seq, bytes(bytearray(data))))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * module.MOST_WAITING_BYTES


async def test_a_follower_that_has_caught_up_with_the_log_follows_the_inbox_again(
    stream: DeltaStream, slow_follower: Follower
) -> None:
    for seq in range(1, 10):
        await stream.publish([entry(slow_follower.id, seq, texts(seq, seq), inbox="")])
        slow_follower.feed(Frame(b"", seq, deltas.encode(texts(seq, seq))))
    found: list[AnyDelta] = []
    while len(found) < 9:
        found += await slow_follower.next()
    assert found == texts(1, 9)
    assert await slow_follower.next() == []
    await stream.delete(slow_follower.id, has_ended=True)
    slow_follower.feed(Frame(b"", 10, deltas.encode(texts(10, 10))))
    assert await slow_follower.next() == texts(10, 10)


async def test_what_was_too_much_and_is_lost_in_the_log_is_an_error(
    stream: DeltaStream, slow_follower: Follower
) -> None:
    for seq in range(1, 10):
        slow_follower.feed(Frame(b"", seq, deltas.encode(texts(seq, seq))))
    await stream.publish([entry(slow_follower.id, 5, texts(5, 9), inbox="")])
    with pytest.raises(StreamLost):
        await slow_follower.next()


async def test_silence_is_an_empty_batch(inbox: Inbox) -> None:
    assert await inbox.follow(identity.new_id(), 1).next() == []


async def test_what_the_inbox_has_missed_comes_from_the_log(stream: DeltaStream, inbox: Inbox) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    await stream.publish([entry(follower.id, 1, texts(1, 2))])
    await stream.publish([entry(follower.id, 3, texts(3, 4), inbox="")])
    await stream.publish([entry(follower.id, 5, [END])])
    assert await to_the_end(follower) == [*texts(1, 4), END]


async def test_missing_deltas_are_read_from_where_the_inbox_broke_off(
    stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, tail, read_after = inbox.follow(identity.new_id(), 1), stream.tail, []

    async def recording(
        generation_id: UUID, after: bytes, seq: int, *, most_entries: int
    ) -> tuple[bytes, Rest]:
        read_after.append(after)
        return await tail(generation_id, after, seq, most_entries=most_entries)

    monkeypatch.setattr(stream, "tail", recording)
    for seq in range(1, 9):
        await stream.publish([entry(follower.id, seq, texts(seq, seq), inbox="" if 4 <= seq < 7 else "web")])
    await stream.publish([entry(follower.id, 9, [END])])
    assert await to_the_end(follower) == [*texts(1, 8), END]
    assert read_after[0] == b"1-3"


async def test_what_the_log_has_lost_too_is_an_error_and_never_a_gap(
    stream: DeltaStream, inbox: Inbox
) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    await stream.publish([entry(follower.id, 1, texts(1, 2))])
    assert await follower.next() == texts(1, 2)
    await stream.delete(follower.id, has_ended=True)
    await stream.publish([entry(follower.id, 5, texts(5, 6))])
    with pytest.raises(StreamLost):
        await follower.next()
    with pytest.raises(StreamLost):
        await stream.replay(uuid4(), 3)


async def test_a_failure_behind_lost_deltas_is_handed_out_once(stream: DeltaStream, inbox: Inbox) -> None:
    follower, lost = inbox.follow(identity.new_id(), 1), Failed("lost")
    batches: dict[int, list[AnyDelta]] = {1: texts(1, 1), 2: texts(2, 2), 3: texts(3, 3), 9: [lost]}
    await stream.publish(
        [entry(follower.id, first_seq, batch, inbox="") for first_seq, batch in batches.items()]
    )
    for first_seq in (1, 3, 9):  # the inbox has missed the second
        follower.feed(Frame(b"", first_seq, deltas.encode(batches[first_seq])))
    assert await to_the_end(follower) == [*texts(1, 3), lost]


async def test_a_failure_behind_lost_deltas_keeps_its_number(stream: DeltaStream, inbox: Inbox) -> None:
    generation_id, lost = identity.new_id(), Failed("lost")
    await stream.publish([entry(generation_id, 12, [lost], inbox="")])
    for seq in (0, 1):
        assert await stream.replay(generation_id, seq) == ([lost], 12)
        assert await stream.tail(generation_id, b"", seq) == (b"1-12", ([lost], 12))
    assert await stream.replay(generation_id, 12) == ([], 12)
    assert await stream.tail(generation_id, b"", 12) == (b"1-12", ([], 12))
    catching_up, fed = (inbox.follow(generation_id, 1) for _ in range(2))
    fed.feed(Frame(b"", 12, deltas.encode([lost])))
    with inbox.resuming(generation_id, 1) as resuming:
        assert await resuming.next() == await catching_up.catch_up() == await fed.next() == [lost]
        assert (resuming.seq, catching_up.seq, fed.seq) == (12, 12, 12)
        assert await fed.next() == await resuming.next() == await catching_up.catch_up() == []


async def test_a_client_that_resumes_is_fed_from_where_the_log_ended(
    stream: DeltaStream, inbox: Inbox
) -> None:
    generation_id = identity.new_id()
    await stream.publish([entry(generation_id, 1, texts(1, 2), inbox="")])
    with inbox.resuming(generation_id, 1) as follower:
        assert await follower.next() == texts(1, 2)
        assert await follower.next() == []
        await stream.seal(generation_id, 2)  # an entry without deltas
        await stream.publish([entry(generation_id, 3, texts(3, 3), inbox="", fence=2)])
        await stream.publish([entry(generation_id, 4, [END], inbox="", fence=2)])
        assert await to_the_end(follower) == [*texts(3, 3), END]
    assert not inbox._log_feed._logs


async def test_a_client_that_resumes_gets_no_batch_of_another_version(
    redis: Redis, stream: RedisStream, inbox: Inbox
) -> None:
    generation_id = identity.new_id()
    with inbox.resuming(generation_id, 1) as follower:
        assert await follower.next() == []
        await redis.xadd(stream.key("log", generation_id.hex), {"d": b"\xc1"}, id="1-1")
        with pytest.raises(StreamLost):
            await to_the_end(follower)


async def test_a_follower_that_joins_farther_back_misses_nothing(
    stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation_id = identity.new_id()
    has_read, may_return = asyncio.Event(), asyncio.Event()
    read_logs = stream.read_logs

    async def late(after: Mapping[UUID, bytes], *, block_ms: int | None) -> dict[UUID, list[Frame]]:
        if found := await read_logs(after, block_ms=block_ms):
            has_read.set()
            await may_return.wait()
        return found

    with inbox.resuming(generation_id, 1) as first, inbox.resuming(generation_id, 1) as second:
        assert await first.next() == await second.next() == []
        await stream.publish([entry(generation_id, seq, texts(seq, seq), inbox="") for seq in range(1, 4)])
        while first.seq < 3:
            await first.next()
        inbox.stop_feeding(second)
        second._arrived.clear()  # as if it had read the log to its end just before the deltas came
        monkeypatch.setattr(stream, "read_logs", late)
        await stream.seal(generation_id, 2)  # an entry that no follower gets
        await has_read.wait()
        inbox.feed_from_log(second)
        may_return.set()
        async with asyncio.timeout(10):
            while second.seq < 3:
                await second.next()
        await stream.publish([entry(generation_id, 4, [END], inbox="", fence=2)])
        assert await to_the_end(first) == await to_the_end(second) == [END]
    assert not inbox._log_feed._logs


async def test_a_client_that_resumes_and_reads_slowly_goes_back_to_the_log(
    stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 20)
    generation_id = identity.new_id()
    with inbox.resuming(generation_id, 1) as follower:
        assert await follower.next() == []

        async def is_fed() -> bool:
            return bool(inbox._log_feed._logs)

        async def is_not_fed() -> bool:
            return not await is_fed()

        await stream.publish([entry(generation_id, seq, texts(seq, seq), inbox="") for seq in range(1, 4)])
        await eventually(is_not_fed)
        assert not follower._arrived
        found = []
        while part := await follower.next():  # pages, the first one of one entry
            found += part
        assert found == texts(1, 3)
        assert await is_fed()
        await stream.publish([entry(generation_id, 4, [END], inbox="")])
        assert await to_the_end(follower) == [END]


async def test_a_look_at_a_running_generation_does_not_disturb_the_feed(
    stream: DeltaStream, inbox: Inbox
) -> None:
    """As `resumption.snapshot` looks: it leaves in the turn in which it joins. (`inbox` checks the log.)"""
    for _ in range(3):
        with inbox.resuming(identity.new_id(), 1) as looking:
            assert await looking.next() == []
    with inbox.resuming(identity.new_id(), 1) as follower:
        assert await follower.next() == []
        await stream.publish([entry(follower.id, 1, [END], inbox="")])
        assert await to_the_end(follower) == [END]


async def test_a_client_that_resumes_is_lost_if_its_feed_alone_fails(
    stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(after: Mapping[UUID, bytes], *, block_ms: int | None) -> dict[UUID, list[Frame]]:
        raise StreamUnavailable("no connection is left")

    monkeypatch.setattr(Follower, "LOST_AFTER_S", 0.3)
    monkeypatch.setattr(stream, "read_logs", refused)
    with inbox.resuming(identity.new_id(), 1) as follower, pytest.raises(StreamLost):
        await to_the_end(follower)


async def test_a_client_resumes_although_the_inbox_cannot_begin(
    valkey: Valkey, redis: Redis, stream: DeltaStream
) -> None:
    inbox = Inbox(stream, "web", turns=FairTurns(), tick_s=0.1)
    generation_id = identity.new_id()
    await stream.publish([entry(generation_id, 1, texts(1, 2), inbox="")])
    await redis.config_set("maxmemory", 1)  # it refuses to write, and answers what it has
    with pytest.raises(StreamUnavailable):
        await inbox.start()
    was_answering = inbox.is_answering
    with inbox.resuming(generation_id, 1) as follower:
        assert await follower.next() == texts(1, 2)
        assert await follower.next() == []
        async with asyncio.timeout(10):
            assert await follower.next() == []  # a tick
        await redis.config_set("maxmemory", 0)
        await stream.publish([entry(generation_id, 3, [END], inbox="")])
        assert await to_the_end(follower) == [END]
    await inbox.start()
    assert (was_answering, inbox.is_answering) == (False, True)
    await inbox.stop()


async def test_many_followed_logs_have_turns_by_organization(
    stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_feed, "READ_AT_ONCE", 4)
    followers = []
    with ExitStack() as clients:
        for number in range(12):
            resuming = inbox.resuming(identity.new_id(), 1 if number else 2)
            followers.append(clients.enter_context(resuming))
        for follower in followers:
            assert await follower.next() == []
        turns = [[log.id for log in inbox._log_feed._turn()] for _ in range(6)]
        assert all(len(turn) == 4 and followers[0].id in turn for turn in turns)
        assert {follower.id for follower in followers} == {each for turn in turns for each in turn}
        await stream.publish([entry(follower.id, 1, [END], inbox="") for follower in followers])
        assert [await to_the_end(follower) for follower in followers] == [[END]] * 12


async def test_a_request_to_stop_counts_although_its_caller_leaves(stream: DeltaStream) -> None:
    generation_id = identity.new_id()
    await stream.cancel(generation_id, Cancellation.ASKED, ttl_ms=5_000)
    await stream.cancel(generation_id, Cancellation.CLIENT_LEFT, ttl_ms=5_000)
    assert await stream.jobs([generation_id]) == [(None, Cancellation.ASKED)]
    await stream.cancel(other := identity.new_id(), Cancellation.CLIENT_LEFT, ttl_ms=5_000)
    await stream.cancel(other, Cancellation.ASKED, ttl_ms=5_000)
    assert await stream.cancelled_among([other]) == {other: Cancellation.ASKED}


async def test_what_arrived_behind_a_gap_that_nobody_can_fill_is_not_taken_for_handed_out(
    stream: DeltaStream, inbox: Inbox
) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    await stream.publish([entry(follower.id, 5, texts(5, 6), inbox="")])
    follower.feed(Frame(b"", 1, deltas.encode(texts(1, 2))))
    follower.feed(Frame(b"", 5, deltas.encode(texts(5, 6))))
    assert await follower.next() == texts(1, 2)
    with pytest.raises(StreamLost):
        await follower.next()
    await stream.delete(follower.id, has_ended=True)
    await stream.publish([entry(follower.id, 1, texts(1, 6), inbox="")])
    assert await follower.catch_up() == texts(3, 6)
    assert await follower.next() == []


async def test_what_arrived_before_a_gap_is_handed_out_and_what_fills_it_later_follows(
    stream: DeltaStream, inbox: Inbox
) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    follower.feed(Frame(b"", 1, deltas.encode(texts(1, 2))))
    follower.feed(Frame(b"", 5, deltas.encode(texts(5, 6))))
    assert await follower.next() == texts(1, 2)
    with pytest.raises(StreamLost):
        await follower.next()
    await stream.publish([entry(follower.id, 1, texts(1, 6), inbox="")])
    assert await follower.next() == texts(3, 6)


async def test_a_repeated_write_is_written_and_delivered_once(stream: DeltaStream, inbox: Inbox) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    batch = [
        entry(follower.id, 1, texts(1, 3)),
        entry(identity.new_id(), 1, texts(1, 3), inbox="unread"),
    ]
    assert await stream.publish(batch) == await stream.publish(batch) == set()
    assert await stream.replay(follower.id) == (texts(1, 3), 3)
    assert await inbox_entries(stream, "unread") == 1
    await stream.publish([entry(follower.id, 4, [END])])
    assert await to_the_end(follower) == [*texts(1, 3), END]


async def test_what_a_full_valkey_refuses_is_an_error_and_written_later(
    valkey: Valkey, stream: DeltaStream
) -> None:
    generation_id = identity.new_id()
    await stream.publish([entry(generation_id, 1, texts(1, 3))])
    valkey.client.config_set("maxmemory", 1)
    for batch in (entry(generation_id, 4, texts(4, 5)), entry(identity.new_id(), 1, texts(1, 1))):
        with pytest.raises(StreamUnavailable):
            await stream.publish([batch])
    valkey.client.config_set("maxmemory", 0)
    assert await stream.publish([entry(generation_id, 4, texts(4, 5))]) == set()
    assert await stream.replay(generation_id) == (texts(1, 5), 5)


async def test_a_full_valkey_does_not_hide_that_a_log_is_not_sealed(
    valkey: Valkey, stream: DeltaStream
) -> None:
    generation_id = identity.new_id()
    await stream.publish([entry(generation_id, 1, texts(1, 3))])
    valkey.client.config_set("maxmemory", 1)
    for of in (generation_id, identity.new_id()):
        with pytest.raises(StreamUnavailable, match="maxmemory"):
            await stream.seal(of, 2)
    valkey.client.config_set("maxmemory", 0)
    assert await stream.publish([entry(generation_id, 4, texts(4, 5))]) == set()
    assert (await stream.seal(generation_id, 2)).deltas == texts(1, 5)
    assert (await stream.seal(generation_id, 2)).deltas == texts(1, 5)
    assert await stream.publish([entry(generation_id, 6, texts(6, 6))]) == {generation_id}


async def test_a_full_valkey_deletes(valkey: Valkey, stream: DeltaStream) -> None:
    generation_id = identity.new_id()
    await stream.keep([KeptRequest(generation_id, Job("web", b"{}"), b"a state", stores_response=True)])
    await stream.publish([entry(generation_id, 1, texts(1, 3))])
    valkey.client.config_set("maxmemory", 1)
    await stream.delete(generation_id, has_ended=True)
    assert await stream.state(generation_id) == b""
    assert not await stream.has_log(generation_id)


async def test_a_batch_that_repeats_known_deltas_adds_only_the_new_ones(inbox: Inbox) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    follower.feed(Frame(b"", 1, deltas.encode(texts(1, 3))))
    follower.feed(Frame(b"", 2, deltas.encode(texts(2, 5))))
    assert await follower.next() == texts(1, 5)


async def test_it_replays_from_any_delta(stream: DeltaStream) -> None:
    generation_id = identity.new_id()
    await stream.publish(
        [
            entry(generation_id, 1, texts(1, 3)),
            entry(generation_id, 4, texts(4, 4)),
            entry(generation_id, 5, [END]),
        ]
    )
    assert await stream.replay(generation_id) == ([*texts(1, 4), END], 5)
    assert await stream.replay(generation_id, 2) == ([*texts(3, 4), END], 5)
    assert await stream.replay(generation_id, 5) == ([], 5)


async def test_a_sealed_log_refuses_the_old_fence_and_nothing_of_it_reaches_the_client(
    stream: DeltaStream, inbox: Inbox
) -> None:
    follower, untouched = inbox.follow(identity.new_id(), 1), identity.new_id()
    await stream.publish([entry(follower.id, 1, texts(1, 2))])
    await stream.seal(follower.id, 2)
    assert await stream.publish([entry(follower.id, 3, texts(3, 4)), entry(untouched, 1, texts(1, 1))]) == {
        follower.id
    }
    lost = Failed("lost")
    await stream.publish([entry(follower.id, 3, [lost], fence=2)])
    assert await to_the_end(follower) == [*texts(1, 2), lost]
    assert await stream.replay(untouched) == (texts(1, 1), 1)


async def test_the_seal_tells_what_the_client_may_have_seen(stream: DeltaStream) -> None:
    generation_id = identity.new_id()
    await stream.publish([entry(generation_id, 1, texts(1, 2)), entry(generation_id, 3, texts(3, 3))])
    for fence in (2, 2, 3):  # a reaper that dies is followed by another
        sealed = await stream.seal(generation_id, fence)
        assert (sealed.deltas, sealed.is_whole) == (texts(1, 3), True)


async def test_the_seal_tells_when_the_log_was_lost(stream: DeltaStream) -> None:
    empty, headless = identity.new_id(), identity.new_id()
    sealed = await stream.seal(empty, 2)
    assert (sealed.deltas, sealed.is_whole) == ([], False)
    await stream.publish([entry(headless, 8, texts(8, 9))])
    sealed = await stream.seal(headless, 2)
    assert (sealed.deltas, sealed.is_whole) == (texts(8, 9), False)


async def test_a_job_of_an_earlier_release_is_read(redis: Redis, stream: RedisStream) -> None:
    """Its fourth element contains the reservations of rate limits."""
    generation_id = identity.new_id()
    taken = {
        "id": generation_id,
        "standings": [],
        "running": ["chatapi:rate:key:1"],
        "receipt": "chatapi:rate:x",
    }
    earlier = msgspec.msgpack.encode(["web", b"{}", True, taken])
    await redis.set(stream.key("job", generation_id.hex), earlier, px=TTL_MS)
    ((found, _),) = await stream.jobs([generation_id])
    assert found is not None
    assert (found.inbox, found.request, found.runs_on) == ("web", b"{}", True)
    assert found.is_not_kept is not True


async def test_a_request_is_kept_as_long_as_it_may_wait_and_run(
    redis: Redis, url: str, settings: Settings
) -> None:
    settings.STREAMS_URL, settings.QUEUE_TTL_MS = url, WEEK_MS
    generation_id = identity.new_id()
    async with stream_servers() as servers:
        stream = cast(RedisStream, servers.of(generation_id))
        await stream.keep([KeptRequest(generation_id, Job("web", b"{}"), b"state")])
    for kind in ("job", "state"):
        assert await expires_in_ms(redis, stream, kind, generation_id.hex) > WEEK_MS + MAX_TIMEOUT_MS


async def test_a_request_is_kept_and_enqueued_in_one_step_if_its_server_has_the_queue(
    redis: Redis, stream: RedisStream, url: str
) -> None:
    assert stream.keep_and_enqueue("redis://elsewhere") is None
    generation_id, queue = identity.new_id(), stream.key("queue", "")
    keep_and_enqueue = stream.keep_and_enqueue(url)
    assert keep_and_enqueue is not None
    request = KeptRequest(generation_id, Job("web", b"{}"))
    await keep_and_enqueue([request], ["RPUSH", queue, generation_id.hex])
    assert await stream.has_job(generation_id)
    assert await redis.lpop(queue) == generation_id.hex.encode()


async def test_a_ping_waits_no_longer_than_it_may(valkey: Valkey, stream: DeltaStream) -> None:
    await stream.ping(within_s=10)
    with valkey.frozen():
        async with asyncio.timeout(5):
            with pytest.raises(StreamUnavailable):
                await stream.ping(within_s=0.1)
    valkey.stop()
    with pytest.raises(StreamUnavailable):
        await stream.ping(within_s=10)


async def test_the_job_goes_with_the_end_and_the_log_a_little_later(
    redis: Redis, short_lived: RedisStream
) -> None:
    stream, generation_id = short_lived, identity.new_id()
    await stream.keep_again(KeptRequest(generation_id, Job("web", b"{}")))
    assert await stream.jobs([generation_id]) == [(Job("web", b"{}"), None)]
    await stream.publish([entry(generation_id, 1, texts(1, 1))])
    for kind in ("log", "job"):
        lives_on_ms = await expires_in_ms(redis, stream, kind, generation_id.hex)
        assert lives_on_ms > MAX_TIMEOUT_MS, "a generation may run longer"
    await stream.publish([entry(generation_id, 2, [END])])
    assert await stream.has_log(generation_id)
    assert await stream.jobs([generation_id]) == [(None, None)]
    await eventually(lambda: is_gone(stream, generation_id))


async def test_what_could_not_be_published_is_missing_before_a_failure_and_nowhere_else(
    stream: DeltaStream, inbox: Inbox
) -> None:
    follower, lost = inbox.follow(identity.new_id(), 1), Failed("lost")
    await stream.publish([entry(follower.id, 1, texts(1, 2))])
    await stream.publish([entry(follower.id, 5, [lost])])
    assert await to_the_end(follower) == [*texts(1, 2), lost]
    assert await stream.replay(follower.id) == ([*texts(1, 2), lost], 5)
    assert await stream.replay(follower.id, 1) == ([*texts(2, 2), lost], 5)
    assert (await stream.tail(follower.id, b"", 0))[1] == ([*texts(1, 2), lost], 5)
    headless = identity.new_id()
    await stream.publish([entry(headless, 3, texts(3, 4)), entry(headless, 5, [lost])])
    with pytest.raises(StreamLost):
        await stream.replay(headless)


async def test_an_inbox_is_read_in_few_steps_if_its_entries_are_small(stream: DeltaStream) -> None:
    """Many workers write many of them while a web process is late."""
    generation_id = identity.new_id()
    for seq in range(1, 101):
        await stream.publish([entry(generation_id, seq, texts(seq, seq))])
    assert await counts_of_reads(stream) == [8, 32, 32, 28]


async def test_few_entries_of_an_inbox_are_read_at_once_if_they_are_large(stream: DeltaStream) -> None:
    generation_id = identity.new_id()
    for seq in range(1, 21):
        await stream.publish([entry(generation_id, seq, [Text("x" * 20_000)])])
    assert await counts_of_reads(stream) == [8, 8, 4]


async def test_a_read_of_an_inbox_that_took_too_long_is_repeated_with_few_entries(
    stream: DeltaStream,
) -> None:
    """Large entries may have come meanwhile, and many of them take even longer."""
    generation_id = identity.new_id()
    for seq in range(1, 9):
        await stream.publish([entry(generation_id, seq, texts(seq, seq))])
    [*_, (read_up_to, _)] = await stream.read_inbox("web", after=b"", block_ms=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stream.read_inbox("web", after=read_up_to, block_ms=1_000)
    for seq in range(9, 30):
        await stream.publish([entry(generation_id, seq, [Text("x" * 20_000)])])
    assert len(await stream.read_inbox("web", after=read_up_to, block_ms=1)) == 8


async def counts_of_reads(stream: DeltaStream) -> list[int]:
    """Read the inbox to its end; return how many entries each read found."""
    counts, read_up_to = list[int](), b"0"
    while entries := await stream.read_inbox("web", after=read_up_to, block_ms=1):
        counts.append(len(entries))
        read_up_to = entries[-1][0]
    return counts


@pytest.mark.parametrize("first_seq", [1, 7])
async def test_every_log_expires_also_that_of_a_worker_without_its_fence(
    redis: Redis, stream: RedisStream, first_seq: int
) -> None:
    """A sealed log expires; the worker that lost its fence may still write, to a new log, which
    expires too.
    """
    generation_id = identity.new_id()
    await stream.publish([entry(generation_id, first_seq, texts(1, 1))])
    assert await expires_in_ms(redis, stream, "log", generation_id.hex) > MAX_TIMEOUT_MS
    await stream.forget({generation_id: SHORT_MS})
    await stream.publish([entry(generation_id, first_seq + 1, texts(2, 2))])
    await eventually(lambda: is_gone(stream, generation_id))


async def test_a_log_that_another_version_has_written_is_as_good_as_lost(stream: DeltaStream) -> None:
    generation_id = identity.new_id()
    await stream.publish([Entry(generation_id, 1, 1, msgspec.msgpack.encode([[99, "of a newer version"]]))])
    for reading in (stream.replay(generation_id), stream.tail(generation_id, b"", 0)):
        with pytest.raises(StreamLost):
            await reading


async def test_the_inbox_of_a_dead_process_does_not_stay(redis: Redis, stream: RedisStream) -> None:
    await stream.publish([entry(identity.new_id(), 1, texts(1, 1), inbox="dead")])
    assert await expires_in_ms(redis, stream, "inbox", "dead") > 0


async def test_nothing_stays_in_an_inbox_that_has_been_read(
    stream: DeltaStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last entries of an idle process would otherwise stay as long as the process lives."""
    monkeypatch.setattr(RedisPresence, "RENEW_S", 0.02)
    generation_id, read_up_to = identity.new_id(), b""
    for seq in (1, 2, 3):
        await stream.publish([entry(generation_id, seq, texts(seq, seq))])
    names = [name for name, _ in await stream.read_inbox("web", after=b"", block_ms=1)]
    presence = stream.presence("web", read_up_to=lambda: read_up_to, is_unknown=lambda: None)
    await presence.start()

    async def has_entries(count: int) -> bool:
        return await inbox_entries(stream, "web") == count

    assert await has_entries(3)
    read_up_to = names[1]
    await eventually(lambda: has_entries(1))
    assert [name for name, _ in await stream.read_inbox("web", after=b"", block_ms=1)] == names[2:]
    read_up_to = names[2]
    await eventually(lambda: has_entries(0))
    await stream.publish([entry(generation_id, 4, texts(4, 4))])
    assert len(await stream.read_inbox("web", after=names[2], block_ms=1)) == 1
    presence.stop()


@pytest.mark.parametrize("why", Cancellation)
async def test_a_cancellation_is_heard_and_remembered(stream: DeltaStream, why: Cancellation) -> None:
    generation_id, other = identity.new_id(), identity.new_id()
    heard = asyncio.ensure_future(anext(stream.cancellations("listener")))

    async def is_listening() -> bool:
        return await stream.connected_workers() == {"listener"}

    await eventually(is_listening)
    await stream.cancel(generation_id, why, ttl_ms=5_000)
    assert await asyncio.wait_for(heard, 5) == (generation_id, why)
    assert await stream.cancelled_among([generation_id, other]) == {generation_id: why}
    assert await stream.jobs([generation_id]) == [(None, why)]


@asynccontextmanager
async def listening_behind(
    proxy: ChaosProxy, stream: RedisStream
) -> AsyncIterator["asyncio.Future[tuple[UUID, Cancellation]]"]:
    """Let a worker listen for cancellations through the proxy; yield what it hears first."""
    redis = connect(proxy.redis_url)
    listener = RedisStream(redis, stream.key("behind", ""), url=proxy.redis_url, ttl_ms=TTL_MS)
    listening = asyncio.ensure_future(anext(listener.cancellations("listener")))
    async with asyncio.timeout(5):
        while not await listener.connected_workers():
            await asyncio.sleep(0.01)
    yield listening
    await redis.aclose()


async def test_a_worker_connects_again_after_its_connection_was_lost_without_a_sign(
    shared_valkey: Valkey, stream: RedisStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So ends a connection to a machine without power: web processes would take the worker for dead."""
    monkeypatch.setattr(stream_module, "SILENT_S", 0.2)
    with ChaosProxy(Path(shared_valkey.socket)) as proxy:
        async with listening_behind(proxy, stream) as listening:
            await asyncio.sleep(1)
            assert not listening.done()  # nothing comes, but the server answers
            proxy.fault = Blackhole()
            with pytest.raises(StreamUnavailable):
                await asyncio.wait_for(listening, 5)


async def test_a_worker_whose_connection_is_reset_does_not_wait_for_a_greeting_for_ever(
    shared_valkey: Valkey, stream: RedisStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "SILENT_S", 0.2)
    with ChaosProxy(Path(shared_valkey.socket)) as proxy:
        async with listening_behind(proxy, stream) as listening:
            proxy.fault = Stall()
            await asyncio.to_thread(proxy.reset)
            with pytest.raises(StreamUnavailable):
                await asyncio.wait_for(listening, 5)


async def test_a_worker_does_not_wait_for_the_greeting_of_a_server_that_hangs(
    valkey: Valkey, stream: RedisStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.1)
    with valkey.frozen():
        async with asyncio.timeout(1):
            with pytest.raises(StreamUnavailable):
                await anext(stream.cancellations("listener"))


async def test_everything_goes_on_when_valkey_comes_back_empty(
    valkey: Valkey, stream: DeltaStream, inbox: Inbox
) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    await stream.publish([entry(follower.id, 1, texts(1, 2))])
    assert await follower.next() == texts(1, 2)
    valkey.stop()
    with pytest.raises(StreamUnavailable):
        await stream.publish([entry(follower.id, 3, texts(3, 3))])
    valkey.start()
    await stream.publish([entry(follower.id, 3, texts(3, 3))])
    await stream.publish([entry(follower.id, 4, [END])])
    assert await to_the_end(follower) == [*texts(3, 3), END]

    async def is_announced() -> bool:
        return await stream.signs_of_life([inbox.name]) == Signs({inbox.name}, {inbox.name})

    await eventually(is_announced)


async def test_deltas_arrive_from_a_valkey_that_has_lost_all_and_whose_clock_is_behind(
    redis: Redis, stream: RedisStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of its new entries are lower than those that the inbox has read."""
    monkeypatch.setattr(RedisPresence, "RENEW_S", 0.05)
    follower = inbox.follow(identity.new_id(), 1)
    frame = entry(follower.id, 1, texts(1, 1)).frame()
    await redis.xadd(stream.key("inbox", inbox.name), {"b": frame}, id="99999999999999-0")
    assert await follower.next() == texts(1, 1)
    await redis.delete(*[key async for key in redis.scan_iter(f"{stream.key('', '')[:-1]}*")])
    await stream.publish([entry(follower.id, 2, texts(2, 2)), entry(follower.id, 3, [END])])
    assert await to_the_end(follower) == [*texts(2, 2), END]


async def test_the_inbox_says_when_valkey_stays_away(
    valkey: Valkey, stream: DeltaStream, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Follower, "LOST_AFTER_S", 0.3)

    follower = inbox.follow(identity.new_id(), 1)

    async def is_well() -> bool:
        try:
            inbox.check(follower)
        except StreamLost:
            return False
        return True

    async def is_unwell() -> bool:
        return not await is_well()

    assert await is_well()
    valkey.stop()
    await eventually(is_unwell)
    inbox.check(inbox.follow(identity.new_id(), 1))  # which may have come when Valkey was back
    valkey.start()
    await eventually(is_well)


async def test_a_long_log_is_read_in_pages(stream: DeltaStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatapi.transports.redis_stream.stream.PAGE_ENTRIES", 8)
    generation_id = uuid4()
    assert await stream.last_seq(generation_id) == 0
    for seq in range(1, 41):
        await stream.publish([entry(generation_id, seq, texts(seq, seq), inbox="")])
    assert await stream.replay(generation_id) == (texts(1, 40), 40)
    assert await stream.replay(generation_id, 35) == (texts(36, 40), 40)
    assert await stream.replay(generation_id, 40) == ([], 40)
    assert await stream.last_seq(generation_id) == 40
    for fence in range(2, 12):  # the seals alone fill a page
        sealed = await stream.seal(generation_id, fence)
        assert (sealed.deltas, sealed.is_whole) == (texts(1, 40), True)
    assert await stream.last_seq(generation_id) == 40
    assert await stream.replay(generation_id, 38) == (texts(39, 40), 40)


async def test_a_late_event_loop_takes_no_living_valkey_for_a_dead_one(
    stream: DeltaStream, inbox: Inbox
) -> None:
    follower = inbox.follow(identity.new_id(), 1)
    await asyncio.sleep(0.1)  # the inbox waits for its next entry
    time.sleep(Follower.LOST_AFTER_S + 1)  # noqa: ASYNC251  it is the whole loop that stands still
    for _ in range(20):
        inbox.check(follower)
        await asyncio.sleep(0.05)
    await stream.publish([entry(follower.id, 1, [END])])
    assert await to_the_end(follower) == [END]
