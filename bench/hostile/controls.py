"""Runs that attack nothing and measure the harness's own cost."""

import asyncio

from bench.hostile.no_key import MB, over_and_over
from bench.hostile.raw_client import Attacker
from bench.hostile.registry import attack
from bench.hostile.requests import CHAT, chunked_head, request

CONTROL = "control"


@attack(CONTROL)
async def nothing(attacker: Attacker) -> None:
    """Nothing at all: the effect of the honest streams on each other."""
    await asyncio.sleep(attacker.seconds)


@attack(CONTROL, is_sent_to_sink=True)
async def bytes_to_sink(attacker: Attacker) -> None:
    """The bytes of `one-byte-chunks-30-connections`, to a process that drops them."""
    await over_and_over(attacker, chunked_head("POST", CHAT) + b"1\r\nx\r\n" * (4 * MB // 6), 30)


@attack(CONTROL, is_sent_to_sink=True)
async def requests_to_sink(attacker: Attacker) -> None:
    """The requests of `pages-that-do-not-exist`, to a process that answers each read with a status line."""
    await attacker.flood(request("GET", "/v1/nowhere"), connections=30)
