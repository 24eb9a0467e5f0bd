"""Attacks by a free test key with large and slow bodies, within its rate limit and beyond it."""

import asyncio
import re
from collections.abc import Callable

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import bearer, chat, chat_body, head, messages, with_raw

TEST_KEY = "test key"
MB = 1_000_000
SLOW_FLOAT = b"2.2250738585072011e-308,"
GENERATION_ID = re.compile(rb"x-generation-id: (\S+)", re.IGNORECASE)
LONG_STREAM = "hello [sandbox tokens=100000 delay_ms=0]"
PACED_STREAM = "hello [sandbox tokens=2000 delay_ms=20]"

Payload = Callable[[str], bytes]
"""Takes a key and returns a request with it."""


async def three_at_once(attacker: Attacker, payload: bytes) -> None:
    """Send the request over three connections, again and again, until the time is over."""
    await attacker.flood(payload, connections=3)


async def over_limit(attacker: Attacker, payload: Payload) -> None:
    """Spend the key's one request a minute, then send the payload over three connections."""
    await attacker.send_once(chat(attacker.keys.test_over_limit))
    await attacker.flood(payload(attacker.keys.test_over_limit), connections=3)


def slow_floats(n_bytes: int) -> bytes:
    """Return a JSON array of numbers that take microseconds each to read."""
    return b"[" + (SLOW_FLOAT * (n_bytes // len(SLOW_FLOAT)))[:-1] + b"]"


def two_names_alike(count: int) -> bytes:
    """Return a JSON object with this number of names, the first of which is repeated at the end."""
    return b"{" + b",".join(b'"n%d":0' % number for number in range(count)) + b',"n0":1}'


# ---- JSON


@attack(TEST_KEY)
async def slow_floats_over_limit(attacker: Attacker) -> None:
    """6 MB of floats that are slow to read, in an unknown parameter, by a key that is over its rate limit."""
    await over_limit(attacker, lambda key: chat(key, with_raw("x", slow_floats(6 * MB))))


@attack(TEST_KEY)
async def slow_floats_within_limit(attacker: Attacker) -> None:
    """The same by a key that has no limit."""
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("x", slow_floats(6 * MB))))


@attack(TEST_KEY)
async def slow_floats_and_name_twice(attacker: Attacker) -> None:
    """6 MB of slow floats, followed by one name twice."""
    body = with_raw("x", slow_floats(6 * MB))[:-1] + b',"y":1,"y":2}'
    await three_at_once(attacker, chat(attacker.keys.test, body))


@attack(TEST_KEY)
async def slow_floats_to_tickets(attacker: Attacker) -> None:
    """6 MB of slow floats to the tickets' route, which no rate limit counts."""
    body = with_raw("x", slow_floats(6 * MB))
    await three_at_once(attacker, chat(attacker.keys.test, body, path="/v1/chat/completions/tickets"))


@attack(TEST_KEY)
async def name_twice_among_200000(attacker: Attacker) -> None:
    """An object of 200,000 names, one of them twice."""
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("x", two_names_alike(200_000))))


@attack(TEST_KEY)
async def name_twice_over_limit(attacker: Attacker) -> None:
    """The same by a key that is over its rate limit."""
    await over_limit(attacker, lambda key: chat(key, with_raw("x", two_names_alike(200_000))))


@attack(TEST_KEY)
async def names_that_collide(attacker: Attacker) -> None:
    """60,000 names in `logit_bias`, which differ in their last characters only."""
    names = b"{" + b",".join(b'"%s%05d":0' % (b"a" * 90, number) for number in range(60_000)) + b"}"
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("logit_bias", names)))


@attack(TEST_KEY)
async def long_integers(attacker: Attacker) -> None:
    """7 MB of integers of 390 digits."""
    numbers = b"[" + b",".join([b"9" * 390] * 18_000) + b"]"
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("x", numbers)))


@attack(TEST_KEY)
async def one_long_integer(attacker: Attacker) -> None:
    """One integer of 6 million digits, and a number whose exponent has one million."""
    await three_at_once(
        attacker, chat(attacker.keys.test, with_raw("x", b"[" + b"9" * (6 * MB) + b",1e" + b"9" * MB + b"]"))
    )


@attack(TEST_KEY)
async def many_values(attacker: Attacker) -> None:
    """260,000 values: empty objects in an unknown parameter."""
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("x", b"[" + b"{}," * 260_000 + b"{}]")))


@attack(TEST_KEY)
async def commas(attacker: Attacker) -> None:
    """7 MB of digits and commas: 3.5 million values."""
    await three_at_once(
        attacker, chat(attacker.keys.test, with_raw("x", b"[" + b"1," * (7 * MB // 2) + b"1]"))
    )


@attack(TEST_KEY)
async def nested_arrays(attacker: Attacker) -> None:
    """Arrays nested three million deep, and 100,000 arrays of a depth of 30."""
    deep = chat(attacker.keys.test, with_raw("x", b"[" * (3 * MB) + b"]" * (3 * MB)))
    wide = chat(attacker.keys.test, with_raw("x", b"[" + b",".join([b"[" * 30 + b"]" * 30] * 100_000) + b"]"))
    await asyncio.gather(attacker.flood(deep, connections=2), attacker.flood(wide, connections=2))


@attack(TEST_KEY)
async def escapes(attacker: Attacker) -> None:
    """A message of 7 MB of `\\u` escapes and of quotes and backslashes."""
    text = b'[{"role":"user","content":"' + b'\\u0041\\\\\\"' * (7 * MB // 10) + b'"}]'
    await three_at_once(attacker, chat(attacker.keys.test, b'{"model":"sandbox","messages":' + text + b"}"))


@attack(TEST_KEY)
async def unfinished_json(attacker: Attacker) -> None:
    """6 MB of an unfinished array, 7 MB of whitespace, and 7 MB of a body that is wrong in its last byte."""
    payloads = [b"[" + b"0," * (3 * MB), b" " * (7 * MB), chat_body()[:-1] + b" " * (7 * MB) + b"x"]
    await asyncio.gather(
        *(attacker.flood(chat(attacker.keys.test, body), connections=1) for body in payloads)
    )


@attack(TEST_KEY)
async def large_body_many_times(attacker: Attacker) -> None:
    """A valid request of 7 MB (one message), over ten kept connections."""
    await attacker.flood(chat(attacker.keys.test, messages=messages("word " * (7 * MB // 5))), connections=10)


# ---- bodies


@attack(TEST_KEY)
async def body_that_pauses(attacker: Attacker) -> None:
    """200 bodies of a good key that announce 7 MB and stop after 300 KB."""
    headers = {**bearer(attacker.keys.test), "Content-Length": "7000000"}
    await attacker.hold(attacker.share(200), head("POST", "/v1/chat/completions", headers) + b" " * 300_000)


@attack(TEST_KEY)
async def one_byte_chunks_with_key(attacker: Attacker) -> None:
    """Bodies of 40 MB in chunks of one byte by a good key, three connections."""
    headers = {**bearer(attacker.keys.test), "Transfer-Encoding": "chunked"}
    payload = head("POST", "/v1/chat/completions", headers) + b"1\r\n \r\n" * (40 * MB // 6)
    await attacker.each([payload] * 3, connections=3)
