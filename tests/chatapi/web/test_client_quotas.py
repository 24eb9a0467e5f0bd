"""How much one client address may hold at the same time, and that nobody else notices."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from tests.chatapi.web.probe_process import MEGABYTE, Client, Probe, Response, post, running

THEIRS = "127.0.0.2"
OURS = "127.0.0.3"


def clients(stack: ExitStack, probe: Probe, address: str = THEIRS) -> Callable[[], Client]:
    """Opens one connection after the other from this address."""
    return lambda: stack.enter_context(probe.client(address=address))


def assert_served(client: Client) -> None:
    client.get("/")
    assert client.response().status == 200


def assert_refused(response: Response, status: int = 429) -> None:
    code, kind = (
        ("rate_limit_exceeded", "rate_limit_error")
        if status == 429
        else ("service_unavailable", "server_error")
    )
    assert (response.status, response.error["code"], response.error["type"]) == (status, code, kind)
    assert int(response.headers["retry-after"]) > 0
    assert response.headers["connection"] == "close"


# Connections


def test_the_connection_that_has_waited_longest_makes_room_for_a_new_one() -> None:
    with running(max_connections_per_address=3) as probe, ExitStack() as stack:
        connect, others = clients(stack, probe), clients(stack, probe, OURS)()
        used = connect()
        assert_served(used)
        first, second = connect(), connect()
        assert_served(second)
        assert_served(connect())  # `used` has waited longest: it is closed
        assert used.is_hung_up()
        assert_served(connect())
        assert_refused(first.response())
        assert first.is_hung_up()
        for client in (second, others):
            assert_served(client)


def test_a_client_that_uses_all_its_connections_gets_no_other() -> None:
    with running(max_connections_per_address=2) as probe, ExitStack() as stack:
        connect = clients(stack, probe)
        streams = [connect(), connect()]
        for number, stream in enumerate(streams):
            stream.get(f"/ticks?watch={number}&count=2&every=600")
            assert stream.head().status == 200
        assert_refused(connect().response())
        assert_served(clients(stack, probe, OURS)())
        streams[0].__exit__()
        assert probe.ask("/report?watch=0")["end"] == "cancelled"
        assert_served(connect())


def test_behind_a_proxy_the_requests_of_the_forwarded_address_count() -> None:
    with (
        running(max_connections_per_address=2, trusted_proxies=["127.0.0.0/8"]) as probe,
        ExitStack() as stack,
    ):
        streams = [clients(stack, probe)() for _ in range(2)]
        for number, stream in enumerate(streams):
            stream.get(f"/ticks?watch={number}&count=2&every=600", "X-Forwarded-For: 203.0.113.7")
            assert stream.head().status == 200
        for forwarded_for, status in (
            ("203.0.113.7", 429),
            ("10.9.9.9, 203.0.113.7", 429),
            ("203.0.113.7, 203.0.113.8", 200),
        ):
            with probe.client() as client:
                client.get("/", f"X-Forwarded-For: {forwarded_for}")
                assert client.response().status == status
        idle = [clients(stack, probe)() for _ in range(10)]  # the proxy's own are not counted
        assert_served(idle[0])


def test_a_full_server_closes_waiting_connections_of_the_largest_client() -> None:
    with running(max_connections=20) as probe, ExitStack() as stack:
        ours = clients(stack, probe, OURS)()
        assert_served(ours)
        crowd = [clients(stack, probe)() for _ in range(19)]
        assert_refused(crowd[0].response())  # the sweep keeps a tenth free
        assert_served(crowd[-1])
        assert_served(ours)


def test_a_server_full_of_streams_refuses_others() -> None:
    with running(max_connections=10) as probe, ExitStack() as stack:
        for number in range(10):
            stream = clients(stack, probe)()
            stream.get(f"/ticks?watch={number}&count=2&every=600")
            assert stream.head().status == 200
        assert_refused(clients(stack, probe, OURS)().response(), 503)


def test_a_connection_that_sends_nothing_is_closed() -> None:
    with running(head_timeout_seconds=0.3) as probe, ExitStack() as stack:
        used, silent = clients(stack, probe)(), clients(stack, probe)()
        assert_served(used)
        assert silent.is_hung_up()
        assert_served(used)


def test_a_head_that_dribbles_is_refused() -> None:
    with running(head_timeout_seconds=0.3) as probe, probe.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: probe\r\nX-Slow: ")
        while not client.has_bytes(within_seconds=0.05):
            client.send(b"x")
        assert client.response().error["code"] == "request_timeout"


# Arriving bytes


def test_an_address_that_sends_too_much_at_once_is_refused() -> None:
    """Only unauthenticated bytes count; small requests and other IPs pass."""
    with running(max_arriving_bytes_per_address=200_000) as probe, ExitStack() as stack:
        connect = clients(stack, probe)
        unfinished = partial(post, bytes(60_000), length=60_001)
        held = [connect() for _ in range(3)]
        for client in held:
            client.send(unfinished())
        assert_served(connect())  # so they have been read
        surplus = connect()
        surplus.send(unfinished())
        assert_refused(surplus.response())
        for client in (*held, clients(stack, probe, OURS)()):
            client.send(b"x" if client in held else post(bytes(60_000)))
            assert client.response().status == 200
        again = connect()
        again.send(post(bytes(60_000)))
        assert again.response().status == 200


def test_what_the_application_has_asked_for_does_not_count() -> None:
    with running(max_arriving_bytes_per_address=300_000) as probe, ExitStack() as stack:
        for number in range(4):
            client = clients(stack, probe)()
            client.send(
                post(bytes(MEGABYTE), length=2 * MEGABYTE, target=f"/pieces?watch={number}&first=999")
            )
        client.send(bytes(MEGABYTE))
        assert client.response().status == 200


def test_when_all_send_too_much_only_those_with_more_than_their_share_are_refused() -> None:
    with running(max_arriving_bytes=400_000) as probe, ExitStack() as stack:
        for _ in range(6):
            clients(stack, probe)().send(post(bytes(60_000), length=60_001))
        assert_served(clients(stack, probe)())
        surplus, ours = clients(stack, probe)(), clients(stack, probe, OURS)()
        surplus.send(post(bytes(60_000), length=60_001))
        assert_refused(surplus.response(), 503)
        ours.send(post(bytes(60_000)))
        assert ours.response().status == 200


# Handshakes


def test_too_many_handshakes_are_refused() -> None:
    with running(max_handshakes_per_address=3, handshake_window_seconds=600) as probe, ExitStack() as stack:
        connect = clients(stack, probe)
        for _ in range(3):
            connect().open_websocket()
        surplus = connect()
        surplus.ask_for_websocket("/")
        assert_refused(surplus.response())
        clients(stack, probe, OURS)().open_websocket()
        assert_served(connect())


# Unread output


def test_of_too_many_clients_that_read_nothing_the_first_is_cut_off() -> None:
    with running(max_stalled_per_address=2) as probe, ExitStack() as stack:
        for number in range(3):
            client = stack.enter_context(probe.client(address=THEIRS, receive_buffer_bytes=4096))
            client.get(f"/flood?watch={number}&bytes={400 * MEGABYTE}")
        ours = clients(stack, probe, OURS)()
        ours.get("/report?watch=0")
        assert b'"cancelled"' in ours.response().body
        for number in (1, 2):
            assert probe.ask(f"/go-on?watch={number}") == []
