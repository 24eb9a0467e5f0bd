"""A line to a real Valkey: what it answers, refuses, loses, and is asked afterwards."""

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import redis_time_limit
from chatapi.redis_client import DedicatedConnection, connect
from tests.chatapi.worker.processes import Valkey


@pytest.fixture
async def line(valkey: Valkey) -> AsyncIterator[DedicatedConnection]:
    redis = connect(f"unix://{valkey.socket}")
    yield DedicatedConnection(redis)
    await redis.aclose()


async def test_commands_that_go_together_are_answered_in_their_order(line: DedicatedConnection) -> None:
    assert await line.calls([("SET", "name", "value"), ("GET", "name"), ("LLEN", "list")]) == [
        b"OK",
        b"value",
        0,
    ]


async def test_a_refused_command_is_an_error_and_the_others_are_done(line: DedicatedConnection) -> None:
    with pytest.raises(ResponseError, match="wrong number"):
        await line.calls([("SET", "first", "1"), ("SET", "second"), ("SET", "third", "3")])
    assert await line.call("MGET", "first", "second", "third") == [b"1", None, b"3"]


async def test_a_new_connection_does_not_search_the_installed_packages(
    line: DedicatedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    monkeypatch.setattr(importlib.metadata, "version", searched.append)
    assert await line.call("ECHO", 1) == b"1"
    assert searched == []


async def test_concurrent_callers_get_their_own_replies(line: DedicatedConnection) -> None:
    replies = await asyncio.gather(*(line.call("ECHO", number) for number in range(50)))
    assert replies == [b"%d" % number for number in range(50)]


async def test_a_reply_that_nobody_waited_for_is_not_the_next_ones(line: DedicatedConnection) -> None:
    waiting = asyncio.ensure_future(line.call("BLPOP", "empty", 0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await line.call("ECHO", "mine") == b"mine"


async def test_a_server_that_comes_back_between_two_commands_is_not_noticed(
    line: DedicatedConnection, valkey: Valkey
) -> None:
    assert await line.call("ECHO", 1) == b"1"
    await asyncio.to_thread(valkey.stop)
    await asyncio.to_thread(valkey.start)
    assert await line.call("ECHO", 2) == b"2"


async def test_a_server_that_is_away_is_an_error_until_it_is_back(
    line: DedicatedConnection, valkey: Valkey
) -> None:
    waiting = asyncio.ensure_future(line.call("BLPOP", "empty", 0))
    await asyncio.sleep(0.01)
    valkey.stop()
    with pytest.raises(RedisError):
        await waiting
    with pytest.raises(RedisError):
        await line.call("ECHO", 1)
    valkey.start()
    assert await line.call("ECHO", 2) == b"2"


async def test_a_server_that_hangs_is_an_error_in_time(
    line: DedicatedConnection, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.1)
    assert await line.call("ECHO", 1) == b"1"
    with valkey.frozen(), pytest.raises(RedisError, match="does not answer"):
        await line.call("ECHO", 2)
    monkeypatch.undo()
    assert await line.call("ECHO", 3) == b"3"


async def test_all_who_wait_for_a_server_that_hangs_get_an_error_in_time(
    line: DedicatedConnection, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.1)
    assert await line.call("ECHO", 1) == b"1"
    with valkey.frozen():
        async with asyncio.timeout(0.5):
            errors = await asyncio.gather(*(line.call("ECHO", 2) for _ in range(20)), return_exceptions=True)
    assert {type(error) for error in errors} == {RedisTimeoutError}
    monkeypatch.undo()
    assert await line.call("ECHO", 3) == b"3"


async def test_a_caller_that_waited_too_long_for_its_turn_leaves_the_others_their_replies(
    line: DedicatedConnection, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asyncio.ensure_future(line.call("BLPOP", "queue", 0))
    await asyncio.sleep(0.01)
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.05)
    with pytest.raises(RedisTimeoutError):
        await line.call("ECHO", "late")
    monkeypatch.undo()
    last = asyncio.ensure_future(line.call("ECHO", "last"))
    valkey.client.rpush("queue", "job")
    assert (await first, await last) == ([b"queue", b"job"], b"last")
