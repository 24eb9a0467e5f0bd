"""The web server under clients that read nothing, send too much, vanish, or speak bad HTTP."""

import ctypes
import errno
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from chatapi.web.server.listening_socket import inherited, listen
from tests.chatapi.web.probe_process import MEGABYTE, Client, Probe, post, running
from tests.installation import wait_for

MEBIBYTE = 1 << 20
CAP_BYTES = 100_000


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """Start the process that most tests share; its limits are short so that tests reach them quickly."""
    with running(max_body_bytes=CAP_BYTES, body_timeout_seconds=0.5, stall_seconds=0.5) as probe:
        yield probe


@pytest.fixture(scope="module")
def impatient_probe() -> Iterator[Probe]:
    """Start a process that gives up soon on silent clients."""
    with running(user_timeout_seconds=1, keep_alive_seconds=0.2) as probe:
        yield probe


# A client that does not read


def test_a_client_that_stops_reading_stops_the_application_and_is_cut_off(probe: Probe) -> None:
    before_bytes = probe.peak_memory_bytes()
    with probe.client(receive_buffer_bytes=4096) as client:
        client.get(f"/flood?watch=unread&bytes={400 * MEGABYTE}")
        report = probe.ask("/report?watch=unread")  # another client is served as if nothing were wrong
        assert report["end"] == "cancelled"
        assert report["sent_bytes"] < MEGABYTE  # what the two kernels' buffers took
        assert probe.peak_memory_bytes() - before_bytes < MEBIBYTE


def test_a_client_that_reads_nothing_costs_the_waiting_piece_and_not_the_next_one() -> None:
    unread, piece_bytes = 8, 4 * MEBIBYTE
    with running() as probe, ExitStack() as clients:
        before_bytes = probe.peak_memory_bytes()
        for number in range(unread):
            client = clients.enter_context(probe.client(receive_buffer_bytes=4096))
            client.get(f"/flood?watch={number}&bytes={400 * MEGABYTE}&piece={piece_bytes}")
            client.head()
        probe.ask("/report?watch=0&now=1")
        assert probe.peak_memory_bytes() - before_bytes < 1.6 * unread * piece_bytes


def test_an_open_stream_takes_at_most_24_kb() -> None:
    """It takes 20.7: 4.3 less than with its headers, and with dicts that share no keys."""
    headers = [f"X-Header-{number}: value" for number in range(20)]

    def open_streams(count: int) -> None:
        for number in range(count):
            client = clients.enter_context(probe.client())
            client.get(f"/ticks?watch={number}&every=900&count=2", *headers)
            client.head()

    with running() as probe, ExitStack() as clients:
        open_streams(200)
        before_bytes = probe.peak_memory_bytes()
        open_streams(400)
        assert probe.peak_memory_bytes() - before_bytes < 400 * 24_000


def test_a_slow_client_gets_every_byte(probe: Probe) -> None:
    with probe.client(receive_buffer_bytes=4096) as client:
        client.get(f"/flood?watch=slow&bytes={4 * MEGABYTE}")
        response = client.response()
    assert response.is_whole
    assert len(response.body) == probe.ask("/report?watch=slow")["sent_bytes"]


def test_a_client_that_reads_steadily_is_not_cut_off_however_slow() -> None:
    """The kernel accepts more only when a third of its buffer is free, which takes far longer here than a
    client may stall.
    """
    with running(stall_seconds=1) as probe, probe.client(receive_buffer_bytes=4096) as client:
        client.get(f"/flood?watch=steady&bytes={400 * MEGABYTE}")
        began = time.monotonic()
        while time.monotonic() - began < 3:
            assert len(client.file.read(10_000)) == 10_000
            time.sleep(0.05)


def test_clients_that_read_nothing_delay_nobody(probe: Probe) -> None:
    """A stream beside 20 of them begins as soon as on another process; the two take turns, so that a busy
    machine slows both.
    """
    with running() as beset, ExitStack() as stack:
        for number in range(20):
            client = stack.enter_context(beset.client(receive_buffer_bytes=4096))
            client.get(f"/flood?watch={number}&bytes={400 * MEGABYTE}")
            assert client.has_bytes(within_seconds=5)
        for _ in range(50):  # meanwhile the kernels' buffers fill up
            seconds_to_begin(beset)
        quiet, beside = zip(
            *((seconds_to_begin(probe), seconds_to_begin(beset)) for _ in range(100)), strict=True
        )
    assert percentile_95(beside) < 1.2 * percentile_95(quiet) + 0.002


