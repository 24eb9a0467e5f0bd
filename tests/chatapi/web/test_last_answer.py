"""How a connection ends behind its last answer, which arrives while its client still sends."""

import time
from collections.abc import Iterator

import pytest

from chatapi.web.server.http_connection import LINGER_SECONDS
from tests.chatapi.web.probe_process import Client, Probe, running

LATE_BYTES = 300_000
"""An answer that the kernel takes while its client reads nothing."""


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """Yield a process with the usual limits."""
    with running() as probe:
        yield probe


def test_a_client_that_still_sends_and_reads_late_gets_the_whole_last_answer(probe: Probe) -> None:
    """A closed socket would answer incoming bytes with a reset, which destroys the unsent rest in
    the kernel.
    """
    with probe.client(receive_buffer_bytes=4096) as client:
        client.get(f"/flood?watch=late&bytes={LATE_BYTES}", "Connection: close")
        assert probe.ask("/report?watch=late")["end"] == "finished"
        for _ in range(5):
            time.sleep(LINGER_SECONDS / 4)
            client.send(b"x" * 1_000)
        response = client.response()
        assert response.is_whole
        assert len(response.body) >= LATE_BYTES
        assert client.is_hung_up()


def test_a_client_that_never_closes_an_ended_connection_is_cut_off(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/", "Connection: close")
        assert client.response().status == 200
        assert client.is_hung_up()
        with pytest.raises(ConnectionError):
            send_forever(client)


def send_forever(client: Client) -> None:
    while True:
        client.send(b"x")
        time.sleep(0.05)
