"""Bodies that are no JSON object in UTF-8 (RFC 8259)."""

import pytest

from tests.bad_input.bodies import POSTED, body_for, refusal
from tests.chatapi.http_client import Client

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

GOOD = body_for("/v1/chat/completions")

NO_JSON = {
    "nothing": b"",
    "white space": b" \n\t",
    "null": b"null",
    "an array": b"[]",
    "a string": b'"x"',
    "a number": b"1",
    "a boolean": b"true",
    "half an object": GOOD[:-1],
    "half a string": GOOD[:20],
    "two documents": GOOD + GOOD,
    "two lines of JSON": GOOD + b"\n" + GOOD,
    "something after the end": GOOD + b"x",
    "NUL after the end": GOOD + b"\x00",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "UTF-16 without a mark": GOOD.decode().encode("utf-16-le"),
    "UTF-32": GOOD.decode().encode("utf-32"),
    "UTF-7": GOOD.replace(b"five", b"+AGYAaQB2AGU-").replace(b'"', b"+ACI-"),
    "latin-1": GOOD.replace(b"hello", "é".encode("latin-1")),
    "an overlong encoding": GOOD.replace(b"hello", b"\xc0\x80"),
    "an encoded surrogate": GOOD.replace(b"hello", b"\xed\xa0\x80"),
    "a code point beyond Unicode": GOOD.replace(b"hello", b"\xf4\x90\x80\x80"),
    "a raw newline in a string": GOOD.replace(b"hello", b"a\nb"),
    "a raw NUL in a string": GOOD.replace(b"hello", b"a\x00b"),
    "an unknown escape": GOOD.replace(b"hello", rb"\x41"),
    "a short escape": GOOD.replace(b"hello", rb"\u41"),
    "single quotes": GOOD.replace(b'"', b"'"),
    "bare keys": GOOD.replace(b'"model"', b"model"),
    "a line comment": b"// hello\n" + GOOD,
    "a block comment": GOOD[:-1] + b"/* hello */}",
    "a trailing comma": GOOD[:-1] + b",}",
    "a trailing comma in an array": GOOD.replace(b"}]", b"},]"),
    "a missing comma": GOOD.replace(b", ", b" ", 1),
    "a form": b"model=five&messages=hello",
    "XML": b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><x>&e;</x>",
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.",
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00",
}


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_a_body_that_is_no_json_object_is_refused(suspect: Client, path: str, body: bytes) -> None:
    assert refusal(suspect.send("POST", path, body)) == (400, "invalid_json", None)


def test_the_same_connection_serves_the_next_request(suspect: Client, client: Client) -> None:
    """The rest of a bad body is not read as the beginning of a request."""
    for body in NO_JSON.values():
        suspect.send("POST", POSTED[0], body)
    assert client.complete("five").status == 200