def seconds_to_begin(probe: Probe) -> float:
    """Return the time that a new client waits for the first chunk of a stream."""
    began = time.perf_counter()
    with probe.client() as client:
        client.get("/ticks?watch=nobody&count=1&every=0")
        assert client.head().status == 200
        client.chunk()
    return time.perf_counter() - began


def percentile_95(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 95 // 100]


# Bodies


def test_it_takes_a_body_up_to_the_cap(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(b"x" * CAP_BYTES))
        assert json.loads(client.response().body)["body_bytes"] == CAP_BYTES


def test_it_refuses_a_body_over_the_cap_without_reading_it(probe: Probe) -> None:
    response = probe.exchange(post(b"", length=CAP_BYTES + 1))
    assert response.status == 413
    assert response.error["code"] == "request_too_large"
    assert response.error["type"] == "invalid_request_error"
    assert response.headers["connection"] == "close"


def test_it_does_not_invite_a_body_that_it_refuses(probe: Probe) -> None:
    assert probe.exchange(post(b"", "Expect: 100-continue", length=CAP_BYTES + 1)).status == 413


def test_the_refusal_reaches_a_client_that_sends_its_whole_body_first(probe: Probe) -> None:
    before_bytes = probe.peak_memory_bytes()
    with probe.client() as client:
        client.send(post(b"x" * 30 * MEGABYTE))
        assert client.response().error["code"] == "request_too_large"
    assert probe.peak_memory_bytes() - before_bytes < 2 * MEGABYTE


def test_it_cuts_a_chunked_body_at_the_cap(probe: Probe) -> None:
    before_bytes = probe.peak_memory_bytes()
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    with probe.client() as client:
        client.send(
            b"POST /echo HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunk * 2000
            + b"0\r\n\r\n"
        )
        assert client.response().error["code"] == "request_too_large"
        assert client.is_hung_up()
    assert probe.peak_memory_bytes() - before_bytes < 2 * MEGABYTE


def test_it_joins_a_chunked_body(probe: Probe) -> None:
    with probe.client() as client:
        client.send(
            b"POST /echo HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert json.loads(client.response().body)["body_bytes"] == 5


@pytest.mark.parametrize("beginning", [b"GE", b"GET / HTTP/1.1\r\nHost:", post(b"half", length=8)])
def test_it_does_not_wait_for_a_request_that_stalls(probe: Probe, beginning: bytes) -> None:
    response = probe.exchange(beginning)
    assert response.status == 408
    assert response.error["code"] == "request_timeout"


def test_it_does_not_wait_for_a_body_that_dribbles(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(b"", length=CAP_BYTES))
        while not client.has_bytes(within_seconds=0.05):
            client.send(b"x")
        assert client.response().error["code"] == "request_timeout"


# Framing


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"0\r\n\r\n", "Transfer-Encoding: chunked"),
        post(b"abc", "Content-Length: 3"),
        post(b"abc", "Content-Length: 4", "X-Last: 1"),
        b"POST / HTTP/1.1\r\nHost: probe\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: probe\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: probe\r\n" + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5_000,
        b"GET / HTTP/1.1\r\nHost: probe\r\nX-Folded: a\r\n b\r\n\r\n",
        b"GET /\xb0 HTTP/1.1\r\nHost: probe\r\n\r\n" * 2_000,
        b"GET / HTTP/1.1\r\nHost: probe\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n",
        b"POST / HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: probe\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: probe\r\nHost: probe\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: probe\r\n\r\n",
        b"GET //probe/ HTTP/1.1\r\nHost: probe\r\n\r\n",
        b"GET http://probe/ HTTP/1.1\r\nHost: probe\r\n\r\n",
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: probe\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: probe\r\nBad Name: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: probe\r\nX-Nul: a\x00b\r\n\r\n",
    ],
)
def test_it_refuses_what_is_not_well_formed(probe: Probe, request_bytes: bytes) -> None:
    response = probe.exchange(request_bytes)
    assert response.status == 400
    assert response.error["code"] == "invalid_request"


