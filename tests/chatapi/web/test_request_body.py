"""How a large body reaches the application: in pieces, as fast as it takes them, and not at all if it does
not want them.
"""

import json
import time
from collections.abc import Iterator

import pytest

from tests.chatapi.web.probe_process import MEGABYTE, Client, Probe, post, running

PIECE_BYTES = 64 * 1024
MORE_THAN_SOCKETS_BUFFER = 30 * MEGABYTE
CHUNKED = "POST {} HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """Yield a process whose body cap is above what the sockets between us buffer."""
    with running(max_body_bytes=100 * MEGABYTE) as probe:
        yield probe


@pytest.fixture(scope="module")
def impatient_probe() -> Iterator[Probe]:
    """Yield a process that gives up soon on bodies that do not arrive."""
    with running(body_timeout_seconds=0.5, max_body_bytes=MEGABYTE) as probe:
        yield probe


def test_a_small_body_is_one_message(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(bytes(PIECE_BYTES - 1), length=PIECE_BYTES, target="/pieces?watch=small&first=9"))
        client.send(b"x")
        assert json.loads(client.response().body) == [PIECE_BYTES]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_comes_in_bounded_pieces(probe: Probe, is_chunked: bool) -> None:
    target, size = f"/pieces?watch=large-{is_chunked}&first=999", 3 * MEGABYTE
    with probe.client() as client:
        for _ in range(2):  # the connection is as good as before
            if is_chunked:
                client.send(
                    CHUNKED.format(target).encode() + b"%x\r\n" % size + bytes(size) + b"\r\n0\r\n\r\n"
                )
            else:
                client.send(post(bytes(size), target=target))
            pieces = json.loads(client.response().body)
    assert sum(pieces) == 2 * size
    assert max(pieces) <= 2 * PIECE_BYTES


def test_the_application_of_a_large_body_starts_before_the_body_has_come(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(b"beginning", length=MEGABYTE, target="/pieces?watch=early&first=1&answer=1"))
        response = client.response()
        assert json.loads(response.body) == [9]
        assert response.headers["connection"] == "close"
        assert client.is_hung_up()
    assert probe.ask("/report?watch=early")["end"] == "http.disconnect"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_nothing_is_read_that_the_application_does_not_take(probe: Probe, is_chunked: bool) -> None:
    watch, size = f"waiting-{is_chunked}", 2 * MORE_THAN_SOCKETS_BUFFER
    before_bytes = probe.peak_memory_bytes()
    with probe.client() as client:
        target = f"/pieces?watch={watch}&first=1"
        if is_chunked:
            client.send(CHUNKED.format(target).encode() + b"%x\r\n" % size)
        else:
            client.send(post(b"", length=size, target=target))
        assert client.sends_no_more_than(MORE_THAN_SOCKETS_BUFFER)
        assert probe.peak_memory_bytes() - before_bytes < MEGABYTE
        probe.ask(f"/go-on?watch={watch}")
    report = probe.ask(f"/report?watch={watch}")  # it reads, and sees that its client has left
    assert report["end"] == "disconnected"
    assert max(report["pieces"]) <= 2 * PIECE_BYTES


def test_a_client_is_invited_to_send_a_large_body_when_the_application_wants_it(probe: Probe) -> None:
    with probe.client() as client:
        client.send(
            post(b"", "Expect: 100-continue", length=MEGABYTE, target="/pieces?watch=invited&first=1")
        )
        assert not client.has_bytes(within_seconds=0.3)
        probe.ask("/go-on?watch=invited")
        assert client.head().status == 100
        client.send(bytes(MEGABYTE))
        assert sum(json.loads(client.response().body)) == MEGABYTE


def test_a_client_is_invited_to_send_a_small_body_at_once(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(b"", "Expect: 100-continue", length=5))
        assert client.head().status == 100
        client.send(b"abcde")
        assert json.loads(client.response().body)["body_bytes"] == 5


def test_an_answer_without_the_body_reaches_a_client_that_sends_it_all_first(probe: Probe) -> None:
    with probe.client() as client:
        client.send(
            post(bytes(20 * MEGABYTE), length=20 * MEGABYTE, target="/pieces?watch=deaf&first=1&answer=1")
        )
        assert client.response().status == 200
        assert client.is_hung_up()


def test_a_client_that_sends_for_ever_behind_an_answer_is_cut_off() -> None:
    with running(max_body_bytes=100 * MEGABYTE, max_linger_bytes=MEGABYTE) as probe, probe.client() as client:
        client.send(post(b"", length=99 * MEGABYTE, target="/pieces?watch=deaf&first=1&answer=1"))
        assert client.sends_no_more_than(MORE_THAN_SOCKETS_BUFFER)


def test_time_in_which_the_application_does_not_read_is_not_the_clients(impatient_probe: Probe) -> None:
    with impatient_probe.client() as client:
        client.send(post(bytes(500_000), length=MEGABYTE, target="/pieces?watch=patient&first=1"))
        time.sleep(1)
        impatient_probe.ask("/go-on?watch=patient")
        client.send(bytes(500_000))
        assert sum(json.loads(client.response().body)) == MEGABYTE


def test_a_large_body_that_stops_coming_is_refused(impatient_probe: Probe) -> None:
    with impatient_probe.client() as client:
        client.send(post(bytes(200_000), length=MEGABYTE, target="/pieces?watch=stops&first=999"))
        assert client.response().error["code"] == "request_timeout"
        assert client.is_hung_up()
    assert impatient_probe.ask("/report?watch=stops")["end"] == "disconnected"


def test_a_large_body_that_grows_over_the_cap_is_refused(impatient_probe: Probe) -> None:
    with impatient_probe.client() as client:
        client.send(CHUNKED.format("/pieces?watch=grows&first=999").encode())
        send_until_answered(client, b"10000\r\n" + bytes(0x10000) + b"\r\n")
        assert client.response().error["code"] == "request_too_large"
        assert client.is_hung_up()
    assert impatient_probe.ask("/report?watch=grows")["end"] == "disconnected"


def send_until_answered(client: Client, data: bytes) -> None:
    while not client.has_bytes(within_seconds=0):
        client.send(data)
