"""Which server of streams an id names, and what several servers answer together."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from redis.asyncio import Redis

from chatapi import identity
from chatapi.delta_stream import (
    ByServer,
    Cancellation,
    Signs,
    StreamServers,
    StreamUnavailable,
)
from chatapi.fair_turns import FairTurns
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.web.following.inboxes import Inboxes
from tests.chatapi.worker.processes import Valkey


@asynccontextmanager
async def servers_of(*urls: str) -> AsyncIterator[StreamServers]:
    clients: list[Redis] = [connect(url) for url in urls]
    streams = (
        RedisStream(redis, "test:", url=url, ttl_ms=5_000) for redis, url in zip(clients, urls, strict=True)
    )
    yield StreamServers([*streams])
    for redis in clients:
        await redis.aclose()


@pytest.fixture
async def streams(valkey: Valkey, tmp_path: Path) -> AsyncIterator[StreamServers]:
    """Return two servers; there is none behind the second one's address."""
    async with servers_of(f"unix://{valkey.socket}", f"unix://{tmp_path}/nobody.sock") as streams:
        yield streams


def on(server: int) -> UUID:
    return identity.on_one_of([server], identity.new_id())


def test_an_id_names_its_server_and_stays_unique() -> None:
    ids = [identity.new_id() for _ in range(1_000)]
    assert {identity.server_number(each) for each in ids} == {0}
    placed = [identity.on_one_of([1, 4, 15], each) for each in ids]
    assert Counter(map(identity.server_number, placed)).keys() == {1, 4, 15}
    assert min(Counter(map(identity.server_number, placed)).values()) > 200
    assert len(set(placed)) == 1_000
    assert {each.version for each in placed} == {7}
    assert [identity.created(each) for each in placed] == [identity.created(each) for each in ids]
    assert [identity.on_one_of([1, 4, 15], each) for each in placed] == placed


def test_a_single_server_has_the_ids_of_the_release_before_too() -> None:
    assert ByServer(["only"]).of(on(7)) == "only"
    assert ByServer(["first", "second"]).of(on(1)) == "second"
    with pytest.raises(StreamUnavailable, match="CHATAPI_STREAMS_URL has no server 2"):
        ByServer(["first", "second"]).of(on(2))


async def test_the_servers_that_answer_suffice(streams: StreamServers) -> None:
    first = streams.of(on(0))
    cancelled, other = on(0), on(1)
    await first.cancel(cancelled, Cancellation.ASKED, ttl_ms=5_000)
    assert await streams.cancelled_among([cancelled, other]) == {cancelled: Cancellation.ASKED}
    assert await streams.connected_workers() == set()
    assert (await streams.signs_of_life(["web"])).heard == set()


async def test_a_process_is_missed_only_where_it_was_seen(valkey: Valkey, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with Valkey(tmp_path / "second") as second:
        async with servers_of(*(f"unix://{each.socket}" for each in (valkey, second))) as streams:
            valkey.client.mset({"test:web:old list": 1, "test:web:new list": 1})
            second.client.set("test:web:new list", 1)
            names = ["old list", "new list", "never seen"]
            assert await streams.signs_of_life(names) == Signs({"old list", "new list"}, set())
            valkey.stop()
            unknown = frozenset({"old list"})
            assert await streams.signs_of_life(names) == Signs({"new list"}, set(), unknown)
            valkey.start()
            assert await streams.signs_of_life(names) == Signs({"new list"}, set())


async def test_no_server_that_answers_is_an_error(tmp_path: Path) -> None:
    async with servers_of(*(f"unix://{tmp_path}/nobody-{number}.sock" for number in range(2))) as streams:
        with pytest.raises(StreamUnavailable):
            await streams.connected_workers()
        with pytest.raises(StreamUnavailable):
            await streams.cancelled_among([on(0), on(1)])


async def test_new_generations_are_placed_where_redis_answers(valkey: Valkey, tmp_path: Path) -> None:
    async with servers_of(f"unix://{tmp_path}/nobody.sock", f"unix://{valkey.socket}") as streams:
        inboxes = Inboxes.of_streams(streams, FairTurns(), tick_s=0.5)
        await inboxes.start()
        assert {identity.server_number(inboxes.place(identity.new_id())) for _ in range(50)} == {1}
        valkey.stop()
        async with asyncio.timeout(10):
            while {identity.server_number(inboxes.place(identity.new_id())) for _ in range(50)} == {1}:
                await asyncio.sleep(0.01)
        await inboxes.stop()
        with pytest.raises(StreamUnavailable):
            await inboxes.start()