def test_a_client_of_https_is_told_at_once(probe: Probe) -> None:
    began = time.monotonic()
    with probe.client() as client:
        client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        response = client.response()
        assert client.is_hung_up()
    assert (response.status, response.error["code"]) == (400, "invalid_request")
    assert "http://" in response.error["message"]
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /" + b"a" * 20_000, 414, "uri_too_long"),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer " + b"k" * 20_000, 431, "headers_too_large"),
        (
            b"GET / HTTP/1.1\r\nHost: probe\r\n" + b"X-Long: %b\r\n" % (b"x" * 6_000) * 3,
            431,
            "headers_too_large",
        ),
        (b"GET / HTTP/1.1\r\nHost: probe\r\n" + b"X-Many: 1\r\n" * 600, 431, "headers_too_large"),
    ],
)
def test_it_says_which_part_of_a_head_is_too_large(
    probe: Probe, request_bytes: bytes, status: int, code: str
) -> None:
    response = probe.exchange(request_bytes)
    assert (response.status, response.error["code"]) == (status, code)


@pytest.mark.parametrize("target", ["/\xb0", "/?q=\x80"])
def test_it_refuses_a_target_that_is_not_ascii(probe: Probe, target: str) -> None:
    with probe.client() as client:
        client.send(f"GET {target} HTTP/1.1\r\nHost: probe\r\n\r\n".encode("latin-1"))
        assert client.response().error["code"] == "invalid_request"


def test_pipelined_requests_are_answered_in_order_and_share_nothing(probe: Probe) -> None:
    with probe.client() as client:
        client.send(
            b"GET /1 HTTP/1.1\r\nHost: 1\r\nAuthorization: Bearer k\r\n\r\nGET /2 HTTP/1.1\r\nHost: 2\r\n\r\n"
        )
        first, second = (json.loads(client.response().body) for _ in range(2))
    assert (first["path"], first["headers"]) == ("/1", [["host", "1"], ["authorization", "Bearer k"]])
    assert (second["path"], second["headers"]) == ("/2", [["host", "2"]])


