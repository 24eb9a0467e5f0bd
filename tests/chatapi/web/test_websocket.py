"""The web server's WebSockets: a handshake, an echo, and what is none."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chatapi.web.probe_process import Client, Probe, running


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """Yield a process with the usual limits."""
    with running() as probe:
        yield probe


def test_websocket_works(probe: Probe) -> None:
    with probe.client() as client:
        client.open_websocket()
        client.send(b"\x81\x82\x00\x00\x00\x00hi")
        assert client.file.read(4) == b"\x81\x02hi"


@pytest.mark.parametrize("frame", [b"\x8a\x80\0\0\0\0", b"\x89\x80\0\0\0\0"], ids=["pong", "ping"])
def test_a_flood_of_tiny_frames_delays_nobody(probe: Probe, frame: bytes) -> None:
    """Frames are read 512 bytes at a time. With Twisted's 64 KiB another request waited for half a second
    each time.
    """
    with probe.client() as flooding, probe.client() as other:
        flooding.open_websocket()
        flood = threading.Thread(target=send_all, args=(flooding, frame * 100_000))
        flood.start()
        waits: list[float] = []
        for _ in range(50):  # all that is sent may be in the kernel's buffers already
            began = time.monotonic()
            other.get("/")
            assert other.response().status == 200
            waits.append(time.monotonic() - began)
        flooding.socket.shutdown(socket.SHUT_RDWR)
        flood.join()
    assert sorted(waits)[len(waits) // 2] < 0.15


def send_all(client: Client, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.send(data)


def test_a_client_that_sends_more_than_the_application_takes_is_cut_off(probe: Probe) -> None:
    with probe.client() as client:
        client.ask_for_websocket("/?watch=busy&busy=1")
        assert client.head().status == 101
        client.send(b"\x81\x81\0\0\0\0x" * 200)
        assert client.is_hung_up()


def test_a_large_message_is_refused(probe: Probe) -> None:
    with probe.client() as client:
        client.open_websocket()
        client.send(b"\x82\xff" + (70_000).to_bytes(8, "big") + bytes(4))
        assert client.is_hung_up()


def test_a_bad_handshake_is_a_json_error(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/", "Connection: Upgrade", "Upgrade: websocket", method="POST")
        response = client.response()
        assert response.status >= 400
        assert response.error["code"] == "invalid_request"
        assert client.is_hung_up()


def test_a_second_handshake_before_the_first_answer_gets_a_plain_server_error(
    probe: Probe,
) -> None:
    with probe.client() as client:
        client.ask_for_websocket("/?watch=handshake")
        probe.ask("/report?watch=handshake")  # the first one is with the application
        client.ask_for_websocket("/?watch=handshake")
        response = client.response()
        assert response.status == 500
        assert response.error["message"] == "The server had an error while processing the request."
