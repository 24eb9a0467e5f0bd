"""How the web server stops: what has begun may end in its time, and nothing new begins."""

import json
import signal
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.chatapi.web.probe_process import MEGABYTE, Client, Probe, post, running


@dataclass
class Drain:
    """A process that has been told to stop while it had one client of each kind."""

    probe: Probe
    idle: Client
    streaming: Client
    sending: Client
    websocket: Client


@pytest.fixture(scope="module")
def drain() -> Iterator[Drain]:
    with running(drain_seconds=600) as probe, ExitStack() as stack:
        drain = Drain(probe, *(stack.enter_context(probe.client()) for _ in range(4)))
        drain.idle.get("/")
        assert drain.idle.response().status == 200
        drain.streaming.get("/ticks?watch=running&count=30&every=0.02")
        assert drain.streaming.head().status == 200
        drain.sending.send(post(b"half", length=8))
        drain.websocket.open_websocket()  # the last of four to send, so the server has read the half as well
        probe.signal(signal.SIGTERM)
        assert probe.next_event() == "draining"
        yield drain


def test_a_drain_refuses_new_connections(drain: Drain) -> None:
    with pytest.raises(ConnectionRefusedError):
        drain.probe.client()


def test_a_drain_closes_idle_connections(drain: Drain) -> None:
    assert drain.idle.is_hung_up()


def test_a_drain_lets_a_stream_finish(drain: Drain) -> None:
    chunks = list(iter(drain.streaming.chunk, b""))
    assert len(chunks) == 31
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert drain.streaming.is_hung_up()


def test_a_drain_answers_a_request_that_had_begun_as_the_last_of_its_connection(drain: Drain) -> None:
    drain.sending.send(b"half")
    response = drain.sending.response()
    assert json.loads(response.body)["body_bytes"] == 8
    assert response.headers["connection"] == "close"
    assert drain.sending.is_hung_up()


def test_a_drain_tells_websockets_that_the_server_goes_away(drain: Drain) -> None:
    assert drain.websocket.file.read(4) == b"\x88\x02" + struct.pack("!H", 1001)
    assert drain.websocket.is_hung_up()


def test_a_drain_lets_an_answer_arrive_whose_client_sends_the_next_request() -> None:
    with running(drain_seconds=600) as probe, probe.client(receive_buffer_bytes=4096) as client:
        client.get("/flood?watch=answered&bytes=300000")
        assert probe.ask("/report?watch=answered")["end"] == "finished"
        probe.signal(signal.SIGTERM)
        assert probe.next_event() == "draining"
        client.get("/")
        response = client.response()
        assert response.is_whole
        assert len(response.body) >= 300_000
        assert client.is_hung_up()


def test_endless_streams_are_asked_to_end_and_the_process_ends_with_the_last() -> None:
    with running(drain_seconds=600, farewell_seconds=599.8) as probe, probe.client() as client:
        client.get("/ticks?watch=endless&count=1000000&every=60")
        assert client.head().status == 200
        probe.signal(signal.SIGTERM)
        assert [probe.next_event(), probe.next_event()] == ["draining", "deadline"]
        assert list(iter(client.chunk, b""))[-1] == b"data: [DONE]\n\n"
        assert probe.process.wait(10) == 0


def test_what_does_not_end_in_time_is_cut() -> None:
    with running(drain_seconds=0.2, farewell_seconds=0) as probe, probe.client(receive_buffer_bytes=4096) as client:
        client.get(f"/flood?watch=deaf&bytes={100 * MEGABYTE}")
        assert client.head().status == 200
        probe.signal(signal.SIGTERM)
        assert probe.process.wait(10) == 0


def test_a_second_signal_stops_at_once() -> None:
    with running(drain_seconds=600) as probe, probe.client() as client:
        client.get("/ticks?watch=endless&count=1000000&every=60")
        assert client.head().status == 200
        probe.signal(signal.SIGINT)
        assert probe.next_event() == "draining"
        probe.signal(signal.SIGTERM)
        assert probe.process.wait(10) == 0
