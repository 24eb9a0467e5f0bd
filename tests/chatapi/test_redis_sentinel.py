"""A primary that is found by sentinels: what reaches it, and what the doctor says."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from pytest_django import Settings
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from accounts import redis_sentinel, redis_time_limit
from accounts.redis_sentinel import primary_address
from accounts.redis_urls import sentinel_urls
from accounts.sign_in import attempts
from accounts.sign_in.cache import AllauthInRedisCache
from chatapi.doctor import stores
from chatapi.doctor.finding import Level
from chatapi.redis_client import DedicatedConnection, connect, connect_from_thread
from chatapi.redis_servers import servers_away
from tests.installation import free_port
from tests.replicated_valkey import NAME, SENTINEL_PASSWORD, ReplicatedValkey
from tests.sentinel_stub import serve_sentinel

pytestmark = pytest.mark.xdist_group("sentinel")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedValkey]:
    with ReplicatedValkey(tmp_path_factory.mktemp("store")) as store:
        yield store


def test_attempts_and_codes_are_counted_at_the_primary(store: ReplicatedValkey, settings: Settings) -> None:
    settings.BROKER_URL = settings.STREAMS_URL = store.url
    assert [attempts.count_mail("a@example.com", "192.0.2.1") for _ in range(6)][5] > 0
    cache = AllauthInRedisCache("name", {"OPTIONS": {"socket_timeout": 3}})
    assert [cache.add("allauth-code", 1), cache.add("allauth-code", 1)] == [True, False]
    with connect_from_thread(store.url) as redis:
        assert len(redis.keys("*sign-in:*") + redis.keys("*allauth-code")) == 3


async def test_a_primary_that_is_replaced_is_left_by_those_who_wait_there(
    store: ReplicatedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 10)
    redis, old = connect(store.url), store.primary
    line = DedicatedConnection(redis)
    with connect_from_thread(store.url, timeout_s=10) as blocking:
        assert (await line.call("SET", "kept", "1"), blocking.get("kept")) == (b"OK", b"1")
        began = time.monotonic()
        waiting = asyncio.ensure_future(line.call("BLPOP", "nothing", 10))
        also_waiting = asyncio.ensure_future(asyncio.to_thread(blocking.blpop, ["nothing"], 10))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(store.switch_over)
        for each in (waiting, also_waiting):
            with pytest.raises(RedisConnectionError):
                await each
        assert time.monotonic() - began < 7
        assert store.primary != old
        assert (await line.call("SET", "kept", "2"), blocking.get("kept")) == (b"OK", b"2")
    await redis.aclose()


async def test_a_server_that_has_become_a_replica_is_left(store: ReplicatedValkey) -> None:
    redis = connect(store.url)
    writing, waiting = DedicatedConnection(redis), DedicatedConnection(redis)
    with connect_from_thread(store.url) as blocking, connect_from_thread(store.url) as another:
        assert (await writing.call("SET", "kept", "1"), blocking.get("kept")) == (b"OK", b"1")
        blocked = asyncio.ensure_future(waiting.call("BLPOP", "nothing", 2))
        await asyncio.sleep(0.05)
        another.replicaof("127.0.0.1", "9")
        try:
            for refused in (blocked, writing.call("SET", "kept", "2")):
                with pytest.raises(RedisConnectionError, match="the primary has become a replica"):
                    await refused
            with pytest.raises(RedisConnectionError, match="the primary has become a replica"):
                blocking.set("kept", "2")
        finally:
            another.replicaof("NO", "ONE")
        assert (await writing.call("SET", "kept", "3"), blocking.get("kept")) == (b"OK", b"3")
    await redis.aclose()


async def write_on_event_loop(url: str) -> None:
    redis = connect(url)
    try:
        await DedicatedConnection(redis).call("SET", "kept", "1")
    finally:
        await redis.aclose()


async def write_from_thread(url: str) -> None:
    with connect_from_thread(url) as redis:
        await asyncio.to_thread(redis.set, "kept", "1")


@pytest.mark.parametrize("write", [write_on_event_loop, write_from_thread])
async def test_after_a_sentinel_has_named_a_replica_another_one_is_asked(
    store: ReplicatedValkey, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], Awaitable[None]]
) -> None:
    async with serve_sentinel(primary=0) as outdated:
        outdated.primary = outdated.port
        url = store.url.replace("@", f"@127.0.0.1:{outdated.port},")
        monkeypatch.setattr("accounts.redis_sentinel._orders.sample", lambda urls, _: list(urls))
        with pytest.raises(RedisConnectionError, match="the primary has become a replica"):
            await write(url)
        monkeypatch.setattr("accounts.redis_sentinel._orders.sample", lambda urls, _: list(reversed(urls)))
        await write(url)


async def test_a_silent_sentinel_delays_one_connection(store: ReplicatedValkey) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = sentinel_urls(store.url.replace("@", f"@127.0.0.1:{silent.getsockname()[1]},"))
        assert urls
        took_s = []
        for _ in range(6):
            began = time.monotonic()
            assert (await primary_address(urls))[1] == store.primary
            took_s.append(time.monotonic() - began)
    assert len([each for each in took_s if each > 0.5]) <= 1


async def test_a_probe_asks_another_sentinel_after_one_that_is_silent(
    store: ReplicatedValkey, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = store.url.replace("@", f"@127.0.0.1:{silent.getsockname()[1]},")
        settings.STREAMS_URL = settings.BROKER_URL = url
        urls = sentinel_urls(url)
        assert urls
        monkeypatch.setitem(redis_sentinel._answered, urls, urls.sentinels[0])
        monkeypatch.setattr("accounts.redis_sentinel._orders.sample", lambda urls, _: list(reversed(urls)))
        assert [bool(await servers_away(0.5)) for _ in range(3)] == [True, False, False]


def test_the_doctor_asks_each_sentinel(store: ReplicatedValkey, settings: Settings) -> None:
    here, nobody = store.sentinel, free_port()
    settings.BROKER_URL = settings.STREAMS_URL = store.url
    assert [each.text for each in stores.check_redis() if each.level is not Level.OK] == []
    settings.BROKER_URL = settings.STREAMS_URL = store.url.replace("@", f"@127.0.0.1:{nobody},")
    [away] = [each for each in stores.check_redis() if each.level is not Level.OK]
    assert (away.level, away.subject) == (Level.WARNING, "sentinels")
    assert away.text.startswith(f"127.0.0.1:{nobody} can't be asked: ")
    store.ask("SET", "quorum", "2")
    try:
        found = [each for each in stores.check_redis() if each.level is Level.WRONG]
    finally:
        store.ask("SET", "quorum", "1")
    assert [each.text.partition(" for ")[0] for each in found] == [f"127.0.0.1:{here}"]
    assert found[0].remedy.startswith("Start the other sentinels: ")


def test_the_doctor_does_not_blame_the_name_for_lack_of_a_right(
    store: ReplicatedValkey, settings: Settings
) -> None:
    with Redis(port=store.sentinel, password=SENTINEL_PASSWORD) as sentinel:
        sentinel.execute_command(
            "ACL SETUSER few on >rights -@all +ping +client +sentinel|get-master-addr-by-name"
        )
    plain, _, _ = store.url.partition("?")
    url = f"{plain}?sentinel_username=few&sentinel_password=rights"
    settings.BROKER_URL = settings.STREAMS_URL = url
    [found] = [each for each in stores.check_redis() if each.level is not Level.OK]
    assert found.level is Level.WARNING
    assert found.text == f"127.0.0.1:{store.sentinel} does not say whether it has a quorum."
    assert found.remedy == "Allow its user +sentinel|ckquorum."


def test_the_doctor_says_that_nobody_knows_the_name(store: ReplicatedValkey, settings: Settings) -> None:
    settings.BROKER_URL = settings.STREAMS_URL = store.url.replace(NAME, "another")
    sentinel, redis = stores.check_redis()
    assert {sentinel.level, redis.level} == {Level.WRONG}
    assert sentinel.remedy.startswith("Check the name behind the sentinels in the URL")
    reason = f"no sentinel knows the primary another (127.0.0.1:{store.sentinel}: does not know this name)"
    assert redis.text == f"another does not answer: {reason}."


def test_a_wrong_password_of_the_sentinels_is_an_error_without_it(store: ReplicatedValkey) -> None:
    url = f"{store.url.partition('?')[0]}?sentinel_password=hunter3"
    with pytest.raises(RedisConnectionError, match=r"no sentinel knows .*password") as raised:
        connect_from_thread(url).ping()
    assert "hunter" not in str(raised.value)
