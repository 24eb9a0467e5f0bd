"""Attacks by a free test key with Responses and Messages: many items, deep blocks, stored responses that are
read, continued and referred to, unread streams, and counting.
"""

import asyncio
import json
from typing import Any

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import bearer, messages, request
from bench.hostile.test_key import GENERATION_ID, LONG_STREAM, MB, TEST_KEY, three_at_once

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
LONG_ANSWER = "hello [sandbox tokens=16000 delay_ms=0]"
REPEATED_INPUT = [{"role": "user", "content": "word " * 90}] * 2_000
"""Nearly 1 MiB, the most that is stored of one response."""


def post(attacker: Attacker, path: str, **members: Any) -> bytes:
    """Return a request of the test key."""
    body = json.dumps({"model": "sandbox", **members}).encode()
    return request("POST", path, bearer(attacker.keys.test), body)


async def created(attacker: Attacker, **members: Any) -> str:
    """Create a response and return its id when it has ended; empty if it was refused."""
    async with attacker.connected() as connection:
        if connection is None or not await connection.send(post(attacker, RESPONSES, **members)):
            return ""
        found = GENERATION_ID.search(connection.head) if await connection.status() else None
    return found[1].decode() if found else ""


@attack(TEST_KEY)
async def responses_of_tiny_items(attacker: Attacker) -> None:
    """Inputs of 130,000 empty items, of 2,048 messages, and of one message of 2,048 parts."""
    part = {"type": "input_text", "text": "a"}
    inputs: tuple[list[Any], ...] = ([{}] * 130_000, messages("a") * 2_048, messages([part] * 2_048))
    payloads = [post(attacker, RESPONSES, input=items) for items in inputs]
    await asyncio.gather(*(attacker.flood(payload, connections=1) for payload in payloads))


@attack(TEST_KEY)
async def blocks_in_blocks(attacker: Attacker) -> None:
    """2,000 documents in 21 turns of Messages, each of them made of 20 blocks."""
    text = {"type": "text", "text": "a"}
    document = {"type": "document", "source": {"type": "content", "content": [text] * 20}}
    turns = [*messages([document] * 97), {"role": "assistant", "content": "a"}]
    turns = turns * 20 + messages([document] * 97)
    await three_at_once(attacker, post(attacker, MESSAGES, messages=turns, max_tokens=1))


@attack(TEST_KEY)
async def tools_in_namespaces(attacker: Attacker) -> None:
    """128 namespaces of 128 tools each, and 127 tools with large schemas in one."""
    small = [{"type": "function", "name": f"f{number}"} for number in range(128)]
    spaces = [{"type": "namespace", "name": f"n{number}", "tools": small} for number in range(128)]
    properties = {f"p{number}": {"type": "string"} for number in range(500)}
    large = [tool | {"parameters": {"type": "object", "properties": properties}} for tool in small[1:]]
    both = (spaces, [{"type": "namespace", "name": "n", "tools": large}])
    payloads = [post(attacker, RESPONSES, input="hello", tools=tools) for tools in both]
    await asyncio.gather(*(attacker.flood(payload, connections=2) for payload in payloads))


@attack(TEST_KEY)
async def stored_input_read(attacker: Attacker) -> None:
    """A stored input of nearly 1 MiB, whose items are listed over 30 kept connections."""
    response_id = await created(attacker, input=REPEATED_INPUT)
    path = f"{RESPONSES}/{response_id}/input_items?limit=1&order=asc"
    await attacker.flood(request("GET", path, bearer(attacker.keys.test)), connections=30)


@attack(TEST_KEY)
async def stored_answer_read(attacker: Attacker) -> None:
    """A stored answer of 16,000 tokens, read over 30 kept connections."""
    response_id = await created(attacker, input=LONG_ANSWER)
    payload = request("GET", f"{RESPONSES}/{response_id}", bearer(attacker.keys.test))
    await attacker.flood(payload, connections=30)


@attack(TEST_KEY)
async def conversations_that_go_on(attacker: Attacker) -> None:
    """A response behind a stored input of nearly 1 MiB, continued over 30 kept connections."""
    response_id = await created(attacker, input=REPEATED_INPUT)
    await attacker.flood(
        post(attacker, RESPONSES, previous_response_id=response_id, input="hello"), connections=30
    )


@attack(TEST_KEY)
async def references_to_long_answers(attacker: Attacker) -> None:
    """Requests that refer to 16 answers of 16,000 tokens, over ten kept connections."""
    ids = await asyncio.gather(*(created(attacker, input=LONG_ANSWER) for _ in range(16)))
    items = [{"type": "item_reference", "id": f"msg_{each.removeprefix('resp_')}00"} for each in ids]
    await attacker.flood(post(attacker, RESPONSES, input=items), connections=10)


@attack(TEST_KEY)
async def responses_unread(attacker: Attacker) -> None:
    """300 long streams of Responses that nobody reads."""
    payload = post(attacker, RESPONSES, input=LONG_STREAM, stream=True)
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(TEST_KEY)
async def responses_with_logprobs(attacker: Attacker) -> None:
    """Ten long streams of Responses with the 20 likeliest tokens beside each."""
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
    await attacker.hold(10, post(attacker, RESPONSES, input=LONG_STREAM, stream=True, **logprobs))


@attack(TEST_KEY)
async def messages_unread(attacker: Attacker) -> None:
    """300 long streams of Messages that nobody reads."""
    turns = messages(LONG_STREAM)
    payload = post(attacker, MESSAGES, messages=turns, max_tokens=200_000, stream=True)
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(TEST_KEY)
async def counted_prompts(attacker: Attacker) -> None:
    """Prompts of 4 MB that are only counted, over ten kept connections."""
    turns = messages("word " * (4 * MB // 5))
    await attacker.flood(post(attacker, f"{MESSAGES}/count_tokens", messages=turns), connections=10)
