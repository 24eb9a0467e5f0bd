"""Connections that break, stall or lose an answer: between a worker or web and Valkey, and between a client
and web.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import pytest
import uvloop

from chatapi.delta_stream import StreamUnavailable
from chatapi.redis_client import connect
from chatapi.serving import embedded_valkey
from chatapi.transports.redis_stream import RedisStream
from tests.chaos_proxy import Blackhole, ChaosProxy, DropReplyOnce, Pass, Stall, Throttle
from tests.fake_completion import WORDS
from tests.faults.conftest import Ask
from tests.faults.listener import Listener
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("broken-connections"), pytest.mark.timeout(120)]

NOBODY = UUID(int=0)
HUNDRED_WORDS = (WORDS * 5)[:100]


@pytest.fixture
def to_valkey(installation: Installation) -> Iterator[ChaosProxy]:
    """Stand between our processes and Valkey."""
    with ChaosProxy(embedded_valkey.socket_path(installation.folder)) as proxy:
        yield proxy
        for name in ("web", "worker"):
            installation.end(name)


@pytest.fixture
def worker_behind(installation: Installation, to_valkey: ChaosProxy) -> ChaosProxy:
    """Have the worker publish through the proxy; its tasks come directly."""
    installation.replace("worker", "manage.py", CHATAPI_STREAMS_URL=to_valkey.redis_url)
    return to_valkey


@pytest.fixture
def web_behind(installation: Installation, to_valkey: ChaosProxy) -> ChaosProxy:
    """Have the web process enqueue and read through the proxy."""
    installation.replace("web", "manage.py", REDIS_URL=to_valkey.redis_url)
    return to_valkey


@pytest.fixture
def to_web(installation: Installation) -> Iterator[ChaosProxy]:
    """Stand between a client and the web process."""
    with ChaosProxy(installation.port) as proxy:
        yield proxy


def ask_through(proxy: ChaosProxy, installation: Installation, model: str) -> Listener:
    return Listener(installation, model, url=proxy.url)


def assert_whole(answer: Listener, installation: Installation, calls: int) -> None:
    """Check that there is every word once, one end, one call and one charge."""
    assert (answer.words, answer.ends, answer.is_done) == (HUNDRED_WORDS, 1, True)
    assert "error" not in answer.chunks[-1]
    assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == 100
    assert len(installation.calls("two-seconds")) == calls + 1


def test_a_connection_that_is_reset_is_a_redis_that_is_away_and_nothing_else(
    installation: Installation,
) -> None:
    async def ask_again_and_again(proxy: ChaosProxy) -> None:
        redis = connect(proxy.redis_url)
        stream = RedisStream(redis, "resets:", url=proxy.redis_url, ttl_ms=1_000)
        answers = 0
        for _ in range(40):
            with suppress(StreamUnavailable):
                assert not await stream.cancelled_among([NOBODY])
                answers += 1
                await asyncio.to_thread(proxy.reset)
        assert answers >= 10, "every reset costs at most a few attempts"
        await redis.aclose()

    with (
        ChaosProxy(embedded_valkey.socket_path(installation.folder)) as proxy,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(ask_again_and_again(proxy))


def test_a_worker_whose_connection_breaks_publishes_every_delta_once(
    installation: Installation, ask: Ask, worker_behind: ChaosProxy
) -> None:
    calls = len(installation.calls("two-seconds"))
    answer = ask("two-seconds").heard(10)
    worker_behind.reset()
    answer.heard(40)
    worker_behind.reset()
    assert_whole(answer.end(), installation, calls)


def test_a_delta_whose_confirmation_is_lost_is_published_once(
    installation: Installation, ask: Ask, worker_behind: ChaosProxy
) -> None:
    calls = len(installation.calls("two-seconds"))
    answer = ask("two-seconds").heard(10)
    worker_behind.fault = DropReplyOnce(b"EVALSHA")
    wait_for(lambda: worker_behind.has_recovered, "the loss")
    assert_whole(answer.end(), installation, calls)


def test_a_worker_whose_connection_stalls_loses_nothing(
    installation: Installation, ask: Ask, worker_behind: ChaosProxy
) -> None:
    calls = len(installation.calls("two-seconds"))
    answer = ask("two-seconds").heard(10)
    worker_behind.fault = Stall()
    time.sleep(1.9)  # longer than a lease, shorter than the worker waits for an answer
    worker_behind.fault = Pass()
    assert_whole(answer.end(), installation, calls)


def test_a_worker_that_cannot_publish_gives_up_and_the_client_gets_an_error(
    installation: Installation, ask: Ask, worker_behind: ChaosProxy
) -> None:
    answer = ask("steady").heard(10)
    worker_behind.fault = Blackhole()
    answer.end()
    assert (answer.error["code"], answer.ends, answer.is_done) == ("stream_unavailable", 1, True)
    receipt = installation.receipt(answer.generation_id)
    assert (
        len(answer.words)
        <= receipt["usage"]["completion_tokens"]
        <= installation.calls("steady")[-1]["tokens"]
    )
    worker_behind.fault = Pass()


def test_a_request_whose_queueing_is_not_confirmed_runs_once_or_costs_nothing(
    installation: Installation, ask: Ask, web_behind: ChaosProxy
) -> None:
    calls = len(installation.calls("five"))
    web_behind.fault = DropReplyOnce(b"ZADD")
    answer = ask("five").end()
    assert web_behind.has_recovered
    assert answer.ends == 1
    sent = len(installation.calls("five")) - calls
    assert sent <= 1
    assert sent == 1 or answer.status == 503


def test_a_web_process_whose_connection_breaks_misses_no_delta(
    installation: Installation, ask: Ask, web_behind: ChaosProxy
) -> None:
    calls = len(installation.calls("two-seconds"))
    answer = ask("two-seconds").heard(10)
    web_behind.reset()
    assert_whole(answer.end(), installation, calls)


@pytest.mark.parametrize("way", ["reset", "half_close"])
def test_a_client_whose_connection_ends_has_left(
    installation: Installation, to_web: ChaosProxy, way: str
) -> None:
    answer = ask_through(to_web, installation, "steady").heard(10)
    getattr(to_web, way)()
    broken_at = time.time()
    wait_for(
        lambda: installation.calls("steady")[-1]["is_peer_gone"], "the upstream to be cut off", timeout_s=10
    )
    assert installation.calls("steady")[-1]["closed_at"] - broken_at < 2
    receipt = installation.receipt(answer.end().generation_id)
    assert receipt["outcome"] == "client_cancelled"
    assert (
        len(answer.words)
        <= receipt["usage"]["completion_tokens"]
        <= installation.calls("steady")[-1]["tokens"]
    )


def test_a_slow_client_gets_every_word_and_others_are_served(
    installation: Installation, ask: Ask, to_web: ChaosProxy
) -> None:
    calls = len(installation.calls("two-seconds"))
    to_web.fault = Throttle(3_000)
    slow = ask_through(to_web, installation, "two-seconds").heard(10)
    assert ask("five").end().is_done
    assert len(slow.words) < 100
    assert_whole(slow.end(), installation, calls)
