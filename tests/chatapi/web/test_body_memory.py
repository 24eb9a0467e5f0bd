"""What a request's body costs while its answer is on its way."""

from contextlib import ExitStack

from tests.chatapi.web.probe_process import MEGABYTE, running

BODY_BYTES, STREAMS = 4 * MEGABYTE, 10


def test_a_body_is_kept_once_while_its_stream_runs() -> None:
    with running() as probe, ExitStack() as stack:
        before_bytes = probe.peak_memory_bytes()
        for number in range(STREAMS):
            client = stack.enter_context(probe.client())
            head = (
                f"POST /ticks?watch={number}&count=2&every=600 HTTP/1.1\r\nHost: probe\r\n"
                f"Content-Length: {BODY_BYTES}\r\n\r\n"
            )
            client.send(head.encode() + b"x" * BODY_BYTES)
            assert client.head().status == 200
        assert probe.peak_memory_bytes() - before_bytes < 1.5 * STREAMS * BODY_BYTES
