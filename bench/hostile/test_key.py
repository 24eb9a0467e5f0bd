"""What a free test key can do, within its rate limit and beyond it: large and slow JSON, schemas, prompts,
streams and followers.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import (
    EMBEDDINGS,
    TEXT,
    bearer,
    chat,
    chat_body,
    head,
    messages,
    request,
    with_raw,
)

TEST_KEY = "test key"
MB = 1_000_000
SLOW_FLOAT = b"2.2250738585072011e-308,"
GENERATION_ID = re.compile(rb"x-generation-id: (\S+)", re.IGNORECASE)
LONG_STREAM = "hello [sandbox tokens=100000 delay_ms=0]"
PACED_STREAM = "hello [sandbox tokens=2000 delay_ms=20]"

Payload = Callable[[str], bytes]
"""A request of the key."""


async def three_at_once(attacker: Attacker, payload: bytes) -> None:
    """The request over three connections, again and again, until the time is over."""
    await attacker.flood(payload, connections=3)


async def over_limit(attacker: Attacker, payload: Payload) -> None:
    """Spend the key's one request a minute, then send the payload over three connections."""
    await attacker.send_once(chat(attacker.keys.test_over_limit))
    await attacker.flood(payload(attacker.keys.test_over_limit), connections=3)


def slow_floats(n_bytes: int) -> bytes:
    """A JSON array of numbers that take microseconds each to read."""
    return b"[" + (SLOW_FLOAT * (n_bytes // len(SLOW_FLOAT)))[:-1] + b"]"


def two_names_alike(count: int) -> bytes:
    """A JSON object of so many names, of which the first is there again at the end."""
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
    """6 MB of slow floats, and a name that is there twice behind them."""
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
    """60,000 names in an object of metadata and in `logit_bias`, which differ in their last characters."""
    names = b"{" + b",".join(b'"%s%05d":0' % (b"a" * 90, number) for number in range(60_000)) + b"}"
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("logit_bias", names)))


@attack(TEST_KEY)
async def long_integers(attacker: Attacker) -> None:
    """7 MB of integers of 390 digits."""
    numbers = b"[" + b",".join([b"9" * 390] * 18_000) + b"]"
    await three_at_once(attacker, chat(attacker.keys.test, with_raw("x", numbers)))


@attack(TEST_KEY)
async def one_long_integer(attacker: Attacker) -> None:
    """One integer of 7 million digits, and one of as many behind an exponent."""
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
    """7 MB of an array that never ends, of whitespace, and of a body that is wrong in its last byte."""
    payloads = [b"[" + b"0," * (3 * MB), b" " * (7 * MB), chat_body()[:-1] + b" " * (7 * MB) + b"x"]
    await asyncio.gather(
        *(attacker.flood(chat(attacker.keys.test, body), connections=1) for body in payloads)
    )


