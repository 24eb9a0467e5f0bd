"""The web server's WebSockets: a handshake, an echo, and what is none."""

from collections.abc import Iterator

import pytest

from tests.chatapi.web.probe_process import Probe, running


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """A process with the usual limits."""
    with running() as probe:
        yield probe


def test_websocket_works(probe: Probe) -> None:
    with probe.client() as client:
        client.open_websocket()
        client.send(b"\x81\x82\x00\x00\x00\x00hi")
        assert client.file.read(4) == b"\x81\x02hi"


def test_a_bad_handshake_is_a_json_error(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/", "Connection: Upgrade", "Upgrade: websocket", method="POST")
        response = client.response()
        assert response.status >= 400
        assert response.error["code"] == "invalid_request"
        assert client.is_hung_up()


def test_a_second_handshake_before_the_first_ones_answer_is_told_nothing_of_what_is_inside(probe: Probe) -> None:
    with probe.client() as client:
        client.ask_for_websocket("/?watch=handshake")
        probe.ask("/report?watch=handshake")  # the first one is with the application
        client.ask_for_websocket("/?watch=handshake")
        response = client.response()
        assert response.status == 500
        assert response.error["message"] == "The server had an error while processing the request."
