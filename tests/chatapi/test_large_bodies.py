"""Large request bodies: the keys that may send them, the limits that a refused request takes from, and the
bodies that a process reads by itself.
"""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chatapi.http_client import HELLO, Client
from tests.chatapi.test_rate_limits_end_to_end import limited
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

MIB = 1024 * 1024
CHAT, TEXT, TICKETS = "/v1/chat/completions", "/v1/completions", "/v1/chat/completions/tickets"
SMALL = json.dumps({"model": "five", "messages": HELLO}).encode()
LARGE = json.dumps({"model": "five", "messages": [{"role": "user", "content": "x" * MIB}]}).encode()
NO_JSON = b"{" + b" " * (2 * MIB)
ENOUGH = 9
"""Requests, one after the other, of which some are refused before they are parsed."""


def codes(client: Client, body: bytes, times: int = ENOUGH) -> list[str]:
    return [client.send("POST", CHAT, body).error["code"] for _ in range(times)]


@pytest.mark.parametrize("path", [CHAT, TEXT, TICKETS])
def test_a_large_body_is_answered_as_a_small_one(client: Client, path: str) -> None:
    """Chat, text and tickets name the wrong parameter, and answer in the dialect of a stream."""
    prompt = {"prompt": "x" * MIB} if path == TEXT else {"messages": [{"role": "user", "content": "x" * MIB}]}
    refused = client.send("POST", path, json.dumps({"model": "five", "n": 0, **prompt}).encode())
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "invalid_value", "n")
    unknown = client.send("POST", path, json.dumps({"model": "five", "dream": 1, **prompt}).encode())
    assert (unknown.status, unknown.headers["x-chatapi-ignored"]) == (
        201 if path == TICKETS else 200,
        "dream",
    )


def test_a_large_request_is_the_same_when_it_is_repeated(client: Client) -> None:
    first, again = [client.send("POST", CHAT, LARGE, idempotency_key="large-body") for _ in range(2)]
    assert (first.status, again.headers["idempotent-replayed"]) == (200, "true")
    assert client.send("POST", CHAT, LARGE.replace(b"x", b"y", 1), idempotency_key="large-body").status == 422


def test_a_large_ticket_is_redeemed(client: Client) -> None:
    ticket = client.send("POST", TICKETS, LARGE).json
    answer = client.send("GET", ticket["url"])
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


@pytest.mark.parametrize("path", ["/v1/models", "/admin/", "/v1/generations/x/stream", f"{CHAT}?ticket=x"])
def test_a_route_that_takes_no_body_takes_no_large_one(client: Client, path: str) -> None:
    answer = client.send("GET", path, LARGE)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert client.send("GET", path, SMALL).status in {200, 302, 401, 404}


@pytest.mark.parametrize(
    "path", ["/admin/login/", "/admin/chatapi/servedmodel/import/", "/v1/generations/x/cancel", "/v1/key"]
)
def test_nobody_posts_a_large_form_without_signing_in(client: Client, path: str) -> None:
    answer = client.send("POST", path, LARGE, cookie="sessionid=dream")
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("body", [NO_JSON, b"[" * 100], ids=["large", "small"])
def test_a_key_over_its_limit_is_refused_before_its_body_is_parsed(
    installation: Installation, body: bytes
) -> None:
    client = limited(installation, f"over its limit {len(body)}", requests_per_minute=1)
    assert client.send("POST", CHAT, SMALL).status == 200
    assert client.send("POST", CHAT, SMALL).status == 429
    assert set(codes(client, body)) == {"rate_limit_exceeded"}


def test_a_large_body_is_refused_where_nobody_was_refused_before(installation: Installation) -> None:
    """Redis decides, not the memory of the process."""
    client = limited(installation, "large and first", requests_per_minute=1)
    assert client.send("POST", CHAT, SMALL).status == 200
    refused = client.send("POST", CHAT, NO_JSON)
    assert (refused.status, refused.headers["x-ratelimit-remaining-requests"]) == (429, "0")


@pytest.mark.parametrize(
    "body", [NO_JSON, b"[" * 100, SMALL.replace(b"five", b"dream")], ids=["large", "small", "no such model"]
)
def test_a_refused_request_takes_one_from_the_limit_of_requests(
    installation: Installation, body: bytes
) -> None:
    client = limited(installation, f"refused {len(body)}", requests_per_minute=3)
    wait_for(lambda: client.send("POST", CHAT, body).status == 429, "the limit", timeout_s=10)
    assert client.send("POST", CHAT, SMALL).status == 429


