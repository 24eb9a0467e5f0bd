"""The JSON text of a request: grammar, depth, size, duplicate keys, and hostile characters and numbers."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.wire import json_guard
from chatapi.wire.caps import MAX_DEPTH, MAX_DIGITS, MAX_VALUES
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from tests.wire.request_bodies import chat_body, messages_of, refusal

BODY = chat_body()
MIB = 1024 * 1024


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """Return a chat request whose deepest value is `levels` deep, inside a tool's schema."""
    inner = levels - 5  # body, tools, tool, function, parameters
    value = opening * inner + closing * inner
    return (
        BODY[:-1]
        + b',"tools":[{"type":"function","function":{"name":"f","parameters":{"a":'
        + value
        + b"}}}]}"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b"1e400",
        b"true",
        BODY[:-1],
        BODY + BODY,
        BODY + b"x",
        BODY + b"\x00",
        b"\xef\xbb\xbf" + BODY,
        BODY.decode().encode("utf-16"),
        BODY.decode().encode("utf-16-le"),
        BODY.decode().encode("utf-32"),
        BODY.replace(b"Hello", b"\xff"),
        BODY.replace(b"Hello", b"\xc0\x80"),
        BODY.replace(b"Hello", b"\xed\xa0\x80"),
        BODY.replace(b"Hello", b"a\nb"),
        BODY.replace(b"Hello", b"a\x00b"),
        BODY.replace(b"Hello", rb"\x41"),
        BODY.replace(b"Hello", rb"\u00g0"),
        BODY.replace(b'"', b"'"),
        b"// comment\n" + BODY,
        BODY[:-1] + b",}",
        BODY[:-1] + b',"stop":["a",]}',
        BODY[:-1] + b',"seed":01}',
        BODY[:-1] + b',"seed":+1}',
        BODY[:-1] + b',"temperature":.5}',
        BODY[:-1] + b',"temperature":NaN}',
        BODY[:-1] + b',"temperature":Infinity}',
        BODY[:-1] + b',"temperature":-Infinity}',
        BODY[:-1] + b',"seed":1_0}',
    ],
)
def test_it_refuses_what_is_not_a_json_object(body: bytes) -> None:
    assert refusal(body).code == "invalid_json"


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"[", b"]"), (b'{"a":[', b"]}"), (b'["]]",{"}":', b'},"["]')]
)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 1_000, 60_000])
def test_it_refuses_deep_nesting(levels: int, opening: bytes, closing: bytes) -> None:
    deep = b"0".join([opening * levels, closing * levels])
    assert refusal(BODY[:-1] + b',"x":' + deep + b"}").code == "too_deep"
    assert refusal(opening * levels).code == "too_deep"


def test_it_takes_the_deepest_nesting_that_is_allowed() -> None:
    assert parse_chat(nested(MAX_DEPTH)).tools
    assert refusal(nested(MAX_DEPTH + 1)).code == "too_deep"


def test_brackets_in_strings_are_no_nesting() -> None:
    content = r"[[[{{{ \" \\ ]" * 100
    assert (
        messages_of(parse_chat(chat_body(messages=[{"role": "user", "content": content}])))[0].content
        == content
    )


def test_it_refuses_more_values_than_the_cap() -> None:
    start, end = BODY[:-1] + b',"logit_bias":[', b"]}"
    too_many = refusal(start + b",".join([b"0"] * MAX_VALUES) + end)
    assert (too_many.status, too_many.code) == (413, "request_too_large")
    assert refusal(b'{"":' * MAX_VALUES).status == 413
    assert refusal(start + b",".join([b'""'] * (MAX_VALUES // 2)) + end).param == "logit_bias"


def test_a_million_of_anything_is_too_many() -> None:
    keys = b",".join(b'"k%d":0' % number for number in range(1_000_000))
    assert refusal(BODY[:-1] + b"," + keys + b"}").status == 413
    assert refusal(b'{"model":"m","messages":[' + b",".join([b"{}"] * 1_000_000) + b"]}").status == 413
    parts = b",".join([b'{"type":"text","text":""}'] * 100_000)
    assert refusal(b'{"model":"m","messages":[{"role":"user","content":[' + parts + b"]}]}").status == 413


def test_one_text_may_fill_the_body() -> None:
    assert len(parse_chat(BODY.replace(b"Hello!", b"x" * (8 * MIB - len(BODY)))).prompt_text) > 7 * MIB


def test_commas_in_a_long_text_are_no_values() -> None:
    assert (
        len(parse_chat(chat_body(messages=[{"role": "user", "content": ",[" * MAX_VALUES}])).prompt_text)
        == 2 * MAX_VALUES
    )


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (BODY[:-1] + b',"model":"other"}', "model"),
        (BODY[:-1] + rb',"\u006dodel":"other"}', "model"),
        (BODY[:-1] + b',"x":1,"x":1}', "x"),
        (BODY[:-1] + rb',"x\u0022":1,"x\"":1}', 'x"'),
        (BODY.replace(b'"role"', b'"role":"system","role"'), "role"),
        (
            BODY[:-1]
            + b',"tools":[{"type":"function","function":{"name":"f","parameters":{"a":{"b":1,"b":2}}}}]}',
            "b",
        ),
        (BODY[:-1] + b',"unknown":[[{"":1,"c":3,"":2}]]}', ""),
        (BODY[:-1] + rb',"a":"\u0022","x":{"\u0022\u0022":1,"\u0022\u0022":2}}', '""'),
    ],
)
def test_it_refuses_duplicate_keys_at_any_depth(body: bytes, key: str) -> None:
    error = refusal(body)
    assert (error.code, error.param) == ("duplicate_parameter", key)


def test_one_key_in_two_objects_is_no_duplicate() -> None:
    assert parse_chat(BODY[:-1] + b',"metadata":{"model":"x","messages":"y"}}').metadata == {
        "model": "x",
        "messages": "y",
    }


def test_it_refuses_nul() -> None:
    assert refusal(BODY.replace(b"Hello", rb"\u0000")).code == "invalid_value"
    assert refusal(BODY[:-1] + rb',"unknown":{"\\\u0000":1}}').code == "invalid_value"
    assert messages_of(parse_chat(BODY.replace(b"Hello!", rb"\\u0000")))[0].content == r"\u0000"


@pytest.mark.parametrize(
    "escape",
    [rb"\ud800", rb"\udc00", rb"\uDFFF", rb"\ud800\ud800", rb"\udc00\ud800", rb"\ud83d\\ude00", rb"\ud83dx"],
)
def test_it_refuses_lone_surrogates(escape: bytes) -> None:
    for body in (BODY.replace(b"Hello", escape), BODY[:-1] + b',"unknown":"' + escape + b'"}'):
        refused = refusal(body)
        assert (refused.code, "one half of a surrogate pair" in refused.message) == ("invalid_json", True)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (BODY.replace(b"Hello", b"\xff"), f"it is not UTF-8 (byte {BODY.index(b'Hello')})"),
        (BODY.replace(b"Hello", rb"\ud83d\ude00 \\ud83d")[:-1], "Input data was truncated"),
    ],
)
def test_it_says_why_a_body_is_not_json(body: bytes, why: str) -> None:
    assert refusal(body).message == f"We could not parse the JSON body of your request: {why}."