@attack(TEST_KEY)
async def large_body_many_times(attacker: Attacker) -> None:
    """A valid request of 7 MB (one message), over ten kept connections."""
    await attacker.flood(chat(attacker.keys.test, messages=messages("word " * (7 * MB // 5))), connections=10)


# ---- parameters


@attack(TEST_KEY)
async def tool_bomb(attacker: Attacker) -> None:
    """128 tools whose parameters have 500 properties each."""
    properties = {f"p{number}": {"type": "string"} for number in range(500)}
    function = {"parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": {"name": f"f{number}", **function}} for number in range(128)]
    await three_at_once(attacker, chat(attacker.keys.test, model="sandbox-tool-call", tools=tools))


@attack(TEST_KEY)
async def tools_in_parallel(attacker: Attacker) -> None:
    """Tool calls in answer to 16 tools with deep schemas, 128 choices."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(20):
        schema = {
            "type": "object",
            "properties": {"a": schema, "b": {"type": "integer"}},
            "required": ["a", "b"],
        }
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": schema}} for number in range(16)
    ]
    body: dict[str, Any] = {"model": "sandbox-parallel-tool-calls", "tools": tools, "n": 128, "stream": True}
    await attacker.flood(chat(attacker.keys.test, **body), connections=3, is_streamed=True)


def schema_request(key: str, schema: dict[str, Any]) -> bytes:
    """A chat whose answer is to follow this JSON schema."""
    return chat(key, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


@attack(TEST_KEY)
async def schema_all_of(attacker: Attacker) -> None:
    """A JSON schema of 2 MB: 900 constants in one `allOf`, arrays that differ in their last item."""
    constants = [{"const": [1234.5] * 280 + [number]} for number in range(900)]
    await three_at_once(attacker, schema_request(attacker.keys.test, {"allOf": constants}))


@attack(TEST_KEY)
async def schema_any_of_nested(attacker: Attacker) -> None:
    """A JSON schema whose `anyOf` multiply: 16 in each of eight levels, by reference."""
    definitions = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 16} for level in range(8)}
    await three_at_once(
        attacker,
        schema_request(
            attacker.keys.test, {"$ref": "#/$defs/d0", "$defs": {**definitions, "d8": {"type": "string"}}}
        ),
    )


@attack(TEST_KEY)
async def schema_cycle(attacker: Attacker) -> None:
    """A JSON schema that requires itself."""
    node = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "required": ["a", "b"]}
    await three_at_once(attacker, schema_request(attacker.keys.test, node))


@attack(TEST_KEY)
async def schema_patterns(attacker: Attacker) -> None:
    """A JSON schema whose patterns backtrack without an end."""
    properties = {
        f"p{n}": {"type": "string", "pattern": "^(a+)+$|^(a|a)*b$", "minLength": 5000} for n in range(200)
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "patternProperties": {"(x+x+)+y": {}},
    }
    await three_at_once(attacker, schema_request(attacker.keys.test, schema))


@attack(TEST_KEY)
async def schema_enum(attacker: Attacker) -> None:
    """A JSON schema with two enumerations of 100,000 values."""
    values = [f"value {number}" for number in range(100_000)]
    await three_at_once(
        attacker, schema_request(attacker.keys.test, {"allOf": [{"enum": values}, {"enum": values[::-1]}]})
    )


@attack(TEST_KEY)
async def schema_large_answer(attacker: Attacker) -> None:
    """A JSON schema that asks for a string of 10 million characters and an array of a million items."""
    properties = {
        "s": {"type": "string", "minLength": 10_000_000},
        "l": {"type": "array", "minItems": 1_000_000, "items": {"const": "x" * 99}},
    }
    schema = {"type": "object", "properties": properties, "required": ["s", "l"]}
    await three_at_once(attacker, schema_request(attacker.keys.test, schema))


@attack(TEST_KEY)
async def schema_required_twice(attacker: Attacker) -> None:
    """A JSON schema that requires 100,000 properties that it does not declare."""
    schema = {
        "type": "object",
        "required": [f"r{number}" for number in range(100_000)],
        "additionalProperties": {"const": "x" * 1000},
    }
    await three_at_once(attacker, schema_request(attacker.keys.test, schema))


@attack(TEST_KEY)
async def logit_bias(attacker: Attacker) -> None:
    """A `logit_bias` of 1,024 tokens, and one of 200,000."""
    payloads = [
        chat(attacker.keys.test, logit_bias={str(n): 1 for n in range(count)}) for count in (1_024, 200_000)
    ]
    await asyncio.gather(*(attacker.flood(payload, connections=2) for payload in payloads))


@attack(TEST_KEY)
async def engine_parameters(attacker: Attacker) -> None:
    """Eight engine parameters of 60 KB each."""
    names = [
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "ebnf",
        "grammar",
        "structured_outputs",
        "chat_template_kwargs",
        "documents",
    ]
    parameters: dict[str, Any] = dict.fromkeys(names, "g" * 60_000)
    await three_at_once(attacker, chat(attacker.keys.test, **parameters))


# ---- prompts


@attack(TEST_KEY)
async def tokenizer_runs(attacker: Attacker) -> None:
    """Prompts of a million equal characters: letters, spaces, underscores, digits, and one combining mark."""
    payloads = [
        chat(attacker.keys.test, model="sandbox-echo", messages=messages(sign * MB)) for sign in "a _1\u0301"
    ]
    await asyncio.gather(*(attacker.flood(payload, connections=1) for payload in payloads))


@attack(TEST_KEY)
async def tokenizer_mixture(attacker: Attacker) -> None:
    """Prompts of 3 MB of random-looking base64 and of emoji, said again by the sandbox."""
    base64 = ("Zm9vYmFyYmF6cXV4" + "aGVsbG8" * 3) * (3 * MB // 37)
    payloads = [
        chat(attacker.keys.test, model="sandbox-echo", stream=True, messages=messages(text))
        for text in (base64, "👩‍👩‍👧" * 150_000)
    ]
    await asyncio.gather(*(attacker.flood(payload, connections=2, is_streamed=True) for payload in payloads))


@attack(TEST_KEY)
async def many_messages(attacker: Attacker) -> None:
    """2,048 messages of 2 KB each."""
    await three_at_once(attacker, chat(attacker.keys.test, messages=messages("word " * 400) * 2_048))


@attack(TEST_KEY)
async def many_content_parts(attacker: Attacker) -> None:
    """20 messages of 2,048 parts each."""
    part = {"type": "text", "text": "word"}
    await three_at_once(attacker, chat(attacker.keys.test, messages=messages([part] * 2_048) * 20))


@attack(TEST_KEY)
async def pictures(attacker: Attacker) -> None:
    """A picture of 4 MB as base64, and 1,000 small ones."""
    large = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (4 * MB)}}
    small = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}
    payloads = [chat(attacker.keys.test, messages=messages(parts)) for parts in ([large], [small] * 1_000)]
    await asyncio.gather(*(attacker.flood(payload, connections=2) for payload in payloads))


@attack(TEST_KEY)
async def markers(attacker: Attacker) -> None:
    """A million brackets that look like the beginning of a sandbox marker."""
    await three_at_once(attacker, chat(attacker.keys.test, messages=messages("[sandbox " * 500_000)))


@attack(TEST_KEY)
async def token_prompts(attacker: Attacker) -> None:
    """Text completions of 128 prompts of 1,500 token ids each, with echo and logprobs."""
    body = json.dumps(
        {"model": "sandbox", "prompt": [[17] * 1_500] * 128, "echo": True, "logprobs": 5, "max_tokens": 16}
    ).encode()
    await three_at_once(attacker, request("POST", TEXT, bearer(attacker.keys.test), body))


@attack(TEST_KEY)
async def best_of_and_echo(attacker: Attacker) -> None:
    """Text completions of a prompt of 1 MB with 20 tries each, said again."""
    body = json.dumps(
        {
            "model": "sandbox",
            "prompt": "word " * 200_000,
            "echo": True,
            "best_of": 20,
            "n": 1,
            "max_tokens": 5000,
        }
    ).encode()
    await three_at_once(attacker, request("POST", TEXT, bearer(attacker.keys.test), body))


# ---- streams and followers


@attack(TEST_KEY)
async def streams_of_128_choices(attacker: Attacker) -> None:
    """Three streams of 128 choices, as fast as they go."""
    payload = chat(
        attacker.keys.test, n=128, stream=True, messages=messages("hello [sandbox tokens=2000 delay_ms=1]")
    )
    await attacker.hold(3, payload)


@attack(TEST_KEY)
async def streams_with_logprobs(attacker: Attacker) -> None:
    """Ten long streams with the 20 likeliest tokens beside each."""
    payload = chat(
        attacker.keys.test, stream=True, logprobs=True, top_logprobs=20, messages=messages(LONG_STREAM)
    )
    await attacker.hold(10, payload)


@attack(TEST_KEY)
async def whole_answers_of_128_choices(attacker: Attacker) -> None:
    """Answers of 128 choices of 5,000 tokens that are not streamed."""
    await three_at_once(
        attacker, chat(attacker.keys.test, n=128, messages=messages("hello [sandbox tokens=5000]"))
    )


@attack(TEST_KEY)
async def readers_that_never_read(attacker: Attacker) -> None:
    """300 long streams that nobody reads."""
    payload = chat(attacker.keys.test, stream=True, messages=messages(LONG_STREAM))
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(TEST_KEY)
async def slow_readers(attacker: Attacker) -> None:
    """200 long streams that are read with 100 bytes a second."""
    payload = chat(attacker.keys.test, stream=True, messages=messages(LONG_STREAM))

    async def one() -> None:
        connection = await attacker.connect(receive_buffer_bytes=2048)
        if connection is None:
            return
        try:
            await connection.send(payload)
            while connection.is_open:
                connection.transport.pause_reading()
                await asyncio.sleep(1)
                connection.transport.resume_reading()
                await asyncio.sleep(0)
        finally:
            connection.close()

    await asyncio.gather(*(one() for _ in range(attacker.share(200))))


@attack(TEST_KEY)
async def streams_500_at_once(attacker: Attacker) -> None:
    """500 paced streams at the same time."""
    await attacker.hold(
        attacker.share(500), chat(attacker.keys.test, stream=True, messages=messages(PACED_STREAM))
    )


@attack(TEST_KEY)
async def streams_as_fast_as_they_go(attacker: Attacker) -> None:
    """50 streams of 100,000 tokens without a pause."""
    await attacker.hold(
        attacker.share(50), chat(attacker.keys.test, stream=True, messages=messages(LONG_STREAM))
    )


@attack(TEST_KEY)
async def connect_and_abort(attacker: Attacker) -> None:
    """Streams that are left as soon as they are asked for, 50 at a time."""
    payload = chat(attacker.keys.test, stream=True, messages=messages(PACED_STREAM))

    async def one() -> None:
        while True:
            await attacker.send_once(payload, waits=False)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(50)))


@attack(TEST_KEY)
async def small_requests(attacker: Attacker) -> None:
    """Small valid requests over 100 kept connections, as fast as they are answered."""
    await attacker.flood(
        chat(attacker.keys.test, messages=messages("hello [sandbox tokens=1]")), connections=100
    )


@attack(TEST_KEY)
async def small_requests_over_limit(attacker: Attacker) -> None:
    """Small requests by a key that is over its rate limit, over 100 kept connections."""
    await attacker.flood(chat(attacker.keys.test_over_limit), connections=100)


@attack(TEST_KEY)
async def pipelined_requests(attacker: Attacker) -> None:
    """2,000 requests in a row over one connection, and four such connections."""
    payload = chat(attacker.keys.test, messages=messages("hello [sandbox tokens=1]"))
    await attacker.hold(4, payload * 2_000)


@attack(TEST_KEY)
async def tickets(attacker: Attacker) -> None:
    """Tickets of 1 MB that nobody uses, over 10 kept connections."""
    payload = chat(
        attacker.keys.test, path="/v1/chat/completions/tickets", messages=messages("word " * 200_000)
    )
    await attacker.flood(payload, connections=10)


@attack(TEST_KEY)
async def small_tickets(attacker: Attacker) -> None:
    """Small tickets that nobody uses, over 30 kept connections."""
    await attacker.flood(chat(attacker.keys.test, path="/v1/chat/completions/tickets"), connections=30)


@attack(TEST_KEY)
async def idempotency_keys(attacker: Attacker) -> None:
    """Requests with an Idempotency-Key of their own each, over 50 connections."""

    def payload(number: int) -> bytes:
        return chat(
            attacker.keys.test,
            extra={"Idempotency-Key": f"{attacker.address}-{number}"},
            messages=messages("hello [sandbox tokens=1]"),
        )

    await attacker.each((payload(number) for number in range(100_000)), connections=50)


@attack(TEST_KEY)
async def one_idempotency_key(attacker: Attacker) -> None:
    """One request with one Idempotency-Key, attached to over 300 connections."""
    extra = {"Idempotency-Key": f"{attacker.address}-one"}
    await attacker.hold(
        attacker.share(300),
        chat(attacker.keys.test, extra=extra, stream=True, messages=messages(PACED_STREAM)),
    )


@attack(TEST_KEY)
async def respond_async(attacker: Attacker) -> None:
    """Long requests whose answer is not waited for, over 30 kept connections."""
    extra = {"Prefer": "respond-async"}
    await attacker.flood(
        chat(attacker.keys.test, extra=extra, stream=True, messages=messages(PACED_STREAM)), connections=30
    )


async def _begun(attacker: Attacker, text: str) -> str:
    """The id of a stream that this attacker has begun and left to itself; blank if it was refused."""
    payload = chat(
        attacker.keys.test, extra={"Prefer": "respond-async"}, stream=True, messages=messages(text)
    )
    async with attacker.connected() as connection:
        if connection is None or not await connection.send(payload) or not await connection.status():
            return ""
        found = GENERATION_ID.search(connection.head)
    return found[1].decode() if found else ""


@attack(TEST_KEY)
async def resume_flood(attacker: Attacker) -> None:
    """A long finished stream, read again from its beginning over 300 connections."""
    generation_id = await _begun(attacker, "hello [sandbox tokens=16000]")
    await asyncio.sleep(2)
    payload = request("GET", f"/v1/generations/{generation_id}/stream", bearer(attacker.keys.test))
    await attacker.hold(attacker.share(300), payload)


@attack(TEST_KEY)
async def resume_unread(attacker: Attacker) -> None:
    """A long running stream, followed from its beginning by 300 clients that never read."""
    generation_id = await _begun(attacker, LONG_STREAM)
    payload = request("GET", f"/v1/generations/{generation_id}/stream", bearer(attacker.keys.test))
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(TEST_KEY)
async def cancel_flood(attacker: Attacker) -> None:
    """A generation that runs, cancelled again and again, and ones that do not exist, over 40 kept
    connections.
    """
    generation_id = await _begun(attacker, PACED_STREAM)
    ids = (generation_id, "chatcmpl-" + "0" * 32)
    payloads = [
        request("POST", f"/v1/generations/{each}/cancel", bearer(attacker.keys.test), b"") for each in ids
    ]
    await asyncio.gather(*(attacker.flood(payload, connections=20) for payload in payloads))


@attack(TEST_KEY)
async def receipts(attacker: Attacker) -> None:
    """Receipts, models and the key's own page, over 30 kept connections."""
    paths = ("/v1/models", "/v1/key", "/v1/generations/chatcmpl-" + "0" * 32)
    payloads = [request("GET", path, bearer(attacker.keys.test)) for path in paths]
    await asyncio.gather(*(attacker.flood(payload, connections=10) for payload in payloads))


# ---- embeddings


def embeddings(key: str) -> bytes:
    """A small request for 12 MiB of vectors, as up to 70 MiB of numbers."""
    inputs = [str(number) for number in range(2_048)]
    body = json.dumps({"model": "sandbox-embedding", "input": inputs}).encode()
    return request("POST", EMBEDDINGS, bearer(key), body)


@attack(TEST_KEY)
async def embeddings_of_many_inputs(attacker: Attacker) -> None:
    """As many embeddings as one request may ask for, three connections."""
    await three_at_once(attacker, embeddings(attacker.keys.test))


@attack(TEST_KEY)
async def embeddings_unread(attacker: Attacker) -> None:
    """The same by ten clients that never read."""
    payload = embeddings(attacker.keys.test)
    await attacker.hold(attacker.share(10), payload, receive_buffer_bytes=4096)


# ---- bodies


@attack(TEST_KEY)
async def body_that_pauses(attacker: Attacker) -> None:
    """200 large bodies of a good key that stop half-way."""
    headers = {**bearer(attacker.keys.test), "Content-Length": "7000000"}
    await attacker.hold(attacker.share(200), head("POST", "/v1/chat/completions", headers) + b" " * 300_000)


@attack(TEST_KEY)
async def one_byte_chunks_with_key(attacker: Attacker) -> None:
    """Bodies of 40 MB in chunks of one byte by a good key, three connections."""
    headers = {**bearer(attacker.keys.test), "Transfer-Encoding": "chunked"}
    payload = head("POST", "/v1/chat/completions", headers) + b"1\r\n \r\n" * (40 * MB // 6)
    await attacker.each([payload] * 3, connections=3)