def test_a_client_that_waits_as_long_as_asked_gets_in_though_others_are_refused(
    installation: Installation,
) -> None:
    """Refused requests take nothing from the limit, so they delay no other request."""
    client = limited(installation, "patient", requests_per_minute=60)
    wait_for(lambda: client.send("POST", CHAT, b"[").status == 429, "the limit")
    refused = client.send("POST", CHAT, SMALL)
    told_at, told_s = time.monotonic(), int(refused.headers["retry-after-ms"]) / 1_000
    assert {client.send("POST", CHAT, body).status for body in (SMALL, b"[", LARGE, NO_JSON)} == {429}
    time.sleep(max(0.0, told_at + told_s - time.monotonic()))
    assert client.send("POST", CHAT, SMALL).status == 200


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_a_request_that_was_sent_before_is_answered_beyond_the_limit(
    installation: Installation, body: bytes
) -> None:
    client = limited(installation, f"again {len(body)}", requests_per_minute=1)
    assert client.send("POST", CHAT, body, idempotency_key="again").status == 200
    for _ in range(3):
        assert client.send("POST", CHAT, body, idempotency_key="another").status == 429
        again = client.send("POST", CHAT, body, idempotency_key="again")
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")


def test_large_repeats_that_follow_a_stream_leave_the_room_to_others(installation: Installation) -> None:
    client = limited(installation, "follows", requests_per_minute=1)
    other = limited(installation, "has room", requests_per_minute=100)
    largest = [{"role": "user", "content": "x" * (8 * MIB - 1_000)}]
    with ExitStack() as stack:
        for _ in range(3):
            asked = client.asking("steady", messages=largest, stream=True, idempotency_key="follows")
            assert next(stack.enter_context(asked).texts())
        assert other.send("POST", CHAT, LARGE).status == 200


def test_bytes_of_refused_bodies_are_bounded(installation: Installation, client: Client) -> None:
    with installation.another_web(CHATAPI_REFUSED_BODY_BYTES_PER_MINUTE=str(5 * MIB)) as web:
        greedy = Client(web.url, client.key)
        assert [greedy.send("POST", CHAT, NO_JSON).status for _ in range(4)] == [400, 400, 400, 429]
        refused = greedy.send("POST", CHAT, LARGE)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["retry-after-ms"]) <= 60_000
        assert greedy.send("POST", CHAT, SMALL).status == 200
        assert Client(web.url, installation.keys["test"]).send("POST", CHAT, NO_JSON).status == 400


def test_large_requests_of_a_test_key_keep_their_room_until_they_end(
    installation: Installation, client: Client
) -> None:
    """There is room for one of the largest; the second waits, and no small request and no live key waits with
    it.
    """
    tester = Client(installation.url, installation.keys["test"])
    largest = [{"role": "user", "content": "[sandbox tokens=2 delay_ms=60000]" + "x" * (8 * MIB - 1_000)}]
    with ExitStack() as stack:
        running = stack.enter_context(tester.asking("sandbox", messages=largest, stream=True))
        assert next(running.texts())
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(tester.send, "POST", CHAT, LARGE)
            assert tester.send("POST", CHAT, SMALL).status == 200
            assert client.send("POST", CHAT, LARGE).status == 200
            assert not second.done()
            stack.close()
            assert second.result(timeout=15).status == 200


# ---- the process that parses


@pytest.fixture
def parser(installation: Installation, client: Client) -> int:
    """Return the process id of the parser."""
    client.send("POST", CHAT, NO_JSON)
    return parser_of(installation.processes["web"].pid)


def parser_of(web_pid: int) -> int:
    children = Path(f"/proc/{web_pid}/task/{web_pid}/children").read_text().split()
    for task in Path(f"/proc/{web_pid}/task").iterdir():
        children += (task / "children").read_text().split()
    return next(
        int(pid) for pid in children if b"parser_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_the_parser_has_neither_secrets_nor_sockets(parser: int) -> None:
    assert Path(f"/proc/{parser}/environ").read_bytes() == b""
    opened = {int(entry.name): os.readlink(entry) for entry in Path(f"/proc/{parser}/fd").iterdir()}
    assert opened.keys() == {0, 1, 2}
    assert opened[0] == opened[1]
    assert "Django" not in Path(f"/proc/{parser}/maps").read_text()


def test_a_parser_that_dies_is_replaced(installation: Installation, client: Client, parser: int) -> None:
    os.kill(parser, signal.SIGTERM)  # as a whole group of processes may get it: it is not for the parser
    assert client.send("POST", CHAT, LARGE).status == 200
    assert parser_of(installation.processes["web"].pid) == parser
    os.kill(parser, signal.SIGKILL)
    answers = [client.send("POST", CHAT, LARGE) for _ in range(2)]
    assert [answer.status for answer in answers] == [503, 200]
    assert answers[0].error["code"] == "service_unavailable"


def test_the_parser_dies_with_its_web_process(installation: Installation, client: Client) -> None:
    with installation.another_web() as web:
        assert Client(web.url, client.key).send("POST", CHAT, LARGE).status == 200
        parser = parser_of(web.processes["web"].pid)
        web.end("web")
        wait_for(
            lambda: (
                not Path(f"/proc/{parser}/cmdline").exists()
                or not Path(f"/proc/{parser}/cmdline").read_bytes()
            ),
            "its end",
        )