@pytest.mark.parametrize(
    "content", ["\u202eabc", "\u200b", "e\u0301" * 1_000, "\ufffe\uffff", "👩‍👩‍👧‍👦", "\x7f", "\u2028", "\t"]
)
def test_it_keeps_all_other_characters(content: str) -> None:
    messages = [{"role": "user", "content": content}]
    for is_ascii in (True, False):
        body = json.dumps({"model": "m", "messages": messages}, ensure_ascii=is_ascii).encode()
        assert messages_of(parse_chat(body))[0].content == content


@pytest.mark.parametrize("number", [b"1e400", b"-1e999999", b"1" * 5_000])
def test_it_names_the_parameter_whose_number_is_out_of_range(number: bytes) -> None:
    for name in ("temperature", "top_p", "seed", "n", "max_tokens"):
        error = refusal(BODY[:-1] + b',"%s":%s}' % (name.encode(), number))
        assert (error.status, error.code, error.param) == (400, "invalid_value", name)


def test_it_refuses_a_number_out_of_range_anywhere() -> None:
    assert refusal(BODY[:-1] + b',"unknown":{"a":1e400}}').code == "invalid_value"


def test_it_refuses_endless_integers_in_a_large_body() -> None:
    padding = b" " * MAX_VALUES
    assert refusal(BODY[:-1] + b',"x":' + b"7" * MAX_DIGITS + b"}" + padding).code == "invalid_value"
    assert parse_chat(BODY.replace(b"Hello", b"7" * MAX_DIGITS) + padding)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (MIB),
        b'"' * (MIB),
        b'"' + b"\\" * (MIB),
        b'{"a":' * (MIB // 5),
        chat_body(messages=[{"role": "user", "content": '[{",\\' * (MIB // 6)}]),
        chat_body(messages=[{"role": "x" * (MIB), "content": ""}]),
        BODY[:-1] + b',"x":[' + b",".join([b'{"aaaaaaaaa":"bbbbbbbb"}'] * (MAX_VALUES // 8)) + b"]}",
    ],
    ids=["brackets", "quotes", "backslashes", "objects", "text", "role", "members"],
)
def test_the_worst_bodies_take_a_bounded_time(body: bytes) -> None:
    started = time.process_time()
    with suppress(InvalidRequest):
        parse_chat(body)
    assert time.process_time() - started < 1  # measured 0.05 s


# Keys and texts made of what could confuse a scan over bytes.
_TEXTS = st.text(alphabet='ab"\\[]{},:\u00e9😀\n', max_size=4)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=25)
@given(st.dictionaries(_TEXTS, _VALUES, max_size=4), st.booleans())
def test_it_reads_what_the_standard_library_writes(value: dict[str, Any], is_ascii: bool) -> None:
    assert json_guard.decode(json.dumps(value, ensure_ascii=is_ascii).encode()) == value


@settings(max_examples=25)
@given(st.dictionaries(_TEXTS, _VALUES, min_size=1, max_size=4), _VALUES)
def test_it_finds_any_duplicate(members: dict[str, Any], value: Any) -> None:
    key = next(iter(members))
    doubled = json.dumps(members)[:-1] + f", {json.dumps(key, ensure_ascii=False)}: {json.dumps(value)}}}"
    assert refusal(b'{"a": [' + doubled.encode() + b"]}", json_guard.decode).code == "duplicate_parameter"
