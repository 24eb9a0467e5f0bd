"""Methods and targets: each route's own methods, and every spelling of a path that is none."""

import pytest

from tests.bad_input.bodies import CHAT, POSTED, TEXT, TICKETS, body_for, refusal
from tests.bad_input.raw_http import LINE_TOO_LONG, NOT_WELL_FORMED, RawClient
from tests.bad_input.raw_http import refusal as raw_refusal
from tests.chatapi.http_client import Client

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

METHODS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "POST", "BREW")
READ = ("/v1/models", "/v1/models/five", "/v1/key", "/v1/generations/chatcmpl-0")
NOT_ALLOWED = (405, "method_not_allowed", None)


@pytest.mark.parametrize("dialect", ["", "/llama"])
@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("method", [method for method in METHODS if method != "POST"])
def test_a_route_that_takes_a_body_is_only_posted_to(
    suspect: Client, dialect: str, path: str, method: str
) -> None:
    answer = suspect.send(method, dialect + path, body_for(path))
    assert refusal(answer) == NOT_ALLOWED
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("path", READ)
@pytest.mark.parametrize("method", [method for method in METHODS if method != "GET"])
def test_a_route_that_reads_is_only_read(suspect: Client, path: str, method: str) -> None:
    answer = suspect.send(method, path, b"{}")
    assert refusal(answer) == NOT_ALLOWED
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", [*POSTED, *READ, "/v1/nothing"])
def test_the_answer_to_head_has_no_body(raw: RawClient, path: str) -> None:
    raw.send(raw.head_of("HEAD", path))
    assert raw.head().status in {200, 404, 405}
    raw.send(raw.head_of("GET", "/v1/models"))
    assert raw.response().status == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
@pytest.mark.parametrize("method", ["post", "Post", "PoST"])
def test_a_method_in_other_letters_is_another_method(suspect: Client, path: str, method: str) -> None:
    assert refusal(suspect.send(method, path, body_for(CHAT))) == NOT_ALLOWED


def test_no_header_overrides_the_method(suspect: Client) -> None:
    for name in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        with suspect.exchange("GET", CHAT, body_for(CHAT), {name: "POST"}) as exchange:
            assert refusal(exchange.read()) == NOT_ALLOWED


UNKNOWN = [
    "/v1",
    "/v1/",
    "/v1/nothing",
    "/v1/chat",
    "/v1/chat/completions/",
    "/v1/chat/completions//",
    "/v1/chat//completions",
    "/v1//chat/completions",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%20",
    "/v1/chat/completions%0a",
    "/v1/chat/completions%00",
    "/v1/chat/completions%3fstream=true",
    "/v1/chat/COMPLETIONS",
    "/v1/../admin/",
    "/v1/./chat/completions",
    "/v1/%2e%2e/admin/",
    "/v1/..%2fadmin/",
    "/v1/%252e%252e/admin/",
    "/v1/\\..\\admin",
    "/v1/%00",
    "/v1/%",
    "/v1/%zz",
    "/v1/%ff",
    "/v1/%c0%ae%c0%ae/admin",
    "/v1/%ed%a0%80",
    "/v1/%e2%80%ae",
    "/v1/" + "a" * 8_000,
    "/v1/" + "a/" * 4_000,
    "/openai/v1/nothing",
    "/openai/v1/openai/v1/models",
    "/v1/openai/v1/models",
    "/v1/models/",
    "/v1/generations/",
    "/v1/generations/a/b",
    "/v1/'--",
    "/v1/<script>",
    "/v1/%7b0%7d%25s",
]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", UNKNOWN, ids=lambda path: path[:40])
def test_an_unknown_path_is_404(raw: RawClient, method: str, path: str) -> None:
    body = body_for(CHAT) if method == "POST" else b""
    status, code = raw_refusal(raw.ask(raw.head_of(method, path, f"Content-Length: {len(body)}") + body))
    assert (status, code) in {(404, "unknown_url"), (404, "model_not_found")}


NO_TARGETS = [
    "*",
    "v1/models",
    "?",
    "//v1/models",
    "//v1/chat/completions",
    "///admin/",
    "http://127.0.0.1/v1/models",
    "https://evil.example/",
]
NO_TARGETS += ["127.0.0.1:80", "\\v1\\models", "/v1/mod\u00e8ls", "/v1/\u00ff", "/v1/models?q=\u00e9"]
NO_TARGETS += ["/v1/a b", "/v1/a\tb", "/v1/\x00"]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("target", NO_TARGETS, ids=lambda target: repr(target[:40]))
def test_a_target_that_is_no_path_is_refused_and_the_connection_closed(
    raw: RawClient, method: str, target: str
) -> None:
    assert raw_refusal(raw.ask(raw.head_of(method, target))) == NOT_WELL_FORMED
    assert raw.is_hung_up()


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_target_that_is_too_long_is_refused_and_the_connection_closed(raw: RawClient, method: str) -> None:
    assert raw_refusal(raw.ask(raw.head_of(method, "/v1/" + "a" * 20_000))) == LINE_TOO_LONG
    assert raw.is_hung_up()


def test_a_query_changes_nothing_for_a_posted_request(client: Client, suspect: Client) -> None:
    answer = client.send("POST", f"{CHAT}?stream=true&model=other&n=5&{'a' * 8_000}", body_for(CHAT))
    assert (answer.status, answer.headers["content-type"], answer.json["model"]) == (
        200,
        "application/json",
        "five",
    )
    assert refusal(suspect.send("POST", f"{CHAT}?model=five&messages=[]", b"{}"))[0] == 400


@pytest.mark.parametrize(
    "query", ["?ticket=", "?ticket", "?Ticket=x", "?tickets=x", "?ticket%00=x", "?", "?;ticket=x"]
)
def test_a_get_without_a_ticket_is_405(suspect: Client, query: str) -> None:
    assert refusal(suspect.send("GET", CHAT + query)) == NOT_ALLOWED


@pytest.mark.parametrize(
    "secret",
    ["x", "%00", "%ff%fe", "%ed%a0%80", "a" * 43, "a" * 8_000, "..%2f..", "*", "%0d%0aX:%20y"],
)
@pytest.mark.parametrize("path", [CHAT, f"/bitseek{CHAT}"])
def test_a_ticket_that_there_is_not_is_401(suspect: Client, path: str, secret: str) -> None:
    """A good key does not help: only the ticket authenticates."""
    assert refusal(suspect.send("GET", f"{path}?ticket={secret}")) == (401, "invalid_ticket", "ticket")


def test_two_tickets_are_400(suspect: Client) -> None:
    answer = suspect.send("GET", f"{CHAT}?ticket=a&ticket=b")
    assert refusal(answer) == (400, "duplicate_parameter", "ticket")


def test_a_ticket_opens_nothing_else(suspect: Client, client: Client) -> None:
    ticket = client.send("POST", TICKETS, body_for(CHAT)).json["id"]
    for method, path in (("GET", "/v1/models"), ("GET", "/v1/key"), ("POST", CHAT), ("POST", TEXT)):
        for headers in ({"authorization": None}, {"authorization": f"Bearer {ticket}"}):
            assert refusal(suspect.send(method, f"{path}?ticket={ticket}", body_for(path), **headers))[
                :2
            ] == (401, "invalid_api_key")
