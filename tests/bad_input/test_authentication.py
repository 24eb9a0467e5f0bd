"""Keys that are none, nearly one, or no longer one: always the same 401, in the same time.

Keys that were revoked, have expired or belong to something closed:
tests/chatapi/test_errors_before_the_first_byte.py. That a malformed key costs no query:
tests/accounts/test_authentication.py. How often one address may try: tests/accounts/test_failed_attempts.py.
"""

import time
from statistics import median

import pytest

from accounts import api_keys
from tests.bad_input.bodies import CHAT, POSTED, TEXT, body_for, refusal
from tests.bad_input.raw_http import RawClient
from tests.bad_input.raw_http import refusal as raw_refusal
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

INCORRECT = (401, "invalid_api_key")
ROUTES = [
    *(("POST", path) for path in POSTED),
    ("GET", "/v1/models"),
    ("GET", "/v1/key"),
    ("GET", "/v1/generations/chatcmpl-0"),
]


def forged(key: str) -> str:
    """Return a key with the public part of this one, another secret and a right checksum."""
    body = key[:20] + api_keys.generate(is_test=False)[20:-6]
    forged = body + api_keys._checksum(body)
    assert api_keys.parse(forged)
    return forged


def wrong_headers(key: str) -> dict[str, bytes | None]:
    """Return Authorization headers made from a good key that authenticate no one."""
    other_environment = key.replace("ck_live_", "ck_test_")
    nobody = api_keys.generate(is_test=False)
    good = key.encode()
    return {
        "none": None,
        "empty": b"",
        "the scheme only": b"Bearer",
        "another scheme": b"Basic " + good,
        "no scheme": good,
        "a tab": b"Bearer\t" + good,
        "two keys": b"Bearer " + good + b", Bearer " + good,
        "two words": b"Bearer " + good + b" x",
        "a quoted key": b'Bearer "' + good + b'"',
        "a parameter": b"Bearer token=" + good,
        "a prefix": b"Bearer ck_live_",
        "half a key": b"Bearer " + good[: len(good) // 2],
        "one character less": b"Bearer " + good[:-1],
        "one character more": b"Bearer " + good + b"0",
        "a wrong checksum": b"Bearer " + good[:-1] + (b"a" if good[-1:] != b"a" else b"b"),
        "the other environment": b"Bearer " + other_environment.encode(),
        "capitals": b"Bearer " + good.upper(),
        "a right checksum": b"Bearer " + nobody.encode(),
        "another secret, a right checksum": b"Bearer " + forged(key).encode(),
        "8 kB": b"Bearer " + b"k" * 8_000,
        "8 kB of key": b"Bearer " + good * 130,
        "bytes": b"Bearer \xff\xfe",
        "Cyrillic": "Bearer ключ".encode(),
        "fullwidth digits": (
            "Bearer " + key.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)}) + "１"
        ).encode(),
        "a control character": b"Bearer " + good + b"\x01",
        "SQL": b"Bearer ' OR 1=1 --",
        "LDAP": b"Bearer *)(uid=*))(|(uid=*",
        "a format": b"Bearer %s%n{0.__class__}{}",
        "a lookup": b"Bearer ${jndi:ldap://127.0.0.1/x}",
        "a path": b"Bearer ../../etc/passwd",
        "a JSON web token": b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
        "null": b"Bearer null",
    }


CASES = list(wrong_headers(api_keys.generate(is_test=False)))


@pytest.mark.parametrize("case", CASES)
def test_a_key_that_is_none_is_401_everywhere(raw: RawClient, case: str) -> None:
    header = wrong_headers(raw.key)[case]
    bodies = set()
    for method, path in ROUTES:
        body = body_for(path) if method == "POST" else b""
        request = raw.head_of(method, path, f"Content-Length: {len(body)}") + body
        line = b"" if header is None else b"Authorization: " + header + b"\r\n"
        response = raw.ask(request.replace(f"Authorization: Bearer {raw.key}\r\n".encode(), line))
        assert raw_refusal(response) == INCORRECT
        assert response.headers["www-authenticate"] == "Bearer"
        bodies.add(response.body)
    assert len(bodies) == 1


