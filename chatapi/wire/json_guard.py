"""Decodes a request's bytes into a JSON object of bounded depth and size.

msgspec is strict about the grammar (RFC 8259), UTF-8, lone surrogates and numbers that no float holds. These
are refused here: too deep a nesting (msgspec's own bound is Python's recursion limit), too many values, slow
numbers, NUL (databases refuse it), and duplicate keys (the last one would count here, perhaps the first one
at an upstream). Each step is a pass in C over the bytes; only the search for a duplicate's name calls Python,
for few names.

A web process decodes up to 64 KiB on its event loop, so all steps together take a few milliseconds for any
64 KiB; tests/wire/test_requests_hostile.py has the worst known bodies.
"""

import json
import re
from array import array
from collections import Counter
from itertools import accumulate
from typing import Any

import msgspec

from chatapi.wire.caps import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EXPONENTS,
    MAX_NAME_CHARS,
    MAX_NAMES_COMPARED,
    MAX_VALUES,
)
from chatapi.wire.invalid_request import InvalidRequest, duplicate


def _all_but(kept: bytes) -> bytes:
    return bytes(set(range(256)) - set(kept))


_NO_BRACKET, _NO_SEPARATOR = _all_but(b'"{}[]'), _all_but(b'",{[')
_NO_MARK, _NO_QUOTE = _all_but(b'",{}[]'), _all_but(b'"')
_STEPS = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")  # as signed bytes: one down, one up
_ALL_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT = b"e000"
_SURROGATE_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_decoder = msgspec.json.Decoder()
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


def decode(body: bytes) -> dict[str, Any]:
    """Return the JSON object that `body` holds.

    Raises `InvalidRequest` (invalid_json, too_deep, duplicate_parameter, invalid_value for a NUL, 413
    request_too_large), and `msgspec.ValidationError` for a number that is out of range.
    """
    # One pass over the body: counting a single character in all of it takes longer.
    marks = body.translate(None, _NO_MARK)
    quotes = marks.count(b'"')
    if len(body) > MAX_VALUES:  # a value takes a byte at least
        _check_size(body, quotes, len(marks) - quotes)
        _check_digits(body)
    _check_exponents(body)
    if marks.count(b"{") + marks.count(b"[") > MAX_DEPTH:
        _check_depth(body)
    if _count_escapes(body, rb"\u0000"):
        raise InvalidRequest("Invalid body: NUL characters (\\u0000) are not allowed.")
    found = _decode(body)
    if not isinstance(found, dict):
        raise InvalidRequest("Invalid body: expected a JSON object.", code="invalid_json")
    # Of two equal keys only one is decoded, so the object has fewer quotes when it is encoded again. (\u0022
    # is encoded as \", which adds a quote.)
    if quotes + _count_escapes(body, rb"\u0022") != len(_encoder.encode(found).translate(None, _NO_QUOTE)):
        raise _duplicate(body)
    return found


