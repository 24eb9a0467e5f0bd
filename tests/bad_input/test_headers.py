"""Headers: those that decide on the caller and the form, those that are echoed, and those that must change
nothing.
"""

import gzip
from typing import Any

import pytest

from tests.bad_input.bodies import CHAT, POSTED, body_for, refusal
from tests.bad_input.raw_http import HEADERS_TOO_LARGE, NOT_WELL_FORMED, RawClient
from tests.bad_input.raw_http import refusal as raw_refusal
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

BOTH_KINDS = pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("GET", "/v1/models")])
"""A route before Django and one behind it."""


def request_with(raw: RawClient, method: str, path: str, *headers: str | bytes) -> bytes:
    """Return a request that would be right without these headers, but for its model."""
    body = body_for(CHAT).replace(b"five", b"no-such-model") if method == "POST" else b""
    return raw.head_of(method, path, f"Content-Length: {len(body)}", *headers) + body


# ---- what changes nothing

HARMLESS: dict[str, tuple[str | bytes, ...]] = {
    "a chosen SCRIPT_NAME": ("Daphne-Root-Path: /admin%ff",),
    "a proxy's word": (
        "X-Forwarded-For: 1.2.3.4, ';--",
        "X-Forwarded-Host: evil.example",
        "X-Forwarded-Proto: https",
        "Forwarded: for=x",
    ),
    "a proxy's prefix": ("X-Forwarded-Prefix: /x", "X-Original-URL: /admin/", "X-Rewrite-URL: /admin/"),
    "another method": ("X-HTTP-Method-Override: DELETE",),
    "an event stream wanted": ("Accept: text/event-stream",),
    "HTML wanted": ("Accept: text/html",),
    "a picture wanted": ("Accept: image/png",),
    "a wrong quality": ("Accept: */*;q=x",),
    "a version wanted": ("Accept: application/json; version=9",),
    "an encoding wanted": ("Accept-Encoding: br;q=1.0, gzip;q=x, *;q=0",),
    "a language wanted": ("Accept-Language: ../../etc/passwd",),
    "a range": ("Range: bytes=0-10",),
    "conditions": ("If-None-Match: *", "If-Modified-Since: yesterday"),
    "another expectation": ("Expect: 200-ok",),
    "h2c": (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    ),
    "another upgrade": ("Connection: Upgrade", "Upgrade: \xff/9"),
    "a last event": ("Last-Event-ID: ';--\x80",),
    "many headers": ("X-Many: 1",) * 400,
    "a long header": ("X-Long: " + "x" * 8_000,),
    "control characters": (b"OpenAI-Organization: a\x01\x7f\x1bb",),
    "any bytes": (b"OpenAI-Organization: \xff\xfe\xc0\x80",),
    "underscores": ("Daphne_Root_Path: /x", "Content_Length: 5", "X_Request_Id: y"),
    "hop by hop": ("Connection: close, \xff, Authorization", "TE: trailers, x;q=9", "Trailer: Authorization"),
    "an origin": ("Origin: null", "Referer: http://evil.example/"),
    "a cookie": ("Cookie: sessionid=x; csrftoken=\xff; =;;",),
    "another key": ("Api-Key: x", "X-Goog-Api-Key: y"),
    "routing": (
        "X-Litellm-Api-Base: http://evil.example",
        "Helicone-Target-Url: http://evil.example",
        "X-Portkey-Provider: x",
    ),
    "retries": ("X-Stainless-Retry-Count: -1", "X-Stainless-Timeout: NaN"),
}


@BOTH_KINDS
@pytest.mark.parametrize("case", HARMLESS)
def test_a_header_that_is_none_of_ours_changes_nothing(
    raw: RawClient, method: str, path: str, case: str
) -> None:
    response = raw.ask(request_with(raw, method, path, *HARMLESS[case]))
    if method == "GET":
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
    else:
        assert raw_refusal(response) == (404, "model_not_found")
    assert "x-injected" not in response.headers


def test_a_clients_headers_do_not_go_to_the_upstream(client: Client, installation: Installation) -> None:
    sent = dict.fromkeys(
        ("X-Canary", "Cookie", "X-Forwarded-For", "OpenAI-Organization", "Referer"), "canary"
    )
    with client.exchange("POST", CHAT, body_for(CHAT), sent) as exchange:
        assert exchange.read().status == 200
    received = str(installation.calls("five")[-1]["headers"])
    assert "canary" not in received
    assert client.key not in received


# ---- what is refused before the application sees it