@pytest.mark.parametrize("spaces", ["  ", "    ", " "])
def test_spaces_around_a_good_key_do_not_matter(raw: RawClient, spaces: str) -> None:
    request = raw.head_of("GET", "/v1/models").replace(b"Bearer ", b"bearer" + spaces.encode())
    assert raw.ask(request.replace(raw.key.encode(), raw.key.encode() + spaces.encode())).status == 200


def test_a_second_authorization_is_refused_and_not_chosen_from(raw: RawClient) -> None:
    request = raw.head_of("POST", CHAT, "Content-Length: 2", f"authorization: Bearer {raw.key}") + b"{}"
    assert raw_refusal(raw.ask(request)) == (400, "invalid_request")


ELSEWHERE = [
    "?api_key={key}",
    "?key={key}",
    "?access_token={key}",
    "?authorization=Bearer%20{key}",
    "?token={key}",
]


@pytest.mark.parametrize("query", ELSEWHERE)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_key_in_the_address_is_no_key(suspect: Client, method: str, path: str, query: str) -> None:
    answer = suspect.send(method, path + query.format(key=suspect.key), body_for(path), authorization=None)
    assert refusal(answer)[:2] == INCORRECT
    assert suspect.key.encode() not in answer.body


@pytest.mark.parametrize(
    "name",
    ["X-Api-Key", "Api-Key", "Proxy-Authorization", "X-Authorization", "Cookie", "Sec-WebSocket-Protocol"],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_key_in_another_header_is_no_key(suspect: Client, path: str, name: str) -> None:
    with suspect.exchange(
        "POST", path, body_for(path), {"Authorization": None, name: f"Bearer {suspect.key}"}
    ) as exchange:
        assert refusal(exchange.read())[:2] == INCORRECT


def test_a_key_in_the_body_is_no_key(suspect: Client) -> None:
    body = body_for(CHAT)[:-1] + f', "api_key": "{suspect.key}"}}'.encode()
    assert refusal(suspect.send("POST", CHAT, body, authorization=None))[:2] == INCORRECT


def test_the_key_is_checked_before_the_request(suspect: Client) -> None:
    """Requests without a key reveal no models, generations or dialects."""
    for path, body in (
        (CHAT, b"{"),
        (CHAT, body_for(CHAT).replace(b"five", b"none")),
        (TEXT, b""),
        (f"/bitseek{CHAT}", b"[]"),
    ):
        assert (
            refusal(suspect.send("POST", path, body, authorization="Bearer x", x_chatapi_dialect="klingon"))[
                :2
            ]
            == INCORRECT
        )


def _refusal_ms(client: Client, key: str) -> float:
    began = time.perf_counter()
    assert client.send("GET", "/v1/models", authorization=f"Bearer {key}").status == 401
    return (time.perf_counter() - began) * 1_000


def test_the_time_does_not_tell_a_known_key_from_an_unknown_one(suspect: Client) -> None:
    """The two take turns, so that other load on the machine affects both."""
    unknown = api_keys.generate(is_test=False)
    known = forged(suspect.key)
    times = [(_refusal_ms(suspect, unknown), _refusal_ms(suspect, known)) for _ in range(150)]
    unknown_ms, known_ms = (median(column) for column in zip(*times, strict=True))
    assert abs(unknown_ms - known_ms) < 0.25 * min(unknown_ms, known_ms)


def test_wrong_keys_by_the_hundred_keep_nobody_else_waiting(
    suspect: Client, client: Client, installation: Installation
) -> None:
    for _ in range(300):
        suspect.send("POST", CHAT, b"{}", authorization="Bearer ck_live_nonsense")
    began = time.monotonic()
    assert client.complete("five").status == 200
    assert time.monotonic() - began < 2
    assert suspect.key not in installation.log("web")
