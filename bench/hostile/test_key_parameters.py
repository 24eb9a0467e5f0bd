"""Attacks by a free test key with parameters and prompts: tools, schemas, many messages, and text that is
slow to count.
"""

import asyncio
import json
from typing import Any

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import TEXT, bearer, chat, messages, request
from bench.hostile.test_key import MB, TEST_KEY, three_at_once

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
    """Return a chat whose answer is to follow this JSON schema."""
    return chat(key, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


@attack(TEST_KEY)
async def schema_all_of(attacker: Attacker) -> None:
    """A JSON schema of 2 MB: 900 constants in one `allOf`, arrays that differ in their last item."""
    constants = [{"const": [1234.5] * 280 + [number]} for number in range(900)]
    await three_at_once(attacker, schema_request(attacker.keys.test, {"allOf": constants}))


@attack(TEST_KEY)
async def schema_any_of_nested(attacker: Attacker) -> None:
    """A JSON schema whose `allOf` multiply: 16 references in each of eight levels."""
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
    """Prompts of 3 MB of random-looking base64 and of emoji, which the sandbox echoes."""
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
    """500,000 brackets that look like the beginning of a sandbox marker."""
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
    """Text completions of a prompt of 1 MB with echo and `best_of` 20."""
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