NOT_WELL_FORMED_HEADERS: dict[str, tuple[str | bytes, ...]] = {
    "a carriage return": (b"OpenAI-Organization: a\rX-Injected: 1",),
    "a newline": (b"OpenAI-Organization: a\nX-Injected: 1",),
    "NUL": (b"OpenAI-Organization: a\x00b",),
    "a newline in the id": (b"X-Request-Id: a\nSet-Cookie: x=y",),
    "no colon": ("no colon",),
    "no name": (": value",),
    "a space in the name": ("Bad Name: 1",),
    "a space after the name": ("X-Name : 1",),
    "bytes in the name": (b"X-N\xc3\xa4me: 1",),
    "a second host": ("Host: evil.example",),
    "the same host again": ("Host: 127.0.0.1",),
}


@BOTH_KINDS
@pytest.mark.parametrize("case", NOT_WELL_FORMED_HEADERS)
def test_a_head_that_is_not_well_formed_is_refused(raw: RawClient, method: str, path: str, case: str) -> None:
    assert (
        raw_refusal(raw.ask(request_with(raw, method, path, *NOT_WELL_FORMED_HEADERS[case])))
        == NOT_WELL_FORMED
    )
    assert raw.is_hung_up()


TOO_LARGE = {
    "20 kB": ("X-Long: " + "x" * 20_000,),
    "three of 6 kB": ("X-Long: " + "x" * 6_000,) * 3,
    "600 headers": ("X-Many: 1",) * 600,
}


@BOTH_KINDS
@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_head_that_is_too_large_is_refused(raw: RawClient, method: str, path: str, case: str) -> None:
    assert raw_refusal(raw.ask(request_with(raw, method, path, *TOO_LARGE[case]))) == HEADERS_TOO_LARGE
    assert raw.is_hung_up()


@BOTH_KINDS
def test_a_request_without_a_host_is_refused(raw: RawClient, method: str, path: str) -> None:
    assert (
        raw_refusal(raw.ask(request_with(raw, method, path).replace(b"Host: 127.0.0.1\r\n", b"")))
        == NOT_WELL_FORMED
    )


HOSTS = ["evil.example", "127.0.0.1.evil.example", "", "a b/c@d", "\xff", "[::1", "a" * 8_000]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: repr(host[:24]))
def test_a_foreign_host_changes_nothing_for_the_api(raw: RawClient, host: str) -> None:
    """The API has no sessions and makes no links, so containers, probes and the LAN may use any
    name for it.
    """
    for method, path, status in (("POST", CHAT, 404), ("GET", "/v1/models", 200), ("GET", "/healthz", 200)):
        response = raw.ask(under(host, request_with(raw, method, path)))
        assert response.status == status
        assert b"evil" not in response.body + str(response.headers).encode()


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: repr(host[:24]))
@pytest.mark.parametrize("path", ["/", "/admin/", "/admin/login/"])
def test_a_foreign_host_reaches_no_page_that_would_repeat_it(raw: RawClient, path: str, host: str) -> None:
    response = raw.ask(under(host, raw.head_of("GET", path)))
    assert response.status == 400
    assert b"evil" not in response.body + str(response.headers).encode()


def under(host: str, request: bytes) -> bytes:
    """Return the request with another Host."""
    return request.replace(b"Host: 127.0.0.1", f"Host: {host}".encode("latin-1"))


# ---- WebSocket

HANDSHAKE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
HANDSHAKES: dict[str, tuple[tuple[str, ...], int]] = {
    "a good one": (HANDSHAKE, 403),
    "from elsewhere": ((*HANDSHAKE, "Origin: http://evil.example"), 403),
    "no version": (HANDSHAKE[:2] + HANDSHAKE[3:], 400),
    "another version": ((*HANDSHAKE[:2], "Sec-WebSocket-Version: 99", HANDSHAKE[3]), 400),
    "no key": (HANDSHAKE[:3], 400),
    "a short key": ((*HANDSHAKE[:3], "Sec-WebSocket-Key: x"), 400),
    "nothing but the word": (("Upgrade: websocket",), 400),
    "a subprotocol that is not ASCII": ((*HANDSHAKE, "Sec-WebSocket-Protocol: \xff"), 400),
    "extensions": (
        (*HANDSHAKE, "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=\xff"),
        403,
    ),
}


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing", "/openai/v1/models"])
@pytest.mark.parametrize("case", HANDSHAKES)
def test_there_is_no_websocket(raw: RawClient, path: str, case: str) -> None:
    headers, status = HANDSHAKES[case]
    response = raw.ask(raw.head_of("GET", path, *headers))
    assert raw_refusal(response)[0] == status
    assert raw.is_hung_up()


