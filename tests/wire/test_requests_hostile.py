"""What a hostile body costs: 64 KiB are parsed on an event loop, more of them in a process of their own."""

import time
from contextlib import suppress

import pytest

from chatapi.wire.caps import MAX_EXPONENTS, MAX_IGNORED, MAX_NAMES_COMPARED
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import parse
from chatapi.wire.protocols.chat.request import NAME as CHAT
from chatapi.wire.protocols.messages.request import NAME as MESSAGES
from chatapi.wire.protocols.text_completions.request import NAME as TEXT
from tests.wire.hostile_bodies import CHAT_BODIES, HEAD, MESSAGES_BODIES, TEXT_BODIES, Body
from tests.wire.request_bodies import refusal

CASES = {name: (CHAT, body) for name, body in CHAT_BODIES.items()} | {
    name: (TEXT, body) for name, body in TEXT_BODIES.items()
}
CASES |= {name: (MESSAGES, body) for name, body in MESSAGES_BODIES.items()}


def cpu_s(body: bytes, endpoint: str, tries: int) -> float:
    """Return the least CPU time that parsing the body takes, so that other load on the machine does not
    count.
    """
    found = []
    for _ in range(tries):
        started = time.thread_time()
        with suppress(InvalidRequest):
            parse(body, endpoint, None)
        found.append(time.thread_time() - started)
    return min(found)


def unit_s() -> float:
    """Return the least CPU time of 100,000 additions: about 2.7 ms, and more
    while the machine is slow."""
    found = []
    for _ in range(3):
        started = time.thread_time()
        total = 0
        for number in range(100_000):
            total += number
        found.append(time.thread_time() - started)
    return min(found)


@pytest.mark.parametrize("case", CASES)
def test_64_kib_are_parsed_within_a_turn_of_the_event_loop(case: str) -> None:
    endpoint, body = CASES[case]
    assert cpu_s(body(64 * 1024), endpoint, tries=5) < 10 * unit_s()  # measured: 5 at most, 12 ms


@pytest.mark.parametrize("case", CASES)
def test_a_mebibyte_is_parsed_in_a_bounded_time(case: str) -> None:
    endpoint, body = CASES[case]
    assert cpu_s(body(1024 * 1024), endpoint, tries=2) < 110 * unit_s()  # measured: 47 at most, 0.12 s


def numbers(number: bytes, count: int) -> bytes:
    return HEAD + b',"x":[' + b",".join([number] * count) + b"]}"


@pytest.mark.parametrize("number", [b"1e300", b"1E+300", b"-2.5e-308"])
def test_numbers_with_long_exponents_are_bounded(number: bytes) -> None:
    assert parse(numbers(number, MAX_EXPONENTS), CHAT, None)
    refused = refusal(numbers(number, MAX_EXPONENTS + 1))
    assert (refused.code, "exponent" in refused.message) == ("invalid_value", True)


def test_exponents_in_a_text_are_no_numbers() -> None:
    assert parse(HEAD.replace(b"hi", b"1e300," * 2 * MAX_EXPONENTS) + b"}", CHAT, None)


def test_a_doubled_name_is_named_unless_there_are_too_many() -> None:
    def doubled(count: int) -> bytes:
        return (
            HEAD
            + b',"x":{'
            + b",".join(b'"%d":%d' % (number, number) for number in range(count))
            + b',"0":1e5}}'
        )

    few, many = refusal(doubled(MAX_NAMES_COMPARED - 100)), refusal(doubled(MAX_NAMES_COMPARED))
    assert (few.code, few.param) == ("duplicate_parameter", "0")
    assert (many.code, many.param) == ("duplicate_parameter", None)


@pytest.mark.parametrize("value", [b"0", b"null"])
def test_a_crowd_of_unknown_parameters_is_refused(value: bytes) -> None:
    crowd = b"".join(b',"u%d":%s' % (number, value) for number in range(1_000))
    assert refusal(HEAD + crowd + b"}").code == "unknown_parameter"


def test_null_is_no_unknown_parameter() -> None:
    nulls = b"".join(b',"u%d":null' % number for number in range(MAX_IGNORED + 1))
    assert parse(HEAD + nulls + b"}", CHAT, None).summary.ignored == ()


def test_the_cases_are_of_the_length_that_is_asked_for() -> None:
    def is_right(body: Body) -> bool:
        return 50_000 <= len(body(64 * 1024)) <= 66_000

    assert [name for name, (_, body) in CASES.items() if not is_right(body)] == []
