"""How the web server stops: first it serves on and says so, then what has begun may end in its time, and
nothing new begins.
"""

import json
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.chatapi.web.probe_process import MEGABYTE, Client, Probe, post, running


@dataclass
class Drain:
    """A process that was to stop while it had one client of each kind."""

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
        connect_forever(drain.probe)


def connect_forever(probe: Probe) -> None:
    while True:
        probe.client().__exit__()


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


@contextmanager
def stopping(probe: Probe, number: int = signal.SIGTERM) -> Iterator[None]:
    """Tells the process to stop, and at the end once more, so that it does not wait any longer."""
    probe.signal(number)
    assert probe.next_event() == "draining"
    yield
    probe.signal(signal.SIGTERM)


def assert_last_answer(client: Client) -> None:
    """Check that the client's next request is answered, and that the connection ends."""
    client.get("/")
    response = client.response()
    assert response.status == 200
    assert response.headers["connection"] == "close"
    assert client.is_hung_up()


def test_a_lame_duck_serves_all_and_says_that_it_ends() -> None:
    with (
        running(lame_duck_seconds=599, drain_seconds=600, idle_grace_seconds=0) as probe,
        ExitStack() as stack,
    ):
        kept, sending, fresh, late, websocket = (stack.enter_context(probe.client()) for _ in range(5))
        kept.get("/")
        assert kept.response().status == 200
        sending.send(post(b"half", length=8))
        websocket.open_websocket()
        with stopping(probe):
            assert_last_answer(fresh)
            time.sleep(1)  # idle connections stay, as they might be used
            assert_last_answer(kept)
            sending.send(b"half")
            assert sending.response().headers["connection"] == "close"
            assert_last_answer(late)
            assert_last_answer(stack.enter_context(probe.client()))
            websocket.send(b"\x81\x82\x00\x00\x00\x00hi")
            assert websocket.file.read(4) == b"\x81\x02hi"


def test_a_connection_whose_stream_ends_in_the_drain_takes_one_more_request() -> None:
    """The head of the stream could not announce the end of the connection, so the client may be writing a
    request.
    """
    with running(drain_seconds=600, idle_grace_seconds=599) as probe, probe.client() as client:
        client.get("/ticks?watch=stream&count=2&every=0.3")
        assert client.head().status == 200
        with stopping(probe):
            assert list(iter(client.chunk, b""))[-1] == b"data: [DONE]\n\n"
            time.sleep(0.5)
            assert_last_answer(client)


def test_a_next_request_that_is_sent_behind_a_large_answer_is_answered_too() -> None:
    with running(drain_seconds=600) as probe, probe.client(receive_buffer_bytes=4096) as client:
        client.get("/flood?watch=answered&bytes=300000")
        assert probe.ask("/report?watch=answered")["end"] == "finished"
        with stopping(probe):
            client.get("/")
            response = client.response()
            assert response.is_whole
            assert len(response.body) >= 300_000
            assert client.response().headers["connection"] == "close"
            assert client.is_hung_up()


def test_an_idle_connection_is_closed_when_its_client_has_been_silent_for_a_while() -> None:
    with running(drain_seconds=600, idle_grace_seconds=1) as probe, probe.client() as client:
        began = time.monotonic()
        client.get("/")
        assert client.response().status == 200
        with stopping(probe):
            assert client.is_hung_up()
            assert time.monotonic() - began > 0.9


def test_a_client_that_connected_before_the_listening_socket_closes_is_served() -> None:
    with running(drain_seconds=600) as probe, ExitStack() as stack:
        probe.ask("/")
        probe.signal(signal.SIGSTOP)
        clients = [stack.enter_context(probe.client()) for _ in range(100)]
        for client in clients[:50]:
            client.get("/")
        probe.signal(signal.SIGTERM)
        probe.signal(signal.SIGCONT)
        for client in clients[50:]:
            client.get("/")
        for client in clients:
            response = client.response()
            assert (response.status, response.headers["connection"]) == (200, "close")
        assert probe.process.wait(10) == 0


def test_a_person_need_not_wait_for_load_balancers() -> None:
    with (
        running(lame_duck_seconds=599, drain_seconds=600, idle_grace_seconds=599) as probe,
        probe.client() as client,
    ):
        client.get("/")
        assert client.response().status == 200
        probe.signal(signal.SIGINT)
        assert client.is_hung_up()
        assert probe.process.wait(10) == 0


def test_endless_streams_are_asked_to_end_and_the_process_ends_with_the_last() -> None:
    with running(drain_seconds=600, farewell_seconds=599.8) as probe, probe.client() as client:
        client.get("/ticks?watch=endless&count=1000000&every=60")
        assert client.head().status == 200
        probe.signal(signal.SIGTERM)
        assert [probe.next_event(), probe.next_event()] == ["draining", "deadline"]
        assert list(iter(client.chunk, b""))[-1] == b"data: [DONE]\n\n"
        assert probe.process.wait(10) == 0


def test_what_does_not_end_in_time_is_cut() -> None:
    with (
        running(drain_seconds=0.2, farewell_seconds=0) as probe,
        probe.client(receive_buffer_bytes=4096) as client,
    ):
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
