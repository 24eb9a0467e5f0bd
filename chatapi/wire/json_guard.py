"""Request bytes in, a JSON object of bounded depth and size out, with nothing in it that a database or an upstream chokes on.

msgspec is strict about the grammar (RFC 8259), UTF-8, lone surrogates and numbers that no float holds, but lets through what is
refused here: too deep a nesting (its own bound is Python's recursion limit), too many values, NUL, and duplicate keys, of which
the last would win here and perhaps the first elsewhere. Every step is one pass in C over the bytes; none is a loop in Python
over what a client sends.
"""

import json
from array import array
from itertools import accumulate
from typing import Any

import msgspec

from chatapi.wire.caps import MAX_DEPTH, MAX_VALUES
from chatapi.wire.invalid_request import InvalidRequest



def _all_but(kept: bytes) -> bytes:
    return bytes(set(range(256)) - set(kept))


_NO_BRACKET, _NO_SEPARATOR = _all_but(b'"{}[]'), _all_but(b'",{[')
_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")  # as signed bytes: one down, one up
_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` holds.

    Raises `InvalidRequest` (invalid_json, too_deep, duplicate_parameter, invalid_value for a NUL, 413 request_too_large), and
    `msgspec.ValidationError` for a number that is out of range.
    """
    plain = _without_escapes(body)
    _check_size(plain)
    _check_depth(plain)
    if rb"\u0000" in plain:
        raise InvalidRequest("Invalid body: NUL characters (\\u0000) are not allowed.")
    found = _decode(body)
    if not isinstance(found, dict):
        raise InvalidRequest("Invalid body: expected a JSON object.", code="invalid_json")
    # A key that came twice is decoded once, so written out again it lacks quotes. (\u0022 comes out as \", one quote more.)
    if body.count(b'"') + plain.count(rb"\u0022") != _encoder.encode(found).count(b'"'):
        raise _duplicate(body)
    return found


def _without_escapes(body: bytes) -> bytes:
    r"""The body with \\ and \" painted over, so that every quote left begins or ends a string and every \u left is an escape."""
    if b"\\" not in body:
        return body
    return body.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _outside_strings(plain: bytes, dropped: bytes) -> bytes:
    """The body without strings and without the characters `dropped` (all but a few, so little is left to cut into pieces)."""
    marks = plain.translate(None, dropped).replace(b'""', b"")  # two neighbouring quotes change nothing for what comes after them
    return b"".join(marks.split(b'"')[::2])


def _check_size(plain: bytes) -> None:
    """At most MAX_VALUES values: a cheap upper bound first, the truth when that is not enough.

    No valid body within the cap has more quotes than a key and a string for each value; they bound the memory of `_outside_strings`.
    """
    if sum(map(plain.count, (b",", b"{", b"[", b"}", b"]"))) < MAX_VALUES:
        return
    if plain.count(b'"') > 4 * MAX_VALUES or len(_outside_strings(plain, _NO_SEPARATOR)) >= MAX_VALUES:
        raise InvalidRequest(f"The body has more than {MAX_VALUES} values.", code="request_too_large", status=413)


def _check_depth(plain: bytes) -> None:
    if plain.count(b"{") + plain.count(b"[") <= MAX_DEPTH:
        return
    steps = array("b", _outside_strings(plain, _NO_BRACKET).translate(_STEPS))
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise InvalidRequest(f"The body is nested more than {MAX_DEPTH} levels deep.", code="too_deep")


def _decode(body: bytes) -> Any:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"We could not parse the JSON body of your request: {error}.", code="invalid_json") from None


def _duplicate(body: bytes) -> InvalidRequest:
    """Which key came twice; only a refused request pays for this slower look."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                name = key[:64]
                raise InvalidRequest(f"Duplicate parameter: '{name}'.", name, "duplicate_parameter")
            seen.add(key)

    try:
        json.loads(body, object_pairs_hook=refuse_duplicates)
    except InvalidRequest as found:
        return found
    return InvalidRequest("The body has a duplicate key.", code="duplicate_parameter")
