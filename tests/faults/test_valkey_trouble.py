"""Valkey pauses, is full, or loses everything while it runs; and one that keeps its data dies."""

import json
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from chatapi.serving import embedded_valkey
from chatapi.wire.sse import Parser
from tests.chatapi.http_client import Answer, Client, Exchange
from tests.fake_completion import WORDS
from tests.faults.conftest import Ask
from tests.installation import Installation, answers, wait_for

pytestmark = [pytest.mark.xdist_group("valkey-trouble"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "20000"}
"""Longer than a worker needs to start."""


@pytest.fixture
def keeping_valkey(installation: Installation) -> None:
    """Start a Valkey that writes its commands to disk."""
    installation.end("valkey")
    start_keeping_valkey(installation)


def start_keeping_valkey(installation: Installation, how_soon: str = "always") -> None:
    command = [
        *embedded_valkey.command(installation.folder),
        "--appendonly",
        "yes",
        "--appendfsync",
        how_soon,
    ]
    # A write beyond what a file may have is to fail, as on a full disk, and not to kill.
    installation.run("valkey", ["sh", "-c", 'trap "" XFSZ; exec "$@"', "sh", *command])
    # The web process remembers its last check for a moment and may say "ready" too early.
    wait_for(lambda: answers(embedded_valkey.socket_path(installation.folder)), "Valkey")
    wait_for(lambda: installation.get("/readyz")[0] == 200, "the web process")


@contextmanager
def full(valkey: Redis) -> Iterator[None]:
    """Fill Valkey, so that it accepts no more writes."""
    valkey.config_set("maxmemory", 1)
    try:
        yield
    finally:
        valkey.config_set("maxmemory", f"{embedded_valkey.MAX_MEMORY_MIB}mb")


def test_after_a_pause_every_delta_comes_once(installation: Installation, ask: Ask, valkey: Redis) -> None:
    answer = ask("two-seconds").heard(10)
    valkey.client_pause(1_900, all=True)  # longer than a lease, shorter than anyone waits for an answer
    assert (answer.end().words, answer.ends, answer.is_done) == ((WORDS * 5)[:100], 1, True)
    assert installation.receipt(answer.generation_id)["outcome"] == "completed"


def test_a_pause_that_is_too_long_is_an_error(installation: Installation, ask: Ask, valkey: Redis) -> None:
    answer = ask("steady").heard(10)
    valkey.client_pause(15_000, all=True)
    paused_at = time.monotonic()
    answer.end()
    assert answer.ended_at - paused_at < 12
    assert (answer.error["code"], answer.ends, answer.is_done) == ("stream_unavailable", 1, True)
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=20, pause_s=0.2)


def test_a_frozen_valkey_keeps_no_new_request_waiting(installation: Installation, ask: Ask) -> None:
    client = Client(installation.url, installation.keys["live"])
    requests = {
        "/v1/responses": {"model": "five", "input": "hello"},
        "/v1/chat/completions/tickets": {"model": "five", "messages": [{"role": "user", "content": "hello"}]},
    }
    assert ask("five").end().is_done
    installation.send("valkey", signal.SIGSTOP)
    try:
        for path, body in requests.items():
            began_at = time.monotonic()
            refused = client.send("POST", path, json.dumps(body).encode())
            assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
            assert time.monotonic() - began_at < 5
    finally:
        installation.send("valkey", signal.SIGCONT)
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=20, pause_s=0.2)


