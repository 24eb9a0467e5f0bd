"""Whether a connection stays open behind an answer, and what may come behind a request."""

from collections.abc import Iterator

import pytest

from tests.chatapi.web.probe_process import Probe, post, running


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """Yield a process that does not wait long for a request to arrive."""
    with running(body_timeout_seconds=0.5) as probe:
        yield probe


def test_an_empty_line_behind_a_body_is_no_request_that_must_go_on(probe: Probe) -> None:
    """RFC 9112 section 2.2 allows the line."""
    with probe.client() as client:
        client.send(post(b"abc") + b"\r\n")
        assert client.response().status == 200
        assert not client.has_bytes(within_seconds=1.5)
        client.get("/")
        assert client.response().status == 200


@pytest.mark.parametrize(
    "lines",
    [
        ["Connection: close"],
        ["Connection: close, TE"],
        ["Connection: Keep-Alive,close"],
        ["Connection: TE", "Connection: Close"],
    ],
)
def test_a_client_may_ask_for_the_end_in_any_form_of_a_list(probe: Probe, lines: list[str]) -> None:
    with probe.client() as client:
        client.get("/", *lines)
        response = client.response()
        assert response.headers["connection"] == "close"
        assert client.is_hung_up()


@pytest.mark.parametrize("line", ["Connection: keep-alive", "Connection: closed", "X-Connection: close"])
def test_a_client_that_does_not_ask_for_the_end_may_go_on(probe: Probe, line: str) -> None:
    with probe.client() as client:
        for _ in range(2):
            client.get("/", line)
            assert "connection" not in client.response().headers