@pytest.mark.parametrize("pieces", [1, 40])
def test_a_client_that_sent_much_behind_a_running_request_is_seen_to_leave(probe: Probe, pieces: int) -> None:
    watch, behind = f"behind-{pieces}", post(b"x" * 40_000)
    with probe.client() as client:
        client.get(f"/ticks?count=2&every=600&watch={watch}")
        assert client.head().status == 200
        for start in range(0, len(behind), len(behind) // pieces):
            client.send(behind[start : start + len(behind) // pieces])
    assert probe.ask(f"/report?watch={watch}")["end"] == "cancelled"


def test_a_client_that_ends_its_own_direction_has_left(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/ticks?count=2&every=600&watch=half-closed")
        assert client.head().status == 200
        client.socket.shutdown(socket.SHUT_WR)
        assert probe.ask("/report?watch=half-closed")["end"] == "cancelled"
        client.file.read()
        assert client.is_hung_up()


def test_much_behind_a_running_request_ends_the_connection_after_its_answer(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/ticks?count=3&every=0.1&watch=much")
        assert client.head().status == 200
        client.send(post(b"x" * 40_000))
        assert b"data: [DONE]" in client.file.read()
        assert client.is_hung_up()


def test_bytes_after_a_body_are_a_request_of_their_own(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(b"abc") + b"garbage\r\n\r\n")
        assert json.loads(client.response().body)["body_bytes"] == 3
        assert client.response().status == 400
        assert client.is_hung_up()


def test_http_1_0_gets_an_unframed_answer_and_the_end(probe: Probe) -> None:
    with probe.client() as client:
        client.send(b"GET /old HTTP/1.0\r\n\r\n")
        assert client.head().status == 200
        assert json.loads(client.file.read())["path"] == "/old"


def test_a_reset_in_the_middle_of_a_request_harms_nobody(probe: Probe) -> None:
    with probe.client() as client:
        client.send(post(b"half", length=8))
        reset(client)
    assert probe.ask("/after")["path"] == "/after"


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_request_is_not_read_whose_client_has_left_meanwhile(probe: Probe, how: str) -> None:
    with probe.client() as client:
        client.get("/")
        assert client.response().status == 200
        before = probe.open_files()
        probe.signal(signal.SIGSTOP)
        client.get(f"/ticks?watch=left-by-{how}&count=1000&every=60")
        if how == "reset":
            reset(client)
    probe.signal(signal.SIGCONT)
    wait_for(lambda: probe.open_files() < before, "the end of the connection")
    report = probe.ask(f"/report?watch=left-by-{how}&now=1")
    assert (report["end"], report["is_begun"]) == ("", False)


def reset(client: Client) -> None:
    """Closes the connection with a reset instead of a FIN."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.__exit__()


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_the_connection_survives_a_head_request(probe: Probe, method: str) -> None:
    with probe.client() as client:
        client.get("/two-pieces", method="HEAD")
        assert client.head().headers["content-length"] == "8"
        client.get("/two-pieces", method=method)
        assert client.head().status == 200
        assert client.file.read(8 if method == "GET" else 0) == (b"halfhalf" if method == "GET" else b"")


# Headers


def test_a_client_cannot_choose_the_script_name(probe: Probe) -> None:
    answer = probe.ask("/v1", "Daphne-Root-Path: /admin%ff", "X-Other: 1")
    assert answer["root_path"] == ""
    assert answer["headers"] == [["host", "probe"], ["x-other", "1"]]


def test_it_refuses_a_second_authorization_header(probe: Probe) -> None:
    response = probe.exchange(
        b"GET / HTTP/1.1\r\nHost: probe\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n"
    )
    assert response.status == 400
    assert response.error["code"] == "invalid_request"


def test_it_does_not_say_what_it_is_made_of(probe: Probe) -> None:
    with probe.client() as client:
        client.get(
            "/",
            "Connection: Upgrade, HTTP2-Settings",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
        )
        response = client.response()
    assert response.status == 200
    assert set(response.headers) == {"content-type", "transfer-encoding"}


# Failing applications


def test_a_failing_application_is_a_json_500(probe: Probe) -> None:
    with probe.client() as client:
        for path in ("/failing", "/silent"):
            client.get(path)
            response = client.response()
            assert response.status == 500
            assert (response.error["type"], response.error["code"]) == ("server_error", "internal_error")


def test_a_failure_in_mid_response_cuts_it_short(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/failing?after=1")
        response = client.response()
    assert response.body == b"the first half"
    assert not response.is_whole


def test_what_is_sent_after_a_response_is_dropped(probe: Probe) -> None:
    with probe.client() as client:
        client.get("/twice?watch=twice")
        assert client.response().body == b"ok"
        client.get("/report?watch=twice")
        assert json.loads(client.response().body)["end"] == "dropped"


# Connections


def test_a_burst_of_clients_waits_in_the_backlog(probe: Probe) -> None:
    """With Daphne's own backlog of 50 the others' connection attempts are dropped and repeated a second
    later.
    """
    probe.signal(signal.SIGSTOP)
    with ExitStack() as stack:
        clients = []
        for _ in range(300):
            started = time.monotonic()
            clients.append(stack.enter_context(probe.client()))
            assert time.monotonic() - started < 1, "a connection attempt was dropped"
            clients[-1].get("/")
        probe.signal(signal.SIGCONT)
        assert {client.response().status for client in clients} == {200}


def bound(port: int) -> socket.socket:
    return listen("127.0.0.1", port, user_timeout_seconds=20)


def opened_by_a_process_manager(port: int) -> socket.socket:
    with socket.create_server(("127.0.0.1", port)) as listener:
        return inherited(os.dup(listener.fileno()), user_timeout_seconds=20)


@pytest.mark.parametrize("opened", [bound, opened_by_a_process_manager])
def test_an_accepted_socket_has_its_options(opened: Callable[[int], socket.socket]) -> None:
    with opened(0) as listener:
        listener.setblocking(True)
        with Client(listener.getsockname()[1]):
            accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("every_seconds", [0.1, 60])
def test_a_client_that_vanishes_is_noticed(impatient_probe: Probe, every_seconds: float) -> None:
    """The stream is silent in one case, so that only keep-alive probes can notice."""
    with impatient_probe.client() as client:
        client.get(f"/ticks?watch=every-{every_seconds}&count=1000&every={every_seconds}")
        assert client.head().status == 200
        vanish(client.socket)
        started = time.monotonic()
        assert impatient_probe.ask(f"/report?watch=every-{every_seconds}")["end"] == "cancelled"
        assert time.monotonic() - started < 5


def vanish(client: socket.socket) -> None:
    """Makes the kernel drop all that arrives for `client` before TCP sees it: no acknowledgement, no FIN, no
    reset.
    """
    # BPF: return 0 bytes of the packet.
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(drop_all))
    try:
        client.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
    except PermissionError:
        if "CI" in os.environ:
            raise
        pytest.skip("this kernel lets only root filter what a socket receives")


def test_an_idle_connection_is_closed(impatient_probe: Probe) -> None:
    with impatient_probe.client() as client:
        client.get("/")
        assert client.response().status == 200
        assert client.is_hung_up()


def test_a_port_in_use_is_an_error_with_its_number(probe: Probe) -> None:
    with pytest.raises(OSError, match="Address already in use") as caught:
        listen("127.0.0.1", probe.port, user_timeout_seconds=20)
    assert caught.value.errno == errno.EADDRINUSE