def test_a_full_valkey_takes_no_new_request_and_nothing_is_held(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    with full(valkey):
        refused = ask("five").end()
    assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
    budgets = installation.get("/v1/key", installation.keys["live"])[1]["budgets"]
    assert {budget["pending_nanodollars"] for budget in budgets} <= {0}
    assert ask("five").end().is_done


def test_a_valkey_that_becomes_full_in_mid_stream_ends_it_with_an_error(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    answer = ask("steady").heard(10)
    with full(valkey):
        answer.end()
    assert (answer.error["code"], answer.ends, answer.is_done) == ("stream_unavailable", 1, True)
    receipt = installation.receipt(answer.generation_id)
    assert (
        len(answer.words)
        <= receipt["usage"]["completion_tokens"]
        <= installation.calls("steady")[-1]["tokens"]
    )
    assert ask("five").end().is_done


def test_a_client_that_has_the_deltas_ends_well_though_valkey_loses_them(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    answer = ask("two-seconds").heard(10)
    valkey.flushall()
    assert answer.end().is_done
    assert answer.ends == 1
    if "error" not in answer.chunks[-1]:
        assert answer.words == (WORDS * 5)[:100]


def test_without_valkey_and_the_worker_the_last_heartbeat_tells_what_to_charge(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    installation.revive()
    answer = ask("steady").heard(70)
    installation.end("worker")
    valkey.flushall()
    answer.end()
    assert (answer.ends, answer.is_done) == (1, True)
    receipt = installation.receipt(answer.generation_id)
    assert (receipt["outcome"], receipt["usage_source"]) == ("worker_lost", "counted")
    assert 25 <= receipt["usage"]["completion_tokens"] <= installation.calls("steady")[-1]["tokens"]


def test_a_resumed_stream_ends_though_valkey_and_the_worker_are_lost(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    """The client may have any number of events that nobody else has any more."""
    installation.revive()
    answer = ask("steady").heard(70)
    path = f"/openai/v1/generations/{answer.generation_id}/stream"
    positions = ("1", "1-1", "1-2", "2-1", "60-1")

    def resume(position: str) -> Answer:
        client = Client(installation.url, installation.keys["live"])
        return client.send("GET", path, last_event_id=position)

    installation.end("worker")
    valkey.flushall()
    lost_at = time.monotonic()
    with ThreadPoolExecutor() as clients:
        waiting = [*clients.map(resume, positions)]
    assert time.monotonic() - lost_at < 8
    assert installation.receipt(answer.generation_id)["outcome"] == "worker_lost"
    for resumed in [*waiting, *map(resume, positions)]:
        assert resumed.status == 200, resumed.body
        assert resumed.body.count(b'"code":"worker_lost"') == resumed.body.count(b"data: [DONE]") == 1


def test_a_resumed_stream_ends_though_valkey_comes_back_with_older_data(
    installation: Installation, valkey: Redis
) -> None:
    installation.revive()
    client = Client(installation.url, installation.keys["live"], timeout_s=30)
    body = {"model": "steady", "input": "hello", "background": True}
    public_id = client.send("POST", "/v1/responses", json.dumps(body).encode()).json["id"]

    def read_on(behind: int) -> list[dict[str, Any]]:
        answer = client.send("GET", f"/v1/responses/{public_id}?stream=true&starting_after={behind}")
        assert answer.status == 200, answer.body
        return [json.loads(event.data) for event in Parser().feed(answer.body)]

    with client.exchange("GET", f"/v1/responses/{public_id}?stream=true", None, {}) as reading:
        numbers = numbers_of(reading)
        wait_for(lambda: next(numbers) == 20, "20 events", pause_s=0)
        older = {key: content for key in valkey.scan_iter("*") if (content := valkey.dump(key))}
        wait_for(lambda: next(numbers) == 70, "70 events", pause_s=0)
        installation.end("worker")
    valkey.flushall()
    for key, content in older.items():
        valkey.restore(key, 60_000, content)
    lost_at = time.monotonic()
    assert [event["type"] for event in read_on(70)] == ["response.failed"]
    assert time.monotonic() - lost_at < 8
    assert installation.receipt(public_id)["outcome"] == "worker_lost"
    last = read_on(0)[-1]["sequence_number"]
    assert 20 < last < 70
    for behind in (last - 1, last, last + 1, 70):
        assert read_on(behind)[-1]["type"] == "response.failed"
    for position in ("20-1", "21-1", "60-1"):
        path = f"/v1/generations/{public_id}/stream"
        resumed = client.send("GET", path, last_event_id=position)
        assert resumed.body.count(b'"type":"response.failed"') == 1, resumed.body


def numbers_of(exchange: Exchange) -> Iterator[int]:
    """Yield the number of each event as it comes."""
    while line := exchange.response.readline():
        if line.startswith(b"data: "):
            yield json.loads(line[6:])["sequence_number"]


def test_what_is_queued_in_a_valkey_that_keeps_its_data_outlives_it(
    installation: Installation, ask: Ask, valkey: Redis, keeping_valkey: None
) -> None:
    installation.end("worker")
    jobs_before = set(valkey.scan_iter("*job:*"))  # requests of other tests
    answer = ask("five")
    wait_for(lambda: not jobs_before.issuperset(valkey.scan_iter("*job:*")), "the request to be queued")
    installation.end("valkey")
    start_keeping_valkey(installation)
    installation.start_worker()
    assert answer.end().words == WORDS[:5]
    assert installation.receipt(answer.generation_id)["outcome"] == "completed"


def test_a_stream_goes_on_when_a_valkey_that_keeps_its_data_comes_back(
    installation: Installation, ask: Ask, keeping_valkey: None
) -> None:
    answer = ask("two-seconds").heard(10)
    installation.end("valkey")
    start_keeping_valkey(installation)
    assert (answer.end().words, answer.ends, answer.is_done) == ((WORDS * 5)[:100], 1, True)
    assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == 100


def test_a_valkey_whose_disk_is_full_takes_no_request_until_there_is_room_again(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    installation.end("valkey")
    start_keeping_valkey(installation, "everysec")
    pid = installation.processes["valkey"].pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    wait_for(lambda: not takes_a_write(valkey), "Valkey to notice", pause_s=0.1)
    refused = ask("five").end()
    assert (refused.status, refused.ends) == (503, 1)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_for(lambda: takes_a_write(valkey), "Valkey to recover", pause_s=0.1)
    installation.end("worker")  # the refusal ends it, and its supervisor starts it again
    installation.start_worker()
    wait_for(lambda: ask("five").end().is_done, "service", pause_s=0.2)


def takes_a_write(valkey: Redis) -> bool:
    try:
        return bool(valkey.set("probe", "1", px=1_000))
    except ResponseError:
        return False
