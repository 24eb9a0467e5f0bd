"""Whether a connection stays open behind an answer, and what may come behind a request."""

from collections.abc import Iterator

import pytest

from tests.chatapi.web.probe_process import Probe, post, running


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """A process that does not wait long for a request to arrive."""
    with running(body_timeout_seconds=0.5) as probe:
        yield probe


def test_an_empty_line_behind_a_body_is_no_request_that_must_go_on(probe: Probe) -> None:
    """RFC 9112 section 2.2."""
    with probe.client() as client:
        client.send(post(b"abc") + b"\r\n")
        assert client.response().status == 200
        assert not client.has_bytes(within_seconds=1.5)
        client.get("/")
        assert client.response().status == 200