@pytest.mark.parametrize("fold", [b" ", b"\t", b"  X-Injected: 1"])
def test_a_folded_line_is_refused(raw: RawClient, fold: bytes) -> None:
    """RFC 9112 section 5.2: proxies read folded lines in different ways, and each line costs a copy of those
    before it.
    """
    assert (
        raw_refusal(raw.ask(raw.head_of("GET", "/v1/models", b"OpenAI-Organization: a\r\n" + fold)))[0] == 400
    )


@pytest.mark.parametrize("path", POSTED)
def test_nothing_is_upgraded_by_a_post(raw: RawClient, path: str) -> None:
    body = body_for(path)
    assert (
        raw_refusal(raw.ask(raw.head_of("POST", path, f"Content-Length: {len(body)}", *HANDSHAKE) + body))[0]
        == 405
    )


# ---- what a body is

NO_JSON_TYPES = [
    None,
    "",
    "text/plain",
    "text/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application",
]
NO_JSON_TYPES += [
    "application/vnd.api+json",
    "application/jsonp",
    "application/json, text/plain",
    "application/ json",
]
NO_JSON_TYPES += ["*/*", "json", "\xff"]


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("content_type", NO_JSON_TYPES)
def test_a_body_of_another_type_is_415(suspect: Client, path: str, content_type: str | None) -> None:
    answer = suspect.send("POST", path, body_for(path), content_type=content_type)
    assert refusal(answer) == (415, "unsupported_media_type", None)


@pytest.mark.parametrize(
    "parameter",
    ["", ";", "; charset=utf-8", ";charset=hex", "; charset=utf-16", "; charset=\xff", "; x" * 500],
)
def test_the_type_says_it_all(client: Client, parameter: str) -> None:
    """JSON is UTF-8 with every parameter (RFC 8259 section 8.1, and section 11: the type has none)."""
    assert (
        client.send("POST", CHAT, body_for(CHAT), content_type=f"application/json{parameter}").status == 200
    )


BOMBS: dict[str, tuple[str, bytes]] = {
    "gzip": ("gzip", gzip.compress(b" " * 100_000_000)),
    "gzip twice": ("gzip, gzip", gzip.compress(gzip.compress(b" " * 100_000_000))),
    "deflate": ("deflate", b"\x78\x9c" + b"\x00" * 1_000),
    "brotli": ("br", b"\x1b\xff\xff\x00"),
    "an unknown one": ("\xff", b"\x00"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_nothing_is_decompressed(suspect: Client, case: str) -> None:
    encoding, body = BOMBS[case]
    answer = suspect.send("POST", CHAT, body, content_encoding=encoding)
    assert refusal(answer) == (415, "unsupported_media_type", "Content-Encoding")
    assert answer.headers["accept-encoding"] == "identity"


def test_a_client_that_waits_for_the_invitation_gets_it_once(raw: RawClient) -> None:
    body = body_for(CHAT).replace(b"five", b"no-such-model")
    raw.send(raw.head_of("POST", CHAT, f"Content-Length: {len(body)}", "Expect: 100-continue"))
    assert raw.head().status == 100
    assert raw_refusal(raw.ask(body)) == (404, "model_not_found")


# ---- what is echoed

REPLACED = [
    "",
    "a" * 65,
    "a" * 8_000,
    "a b",
    "a;b",
    "a,b",
    "<script>",
    "../..",
    "${jndi}",
    "%0d%0a",
    "\xe9",
    "a\tb",
]


@BOTH_KINDS
@pytest.mark.parametrize("wish", REPLACED, ids=lambda wish: repr(wish[:12]))
def test_a_request_id_that_could_do_harm_is_replaced(
    raw: RawClient, method: str, path: str, wish: str
) -> None:
    response = raw.ask(request_with(raw, method, path, f"X-Request-Id: {wish}"))
    assert response.headers["x-request-id"].startswith("req_")


@BOTH_KINDS
def test_of_two_request_ids_none_is_joined_to_the_other(raw: RawClient, method: str, path: str) -> None:
    response = raw.ask(request_with(raw, method, path, "X-Request-Id: a", "X-Request-Id: b"))
    assert response.headers["x-request-id"] in {"a", "b"} or response.headers["x-request-id"].startswith(
        "req_"
    )


DIALECTS = [
    "klingon",
    "OPENAI",
    "openai ,bitseek",
    "openai,openai",
    "../openai",
    "\xff\xfe",
    "x" * 8_000,
    "__class__",
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: repr(dialect[:12]))
def test_an_unknown_dialect_is_refused(suspect: Client, dialect: str) -> None:
    headers: dict[str, Any] = {"x_chatapi_dialect": dialect}
    for path in POSTED:
        assert refusal(suspect.send("POST", path, body_for(path), **headers)) == (
            400,
            "unknown_dialect",
            None,
        )
