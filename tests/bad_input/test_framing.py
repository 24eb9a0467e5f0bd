"""Where a request ends, and that nobody gets another's answer (RFC 9112 sections 6 and 7).

More of it, with the server alone: tests/chatapi/web/test_server.py.
"""

import socket
import struct

import pytest

from tests.bad_input.bodies import CHAT, body_for
from tests.bad_input.raw_http import LINE_TOO_LONG, NOT_WELL_FORMED, RawClient, refusal
from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

BODY = body_for(CHAT).replace(b"five", b"no-such-model")
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

AMBIGUOUS: dict[str, tuple[tuple[str | bytes, ...], bytes]] = {
    "a length and chunks": ((LENGTH, CHUNKED), CHUNKS),
    "chunks and a length": ((CHUNKED, LENGTH), CHUNKS),
    "the length twice": ((LENGTH, LENGTH), BODY),
    "two lengths": ((LENGTH, "Content-Length: 3"), BODY),
    "a list of lengths": ((f"{LENGTH}, {len(BODY)}",), BODY),
    "a signed length": ((LENGTH.replace(": ", ": +"),), BODY),
    "a negative length": (("Content-Length: -1",), BODY),
    "a hexadecimal length": (("Content-Length: 0x10",), BODY),
    "a length with an underscore": (("Content-Length: 1_0",), BODY),
    "a length in Arabic": (("Content-Length: ١٢".encode(),), BODY),
    "a length that is a float": (("Content-Length: 1e2",), BODY),
    "an empty length": (("Content-Length:",), BODY),
    "a length of 5000 digits": (("Content-Length: " + "9" * 5_000,), BODY),
    "a space before the colon": ((LENGTH.replace(":", " :"),), BODY),
    "chunked twice": ((CHUNKED, CHUNKED), CHUNKS),
    "chunked, chunked": ((f"{CHUNKED}, chunked",), CHUNKS),
    "identity": (("Transfer-Encoding: identity", LENGTH), BODY),
    "gzip, chunked": (("Transfer-Encoding: gzip, chunked",), CHUNKS),
    "chunked, identity": (("Transfer-Encoding: chunked, identity",), CHUNKS),
    "xchunked": (("Transfer-Encoding: xchunked",), CHUNKS),
    "quoted chunked": (('Transfer-Encoding: "chunked"',), CHUNKS),
    "a vertical tab": ((b"Transfer-Encoding: \x0bchunked",), CHUNKS),
    "a chunk that is signed": ((CHUNKED,), b"+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is negative": ((CHUNKED,), b"-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk with 0x": ((CHUNKED,), b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk with an underscore": ((CHUNKED,), b"0_5\r\nhello\r\n0\r\n\r\n"),
    "a chunk without its size": ((CHUNKED,), b"\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is longer than it says": ((CHUNKED,), b"3\r\nhello\r\n0\r\n\r\n"),
    "a chunk with a long extension": ((CHUNKED,), b"5;" + b"a" * 20_000 + b"\r\nhello\r\n0\r\n\r\n"),
    "trailers without end": ((CHUNKED,), b"0\r\n" + b"X-Trailer: 1\r\n" * 10_000),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_a_body_whose_end_is_in_doubt_is_refused(raw: RawClient, case: str) -> None:
    headers, body = AMBIGUOUS[case]
    assert refusal(raw.ask(raw.head_of("POST", CHAT, *headers) + body)) == NOT_WELL_FORMED
    assert raw.is_hung_up()


NO_REQUESTS = {
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/2.0 in words": b"GET /v1/models HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n",
    "HTTP/1.9": b"GET /v1/models HTTP/1.9\r\nHost: 127.0.0.1\r\n\r\n",
    "http in small letters": b"GET /v1/models http/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "no version": b"GET /v1/models \r\n\r\n",
    "two spaces": b"GET  /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a tab": b"GET\t/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a method in UTF-8": "GÉT /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(),
    "a header that begins with a space": b"GET /v1/models HTTP/1.1\r\n Host: 127.0.0.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "RESP": b"*1\r\n$4\r\nPING\r\n",
    "zeros": b"\x00" * 64 + b"\r\n\r\n",
}
ENDLESS = {"line": b"A" * 100_000, "method": b"A" * 20_000 + b" / HTTP/1.1\r\n\r\n"}


@pytest.mark.parametrize("case", NO_REQUESTS)
def test_what_is_no_request_is_refused(raw: RawClient, case: str) -> None:
    assert refusal(raw.ask(NO_REQUESTS[case])) == NOT_WELL_FORMED
    assert raw.is_hung_up()


@pytest.mark.parametrize("case", ENDLESS)
def test_an_endless_first_line_is_refused(raw: RawClient, case: str) -> None:
    assert refusal(raw.ask(ENDLESS[case])) == LINE_TOO_LONG
    assert raw.is_hung_up()


@pytest.mark.parametrize("headers", [(LENGTH,), (CHUNKED,)])
def test_a_pipelined_request_does_not_inherit_the_key(raw: RawClient, headers: tuple[str, ...]) -> None:
    first = raw.head_of("POST", CHAT, *headers) + (CHUNKS if CHUNKED in headers else BODY)
    raw.send(first + b"GET /v1/key HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + raw.head_of("GET", "/v1/models"))
    assert refusal(raw.response()) == (404, "model_not_found")
    assert refusal(raw.response()) == (401, "invalid_api_key")
    assert raw.response().status == 200


def test_a_request_in_a_body_is_not_carried_out(raw: RawClient) -> None:
    hidden = raw.head_of("GET", "/v1/key")
    assert refusal(raw.ask(raw.head_of("POST", CHAT, f"Content-Length: {len(hidden)}") + hidden)) == (
        400,
        "invalid_json",
    )
    assert not raw.has_bytes(within_seconds=0.2)


def test_what_follows_a_refusal_is_not_carried_out(raw: RawClient) -> None:
    raw.send(raw.head_of("POST", CHAT, LENGTH, CHUNKED) + BODY + raw.head_of("GET", "/v1/models"))
    assert refusal(raw.response()) == NOT_WELL_FORMED
    assert raw.is_hung_up()


def test_a_trailer_is_no_header(raw: RawClient) -> None:
    request = raw.head_of("POST", CHAT, CHUNKED).replace(raw.key.encode(), b"x")
    trailer = CHUNKS[:-2] + f"Authorization: Bearer {raw.key}\r\n\r\n".encode()
    assert refusal(raw.ask(request + trailer)) == (401, "invalid_api_key")


def test_a_body_byte_by_byte_is_a_body(raw: RawClient) -> None:
    request = raw.head_of("POST", CHAT, LENGTH) + BODY
    for index in range(len(request)):
        raw.send(request[index : index + 1])
    assert refusal(raw.response()) == (404, "model_not_found")


@pytest.mark.parametrize("version", ["HTTP/1.0"])
def test_http_1_0_is_answered_and_closed(raw: RawClient, version: str) -> None:
    response = raw.ask(raw.head_of("POST", CHAT, LENGTH, version=version) + BODY)
    assert refusal(response) == (404, "model_not_found")
    assert raw.is_hung_up()


@pytest.mark.parametrize("sent", [20, -20, -1], ids=["in the head", "in the body", "before the last byte"])
def test_a_client_that_resets_in_the_middle_harms_nobody(
    installation: Installation, raw: RawClient, client: Client, sent: int
) -> None:
    earlier = client.complete("nothing").headers["x-request-id"].removeprefix("req_")
    wait_for(lambda: earlier in installation.log("web"), "the access lines of all earlier requests")
    logged = installation.log("web")
    raw.send((raw.head_of("POST", CHAT, LENGTH) + BODY)[:sent])
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.__exit__()
    assert client.complete("five").status == 200
    assert installation.log("web") == logged
