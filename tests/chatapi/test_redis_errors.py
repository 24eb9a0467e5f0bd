"""`RedisError` is the one error of Redis: for each kind of failure, from each kind of client."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import uvloop
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import redis_sentinel, redis_time_limit
from accounts.redis_time_limit import in_time
from chatapi.delta_stream import StreamUnavailable
from chatapi.redis_client import (
    DedicatedConnection,
    UnreadableURL,
    connect,
    connect_from_thread,
    url_errors,
)
from chatapi.transports.redis_stream import RedisStream
from tests.chaos_proxy import Blackhole, ChaosProxy, DropReplyOnce
from tests.chatapi.worker.processes import Valkey
from tests.installation import free_port

ROUNDS = 40
WAIT_S = 0.2


@pytest.fixture
def proxy(shared_valkey: Valkey) -> Iterator[ChaosProxy]:
    with ChaosProxy(Path(shared_valkey.socket)) as proxy:
        yield proxy


class Refusal(BaseRequestHandler):
    """Answers the first bytes of a TLS client as a server without TLS does."""

    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(b"-ERR Protocol error\r\n")


@pytest.fixture
def plain_port() -> Iterator[int]:
    with ThreadingTCPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def run(main: Callable[[Redis], Awaitable[None]], url: str) -> None:
    """Run `main` with a client on the event loop that the processes have."""

    async def with_client() -> None:
        redis = connect(url)
        try:
            await main(redis)
        finally:
            await redis.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(with_client())


def ask_by_client(url: str) -> None:
    async def ask(redis: Redis) -> None:
        async with in_time():
            await redis.ping()

    run(ask, url)


def ask_by_dedicated_connection(url: str) -> None:
    async def ask(redis: Redis) -> None:
        await DedicatedConnection(redis).call("PING")

    run(ask, url)


def ask_from_thread(url: str) -> None:
    with connect_from_thread(url, timeout_s=WAIT_S) as redis:
        redis.ping()


each_client = pytest.mark.parametrize("ask", [ask_by_client, ask_by_dedicated_connection, ask_from_thread])


@each_client
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:{closed}",
        "redis://name.invalid:6379",
        "rediss://127.0.0.1:{plain}",
        "unix:///nowhere",
        "redis+sentinel://127.0.0.1:{closed}/main",
        "redis+sentinel://name.invalid/main",
        "rediss+sentinel://127.0.0.1:{plain}/main",
    ],
)
def test_a_server_that_cannot_be_connected(plain_port: int, url: str, ask: Callable[[str], None]) -> None:
    with pytest.raises(RedisConnectionError):
        ask(url.format(closed=free_port(), plain=plain_port))


@each_client
@pytest.mark.parametrize("request_bytes", [b"HELLO", b"PING"])
def test_a_server_that_resets_instead_of_an_answer(
    proxy: ChaosProxy, request_bytes: bytes, ask: Callable[[str], None]
) -> None:
    proxy.fault = DropReplyOnce(request_bytes)
    with pytest.raises(RedisConnectionError):
        ask(proxy.redis_url)
    ask(proxy.redis_url)


@each_client
def test_a_sentinel_that_resets_instead_of_an_answer(proxy: ChaosProxy, ask: Callable[[str], None]) -> None:
    proxy.fault = DropReplyOnce(b"GET-MASTER-ADDR-BY-NAME")
    with pytest.raises(RedisConnectionError, match="no sentinel knows the primary main"):
        ask(f"redis+sentinel://127.0.0.1:{proxy.port}/main")


@each_client
def test_a_server_that_does_not_answer(
    proxy: ChaosProxy, ask: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", WAIT_S)
    proxy.fault = Blackhole()
    with pytest.raises(RedisTimeoutError):
        ask(proxy.redis_url)


@each_client
def test_a_sentinel_that_does_not_answer(
    proxy: ChaosProxy, ask: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_sentinel, "SENTINEL_TIMEOUT_S", WAIT_S)
    proxy.fault = Blackhole()
    reason = rf"no sentinel knows the primary main \(127.0.0.1:{proxy.port}: does not answer\)"
    with pytest.raises(RedisConnectionError, match=reason):
        ask(f"redis+sentinel://127.0.0.1:{proxy.port}/main")


@pytest.mark.parametrize("way", ["client", "dedicated connection"])
def test_a_connection_that_is_reset_between_two_commands(proxy: ChaosProxy, way: str) -> None:
    async def ask_again_and_again(redis: Redis) -> None:
        answers, line = 0, DedicatedConnection(redis)
        for _ in range(ROUNDS):
            try:
                if way == "client":
                    async with in_time():
                        await redis.ping()
                else:
                    await line.call("PING")
            except RedisError:
                continue
            answers += 1
            await asyncio.to_thread(proxy.reset)
        assert answers > ROUNDS / 4, "every reset costs at most a few attempts"

    run(ask_again_and_again, proxy.redis_url)


def test_a_write_to_a_connection_that_uvloop_has_closed(proxy: ChaosProxy) -> None:
    async def write(redis: Redis) -> None:
        async with in_time():
            connection = await redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection._writer.transport.abort()
        while not connection._reader.at_eof():
            await asyncio.sleep(0)
        with pytest.raises(RedisConnectionError):
            async with in_time():
                await connection.send_command("PING")

    run(write, proxy.redis_url)


def test_a_listener_whose_connection_is_reset(proxy: ChaosProxy) -> None:
    async def listen_again_and_again(redis: Redis) -> None:
        stream = RedisStream(redis, "resets:", url=proxy.redis_url, ttl_ms=1_000)
        for number in range(ROUNDS // 4):
            listening = asyncio.ensure_future(anext(stream.cancellations(f"worker-{number}")))
            # It may fail at once, with the connection that the last round has reset.
            while not (listening.done() or await is_connected(stream, f"worker-{number}")):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(proxy.reset)
            with pytest.raises(StreamUnavailable):
                await listening

    async def is_connected(stream: RedisStream, worker: str) -> bool:
        try:
            return worker in await stream.connected_workers()
        except StreamUnavailable:
            return False

    run(listen_again_and_again, proxy.redis_url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hun/ter2@127.0.0.1:1",
        "redis://127.0.0.1:1?hunter2=1",
        "redis://hunter2..invalid",
        "redis://:hunter2@127.0.0.1:1?retry=5",
    ],
)
def test_a_url_that_cannot_be_read_is_not_in_the_text(url: str) -> None:
    with pytest.raises(UnreadableURL) as raised, url_errors():
        ask_from_thread(url)
    assert "hun" not in str(raised.value)
    assert isinstance(raised.value, RedisError)


async def test_a_bug_does_not_look_like_a_redis_that_is_away() -> None:
    for bug in (RuntimeError("read() called while another coroutine reads"), NotImplementedError()):
        with pytest.raises(type(bug)):
            async with in_time():
                raise bug
