"""Which web processes live: what Redis knows of one that says so, is late, has been stopped or is dead."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from chatapi.delta_stream import Signs, StreamUnavailable
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisPresence
from chatapi.transports.redis_stream.presence import signs
from chatapi.worker.absences import PRESUMED_DEAD_S, Absences
from tests.chatapi.worker.processes import Valkey
from tests.installation import ROOT, die_with_parent

PREFIX = "test-presence:"
NAME = "web"
ALIVE, LATE, DEAD = Signs({NAME}, {NAME}), Signs(set(), {NAME}), Signs(set(), set())
PROCESS = """
import asyncio, sys
from chatapi.transports.redis_stream import RedisPresence
async def live():
    presence = RedisPresence(*sys.argv[1:], read_up_to=lambda: b"", is_unknown=lambda: None)
    await presence.start()
    await asyncio.sleep(600)
asyncio.run(live())
"""


@pytest.fixture
def url(valkey: Valkey) -> str:
    return f"unix://{valkey.socket}"


@pytest.fixture
async def redis(url: str) -> AsyncIterator[Redis]:
    redis = connect(url)
    yield redis
    await redis.aclose()


@pytest.fixture
def process(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", PROCESS, url, PREFIX, NAME]
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=die_with_parent) as running:  # noqa: PLW1509
        yield running
        running.kill()


async def becomes(redis: Redis, wanted: Signs, timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while await signs(redis, PREFIX, [NAME]) != wanted:
            await asyncio.sleep(0.02)


def presence_of(url: str) -> RedisPresence:
    return RedisPresence(url, PREFIX, NAME, read_up_to=lambda: b"", is_unknown=lambda: None)


def block(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)


async def test_a_process_that_is_stopped_is_still_connected(
    redis: Redis, process: "subprocess.Popen[bytes]"
) -> None:
    await becomes(redis, ALIVE)
    process.send_signal(signal.SIGSTOP)
    await becomes(redis, LATE)
    process.send_signal(signal.SIGCONT)
    await becomes(redis, ALIVE)


async def test_of_a_process_that_is_killed_redis_knows_at_once(
    redis: Redis, process: "subprocess.Popen[bytes]"
) -> None:
    await becomes(redis, ALIVE)
    process.kill()
    await becomes(redis, Signs({NAME}, set()), timeout_s=2)
    await becomes(redis, DEAD, timeout_s=RedisPresence.TTL_MS / 1_000 + 1)


async def test_nobody_is_asked_about_nobody(redis: Redis) -> None:
    assert await signs(redis, PREFIX, []) == Signs(set(), set())


async def test_a_blocked_loop_does_not_keep_it_silent(redis: Redis, url: str) -> None:
    presence = presence_of(url)
    await presence.start()
    block(RedisPresence.TTL_MS / 1_000 + 1)
    assert await signs(redis, PREFIX, [NAME]) == ALIVE
    presence.stop()


async def test_a_valkey_that_has_lost_all_knows_it_again_though_the_loop_is_blocked(
    redis: Redis, url: str, valkey: Valkey
) -> None:
    presence = presence_of(url)
    await presence.start()
    valkey.stop()
    valkey.start()
    block(2)
    assert await signs(redis, PREFIX, [NAME]) == ALIVE
    presence.stop()


async def test_a_full_valkey_that_has_forgotten_it_still_has_its_connection(
    redis: Redis, url: str, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisPresence, "RENEW_S", 0.05)
    presence = presence_of(url)
    await presence.start()
    valkey.client.config_set("maxmemory", "1")
    valkey.client.delete(f"{PREFIX}web:{NAME}")
    for _ in range(20):
        assert (await signs(redis, PREFIX, [NAME])).connected == {NAME}
        await asyncio.sleep(0.05)
    valkey.client.config_set("maxmemory", "0")
    await becomes(redis, ALIVE)
    presence.stop()


async def test_without_valkey_it_does_not_start(url: str, valkey: Valkey) -> None:
    valkey.stop()
    with pytest.raises(StreamUnavailable):
        await presence_of(url).start()


class Clock:
    """Stands still until it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("accounts.loop_clock.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def dead_after(clock: Clock, absences: Absences, found: Signs, seconds: float) -> set[str]:
    clock.now += seconds
    return absences.dead({NAME}, found)


def test_a_process_without_a_sign_of_life_for_seconds_is_dead(clock: Clock) -> None:
    absences = Absences()
    assert dead_after(clock, absences, DEAD, 0) == set()
    assert dead_after(clock, absences, DEAD, PRESUMED_DEAD_S) == set()
    assert dead_after(clock, absences, DEAD, 0.1) == {NAME}


def test_a_process_that_was_away_for_a_moment_has_all_its_time_again(clock: Clock) -> None:
    absences = Absences()
    assert dead_after(clock, absences, DEAD, 0) == set()
    assert dead_after(clock, absences, ALIVE, 1) == set()
    assert dead_after(clock, absences, DEAD, 2) == set()


def test_while_redis_was_away_nobody_was_gone(clock: Clock) -> None:
    absences = Absences()
    assert dead_after(clock, absences, DEAD, 0) == set()
    absences.forget()
    assert dead_after(clock, absences, DEAD, 60) == set()


def test_a_process_is_not_gone_while_its_servers_do_not_answer(clock: Clock) -> None:
    absences, away = Absences(), DEAD._replace(unknown=frozenset([NAME]))
    assert dead_after(clock, absences, away, 0) == set()
    assert dead_after(clock, absences, away, 60) == set()
    assert dead_after(clock, absences, DEAD, 1) == set()
    assert dead_after(clock, absences, DEAD, PRESUMED_DEAD_S + 0.1) == {NAME}


def test_a_connected_process_is_dead_only_after_a_long_silence(clock: Clock, settings: object) -> None:
    settings.HUNG_MS = 60_000  # type: ignore[attr-defined]
    absences = Absences()
    assert dead_after(clock, absences, LATE, 0) == set()
    assert dead_after(clock, absences, LATE, 59) == set()
    assert dead_after(clock, absences, LATE, 2) == {NAME}
