"""Attacks by a stranger without a key: bytes, connections, handshakes and requests that are refused."""

import asyncio
import base64
import os

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import CHAT, bearer, chunked_head, head, request

NO_KEY = "no key"
ONE_BYTE_CHUNK = b"1\r\nx\r\n"
MB = 1_000_000
WRONG_KEY = "ck_live_" + "a" * 40
ROUTES = (
    ("GET", "/healthz"),
    ("POST", "/healthz"),
    ("POST", CHAT),
    ("GET", "/v1/models"),
    ("POST", "/v1/generations/x/cancel"),
    ("POST", "/console/sign-in"),
    ("POST", "/openapi.json"),
    ("PUT", "/nowhere"),
)


async def chunk_flood(attacker: Attacker, method: str, path: str, n_bytes: int) -> None:
    """Send a body of one-byte chunks, this long on the wire, over one connection."""
    await attacker.send_once(
        chunked_head(method, path) + ONE_BYTE_CHUNK * (n_bytes // len(ONE_BYTE_CHUNK)) + b"0\r\n\r\n"
    )


async def over_and_over(attacker: Attacker, payload: bytes, connections: int, *, waits: bool = True) -> None:
    """Send the payload again and again, over this many new connections at a time; with `waits`, each waits
    for the head of the answer.
    """

    async def one() -> None:
        while True:
            if not await attacker.send_once(payload, waits=waits):
                await asyncio.sleep(0.02)

    await asyncio.gather(*(one() for _ in range(connections)))


@attack(NO_KEY)
async def one_byte_chunks_healthz(attacker: Attacker) -> None:
    """GET /healthz with a body of 3 MB in chunks of one byte."""
    await chunk_flood(attacker, "GET", "/healthz", 3 * MB)


@attack(NO_KEY)
async def one_byte_chunks_every_route(attacker: Attacker) -> None:
    """3 MB in chunks of one byte, to each of eight routes, one after the other."""
    for method, path in ROUTES:
        await chunk_flood(attacker, method, path, 3 * MB)


@attack(NO_KEY)
async def one_byte_chunks_40_mb(attacker: Attacker) -> None:
    """POST /v1/chat/completions with a body of 40 MB in chunks of one byte."""
    await chunk_flood(attacker, "POST", CHAT, 40 * MB)


@attack(NO_KEY)
async def one_byte_chunks_30_connections(attacker: Attacker) -> None:
    """30 connections that send chunks of one byte without an end."""
    payload = chunked_head("POST", CHAT) + ONE_BYTE_CHUNK * (4 * MB // len(ONE_BYTE_CHUNK))
    await over_and_over(attacker, payload, 30)


@attack(NO_KEY)
async def one_byte_segments(attacker: Attacker) -> None:
    """200 connections whose body comes in TCP segments of one byte."""
    length = {"Content-Type": "application/json", "Content-Length": "60000"}
    await attacker.drip(200, head("POST", CHAT, length), b"x", pause_seconds=0.002)


@attack(NO_KEY)
async def chunk_extensions(attacker: Attacker) -> None:
    """Chunks of one byte with an extension of 1,000 bytes each, 20 connections."""
    chunk = b"1;" + b"e" * 1000 + b"\r\nx\r\n"
    await over_and_over(attacker, chunked_head("POST", CHAT) + chunk * 2000, 20)


@attack(NO_KEY)
async def one_long_chunk_extension(attacker: Attacker) -> None:
    """A chunk whose extension has 20 MB, 4 connections."""
    await over_and_over(attacker, chunked_head("POST", CHAT) + b"1;" + b"e" * (20 * MB), 4)


@attack(NO_KEY)
async def trailer_lines(attacker: Attacker) -> None:
    """Trailer fields without an end behind the last chunk, 10 connections."""
    await over_and_over(attacker, chunked_head("POST", CHAT) + b"0\r\n" + b"a:b\r\n" * 400_000, 10)


@attack(NO_KEY)
async def many_header_lines(attacker: Attacker) -> None:
    """400,000 header lines of four bytes in one head, 10 connections."""
    await over_and_over(attacker, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 400_000, 10)


@attack(NO_KEY)
async def header_lines_within_bounds(attacker: Attacker) -> None:
    """Requests with 400 header lines each, over 20 kept connections."""
    await attacker.flood(
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 400 + b"\r\n", connections=20
    )


@attack(NO_KEY)
async def one_huge_header(attacker: Attacker) -> None:
    """A header line of 20 MB, 10 connections."""
    await over_and_over(attacker, b"GET / HTTP/1.1\r\nX: " + b"a" * (20 * MB), 10)


@attack(NO_KEY)
async def empty_lines(attacker: Attacker) -> None:
    """Empty lines before a request, 10 MB on each of 10 connections."""
    await over_and_over(attacker, b"\r\n" * (5 * MB), 10)


@attack(NO_KEY)
async def folded_headers(attacker: Attacker) -> None:
    """Header lines that continue the one before (obsolete folding), 10 connections."""
    await over_and_over(attacker, b"GET / HTTP/1.1\r\nX: y\r\n" + b" z\r\n" * 400_000, 10)


@attack(NO_KEY)
async def pipelined_healthz(attacker: Attacker) -> None:
    """Requests for /healthz, pipelined 10,000 at a time over 5 connections, answers unread."""
    await attacker.hold(5, request("GET", "/healthz") * 10_000, receive_buffer_bytes=4096)


@attack(NO_KEY)
async def pipelined_404(attacker: Attacker) -> None:
    """Requests for pages that do not exist, pipelined 5,000 at a time over 5 connections."""
    await over_and_over(attacker, request("GET", "/nowhere") * 5_000, 5)


@attack(NO_KEY)
async def garbage(attacker: Attacker) -> None:
    """Random bytes over 20 connections."""
    await over_and_over(attacker, os.urandom(MB), 20)


@attack(NO_KEY)
async def tls_hello(attacker: Attacker) -> None:
    """The beginning of a TLS handshake, over 50 new connections at a time, which are left at once."""
    hello = bytes.fromhex("1603010200010001fc0303") + os.urandom(508)
    await over_and_over(attacker, hello, 50, waits=False)


@attack(NO_KEY)
async def http2_preface(attacker: Attacker) -> None:
    """The preface of HTTP/2, over 50 new connections at a time."""
    await over_and_over(attacker, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9000, 50)


@attack(NO_KEY)
async def slow_heads(attacker: Attacker) -> None:
    """Slowloris: 1,000 connections whose head comes line by line, one in half a second."""
    await attacker.drip(attacker.share(1000), b"GET / HTTP/1.1\r\n", b"a: b\r\n", pause_seconds=0.5)


@attack(NO_KEY)
async def slow_bodies(attacker: Attacker) -> None:
    """1,000 connections whose body of 60,000 bytes comes byte by byte, five in a second."""
    length = {"Content-Type": "application/json", "Content-Length": "60000"}
    await attacker.drip(attacker.share(1000), head("POST", CHAT, length), b"x", pause_seconds=0.2)


@attack(NO_KEY)
async def idle_connections(attacker: Attacker) -> None:
    """15,000 connections that send nothing."""
    workers = 50
    await asyncio.gather(*(attacker.hold(attacker.share(15_000) // workers) for _ in range(workers)))


@attack(NO_KEY)
async def connections_that_come_and_go(attacker: Attacker) -> None:
    """Connections that are opened and reset at once, 50 at a time."""

    async def one() -> None:
        while True:
            async with attacker.connected() as connection:
                if connection is None:
                    await asyncio.sleep(0.02)

    await asyncio.gather(*(one() for _ in range(50)))


@attack(NO_KEY)
async def large_bodies(attacker: Attacker) -> None:
    """60 bodies of 7 MB at once, all but the last byte."""
    n_bytes = 7 * MB
    length = {"Content-Type": "application/json", "Content-Length": str(n_bytes + 1)}
    payload = head("POST", CHAT, length) + b" " * n_bytes
    await asyncio.gather(*(attacker.hold(1, payload) for _ in range(60)))


@attack(NO_KEY)
async def large_bodies_with_wrong_key(attacker: Attacker) -> None:
    """60 bodies of 7 MB at once with a key that does not exist."""
    payload = request("POST", CHAT, bearer(WRONG_KEY), b" " * (7 * MB))
    await asyncio.gather(*(attacker.send_once(payload) for _ in range(60)))


@attack(NO_KEY)
async def bodies_in_large_chunks(attacker: Attacker) -> None:
    """Chunked bodies of 7 MB without an end, over 20 connections."""
    payload = chunked_head("POST", CHAT) + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 107
    await over_and_over(attacker, payload, 20)


@attack(NO_KEY)
async def expect_100_continue(attacker: Attacker) -> None:
    """2,000 requests that ask whether they may send 7 MB, and send nothing."""
    payload = head(
        "POST",
        CHAT,
        {"Content-Type": "application/json", "Content-Length": "7000000", "Expect": "100-continue"},
    )
    await attacker.hold(attacker.share(2000), payload)


@attack(NO_KEY)
async def websocket_handshakes(attacker: Attacker) -> None:
    """WebSocket handshakes with the Live feed, over 50 new connections at a time."""
    await over_and_over(attacker, websocket("/admin/live/feed"), 50)


@attack(NO_KEY)
async def websocket_handshakes_nowhere(attacker: Attacker) -> None:
    """WebSocket handshakes with a path that does not exist and a wrong version, 50 at a time."""
    await over_and_over(attacker, websocket("/nowhere").replace(b"Version: 13", b"Version: 99"), 50)


@attack(NO_KEY)
async def websocket_handshakes_that_wait(attacker: Attacker) -> None:
    """3,000 WebSocket handshakes whose head never ends."""
    await attacker.hold(attacker.share(3000), websocket("/admin/live/feed")[:-2])


def websocket(path: str) -> bytes:
    """Return a WebSocket's opening handshake (RFC 6455, section 4.1)."""
    return head(
        "GET",
        path,
        {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
            "Sec-WebSocket-Version": "13",
            "Origin": "http://127.0.0.1",
        },
    )


@attack(NO_KEY)
async def wrong_keys(attacker: Attacker) -> None:
    """Requests with keys that look right and do not exist, over 30 kept connections."""
    await attacker.flood(request("POST", CHAT, bearer(WRONG_KEY), b"{}"), connections=30)


@attack(NO_KEY)
async def malformed_keys(attacker: Attacker) -> None:
    """Requests with a malformed key, over 30 kept connections."""
    await attacker.flood(request("GET", "/v1/models", {"Authorization": "Bearer nonsense"}), connections=30)


@attack(NO_KEY)
async def cors_preflights(attacker: Attacker) -> None:
    """Preflights of another origin's page, over 30 kept connections."""
    asked = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    await attacker.flood(request("OPTIONS", CHAT, asked), connections=30)


@attack(NO_KEY)
async def pages_that_do_not_exist(attacker: Attacker) -> None:
    """Requests for a page that does not exist, over 30 kept connections."""
    await attacker.flood(request("GET", "/v1/nowhere"), connections=30)


@attack(NO_KEY)
async def openapi_document(attacker: Attacker) -> None:
    """Requests for /openapi.json, over 10 kept connections."""
    await attacker.flood(request("GET", "/openapi.json"), connections=10)


@attack(NO_KEY)
async def docs_page(attacker: Attacker) -> None:
    """Requests for /docs, over 10 kept connections."""
    await attacker.flood(request("GET", "/docs"), connections=10)


@attack(NO_KEY)
async def sign_in_page(attacker: Attacker) -> None:
    """Requests for the page to sign in, over 10 kept connections."""
    await attacker.flood(request("GET", "/console/sign-in"), connections=10)


@attack(NO_KEY)
async def sign_in_attempts(attacker: Attacker) -> None:
    """Passwords posted without a CSRF token, over 10 kept connections."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    await attacker.flood(
        request("POST", "/console/sign-in", form, b"username=admin&password=" + b"p" * 1000), connections=10
    )


@attack(NO_KEY)
async def metrics_without_token(attacker: Attacker) -> None:
    """Requests for /metrics without its token, over 20 kept connections."""
    await attacker.flood(request("GET", "/metrics"), connections=20)


@attack(NO_KEY)
async def readiness(attacker: Attacker) -> None:
    """Requests for /readyz, which asks the database and Redis, over 20 kept connections."""
    await attacker.flood(request("GET", "/readyz"), connections=20)


@attack(NO_KEY)
async def unusual_methods(attacker: Attacker) -> None:
    """HEAD, OPTIONS, TRACE, PATCH, DELETE and a made-up method on three routes."""
    methods = ("HEAD", "OPTIONS", "TRACE", "PATCH", "DELETE", "FROBNICATE")
    payloads = [request(method, path) for method in methods for path in ("/healthz", CHAT, "/admin/")]
    await asyncio.gather(*(attacker.flood(payload, connections=1) for payload in payloads))


@attack(NO_KEY)
async def long_paths(attacker: Attacker) -> None:
    """Paths of 7,000 bytes with escapes and a query of 500 parameters, over 10 kept connections."""
    path = "/v1/" + "%2e%2e/" * 1000 + "?" + "&".join(f"a{number}=1" for number in range(500))
    await attacker.flood(request("GET", path), connections=10)


@attack(NO_KEY)
async def cookies(attacker: Attacker) -> None:
    """Requests for the admin with 200 cookies and an unknown session, over 10 kept connections."""
    cookie = "; ".join(["sessionid=" + "a" * 32, *(f"c{number}={'v' * 20}" for number in range(200))])
    await attacker.flood(request("GET", "/admin/", {"Cookie": cookie}), connections=10)


@attack(NO_KEY)
async def multipart_forms(attacker: Attacker) -> None:
    """A multipart form of 900 fields and a file of 2 MB to the page to sign in, over 5 kept connections."""
    part = b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nv\r\n'
    file = (
        b'--b\r\nContent-Disposition: form-data; name="x"; filename="x"\r\n\r\n'
        + b"x" * (2 * MB)
        + b"\r\n--b--\r\n"
    )
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    await attacker.flood(request("POST", "/console/sign-in", form, part * 900 + file), connections=5)
