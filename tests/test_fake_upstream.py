"""The fake upstream keeps its promises: it runs as a process, counts, and speaks in whole tokens."""

import asyncio
import json
import sys
from itertools import pairwise

import aiohttp

from chatapi.wire import tokens
from tests import fake_upstream
from tests.fake_completion import ARGUMENTS, WORDS


async def test_it_runs_as_a_process_and_tells_its_port() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fake_upstream", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{json.loads(await process.stdout.readline())['port']}"
        async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["fake"]
    finally:
        process.kill()
        await process.wait()


async def test_it_takes_scripts_and_counts() -> None:
    async with (
        fake_upstream.serve() as upstream,
        aiohttp.ClientSession(upstream.url.removesuffix("v1")) as session,
    ):
        await session.post("script", json={"name": "any/name", "script": {"tokens": 3}})
        async with session.post(
            "v1/chat/completions", json={"model": "any/name", "stream": True}
        ) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
        async with session.get("stats") as response:
            stats = await response.json()
    assert (stats["requests"], stats["tokens"], stats["calls"][0]["is_completed"]) == (1, 3, True)
    assert stats["calls"][0]["body"]["model"] == "any/name"


def test_each_word_is_one_token_alone_and_beside_its_neighbours() -> None:
    words = [" " + word for word in (*WORDS, WORDS[0])]
    assert all(tokens.count(word) == 1 for word in words + ARGUMENTS)
    assert all(tokens.count(one + other) == 2 for one, other in pairwise(words))