def members(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the members of a JSON object, not decoded, without the checks of `decode`.

    Raises `InvalidRequest` for invalid JSON.
    """
    found: dict[str, msgspec.Raw] = _decode(body, _members_decoder)
    return found


def as_object(text: str) -> msgspec.Raw | None:
    """Return a model's text if it is one whole JSON object, else None.

    The text is checked and not decoded: decoding 8 MiB of small numbers takes 20 s, checking them 50 ms.
    """
    if not (text.lstrip().startswith("{") and text.rstrip().endswith("}")):
        return None
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _count_escapes(body: bytes, escape: bytes) -> int:
    r"""Count a \u escape; after an escaped backslash, the same letters are text and do not count."""
    if b"\\" not in body or escape not in body:  # the first takes a tenth of the second's time
        return 0
    return body.replace(rb"\\", b"__").count(escape)


def _outside_strings(body: bytes, dropped: bytes) -> bytes:
    """Return the body without its strings and without the characters `dropped`: the more are dropped, the
    less is left to split.
    """
    # Every quote left begins or ends a string.
    plain = body.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in body else body
    # Two adjacent quotes do not change which of the following marks are inside a string.
    marks = plain.translate(None, dropped).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])


def _check_size(body: bytes, quotes: int, separators: int) -> None:
    """Refuse more than MAX_VALUES values: by a cheap upper bound, then by an exact count.

    A valid body within the cap has at most two strings for each value: its key and itself. So a body with
    more quotes is refused first, which bounds the memory of `_outside_strings`.
    """
    if separators < MAX_VALUES:
        return
    if (
        quotes - body.count(rb"\"") > 4 * MAX_VALUES
        or len(_outside_strings(body, _NO_SEPARATOR)) >= MAX_VALUES
    ):
        raise InvalidRequest(
            f"The body has more than {MAX_VALUES} values.", code="request_too_large", status=413
        )


def _check_digits(body: bytes) -> None:
    """Refuse very long numbers: reading and writing an integer of 4300 digits takes half a millisecond."""
    if not _has_long_number(body):
        return
    if _has_long_number(_outside_strings(body, b"")):
        raise InvalidRequest(f"A number in the body has {MAX_DIGITS} digits or more.")


def _check_exponents(body: bytes) -> None:
    """Refuse more than MAX_EXPONENTS numbers such as 1e-310: each takes 10 to 15 µs to read, another number
    0.1 µs.
    """
    if (
        _count_long_exponents(body) > MAX_EXPONENTS
        and _count_long_exponents(_outside_strings(body, b"")) > MAX_EXPONENTS
    ):
        raise InvalidRequest(
            f"The body has more than {MAX_EXPONENTS} numbers with an exponent of three or more digits."
        )


def _count_long_exponents(text: bytes) -> int:
    return text.translate(_ALL_ZEROS, b"+-").count(_LONG_EXPONENT)


def _has_long_number(text: bytes) -> bool:
    return b"0" * MAX_DIGITS in text.translate(_ALL_ZEROS)


def _check_depth(body: bytes) -> None:
    steps = array("b", _outside_strings(body, _NO_BRACKET).translate(_STEPS))
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise InvalidRequest(f"The body is nested more than {MAX_DEPTH} levels deep.", code="too_deep")


def _decode(body: bytes, decoder: msgspec.json.Decoder[Any] = _decoder) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = _why_unreadable(body, error)
        raise InvalidRequest(
            f"We could not parse the JSON body of your request: {why}.", code="invalid_json"
        ) from None


def _why_unreadable(body: bytes, error: Exception) -> str:
    """Return the reason in plain words. msgspec only says "truncated" for an empty body, and for half of a
    surrogate pair at a string's end.
    """
    if not body.strip():
        return "it is empty"
    if _SURROGATE.search(_SURROGATE_PAIR.sub(b"", body.replace(rb"\\", b"__"))):
        return "a string has one half of a surrogate pair without the other"
    try:
        body.decode()
    except UnicodeDecodeError as found:
        return f"it is not UTF-8 (byte {found.start})"
    return str(error)


def _duplicate(body: bytes) -> InvalidRequest:
    """Return the error for a name that came twice. In a body with many names it does not say which one: the
    search is slow.
    """
    if body.count(b":") > MAX_NAMES_COMPARED:
        return InvalidRequest(
            "Duplicate parameter: an object in the body has the same name twice.", code="duplicate_parameter"
        )
    return duplicate(_repeated_name(body))


def _repeated_name(body: bytes) -> str:
    repeated: list[str] = []

    def note(members: list[tuple[str, Any]]) -> None:
        if not repeated and len(dict(members)) < len(members):
            repeated.append(Counter(name for name, _ in members).most_common(1)[0][0])

    # Numbers are not needed, and some are slow to read.
    json.loads(body, object_pairs_hook=note, parse_float=len, parse_int=len)
    return repeated[0][:MAX_NAME_CHARS]
