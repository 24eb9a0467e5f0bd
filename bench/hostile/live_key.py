"""Attacks that need a live key: floods of valid requests, and an upstream that misbehaves."""

import asyncio

from bench.hostile.raw_client import Attacker
from bench.hostile.registry import Run, attack
from bench.hostile.requests import chat, messages
from bench.hostile.upstream import BEHAVIOURS

LIVE_KEY = "live key"
UPSTREAM = "upstream"
UPSTREAM_STREAMS = 4


@attack(LIVE_KEY)
async def valid_requests(attacker: Attacker) -> None:
    """Valid streams of 64 tokens over 100 kept connections, as fast as they are answered."""
    await attacker.flood(
        chat(attacker.keys.live, model="tok64-d0", stream=True), connections=100, is_streamed=True
    )


@attack(LIVE_KEY)
async def paced_streams_1000(attacker: Attacker) -> None:
    """1,000 streams at once, a token each 20 ms: nearly all that one organization may have open."""
    await attacker.hold(attacker.share(1000), chat(attacker.keys.live, model="tok1000-d20", stream=True))


@attack(LIVE_KEY)
async def streams_in_the_queue(attacker: Attacker) -> None:
    """4,000 streams at once: more than one organization may have open."""
    await attacker.hold(attacker.share(4000), chat(attacker.keys.live, model="tok1000-d20", stream=True))


@attack(LIVE_KEY)
async def whole_answers(attacker: Attacker) -> None:
    """Answers of 8,000 tokens that are not streamed, over 30 kept connections."""
    await attacker.flood(chat(attacker.keys.live, model="tok8000-d0"), connections=30)


@attack(LIVE_KEY)
async def unread_streams(attacker: Attacker) -> None:
    """300 fast streams of 8,000 tokens that nobody reads."""
    payload = chat(attacker.keys.live, model="tok8000-d0", stream=True)
    await attacker.hold(attacker.share(300), payload, receive_buffer_bytes=4096)


@attack(LIVE_KEY)
async def large_prompts(attacker: Attacker) -> None:
    """Prompts of 4 MB for an upstream, over 10 kept connections."""
    await attacker.flood(
        chat(attacker.keys.live, model="tok64-d0", messages=messages("word " * 800_000)), connections=10
    )


def _asks_upstream(model: str, summary: str) -> Run:
    """Return an attack that asks such an upstream for streams and, one at a time, for whole answers."""

    async def run(attacker: Attacker) -> None:
        streamed = chat(attacker.keys.live, model=model, stream=True)
        whole = chat(attacker.keys.live, model=model)
        await asyncio.gather(
            attacker.flood(streamed, connections=UPSTREAM_STREAMS, is_streamed=True),
            attacker.flood(whole, connections=1),
        )

    run.__name__ = f"upstream_{model.replace('-', '_')}"
    run.__doc__ = summary
    return run


for _model, _behaviour in BEHAVIOURS.items():
    attack(UPSTREAM)(_asks_upstream(_model, (_behaviour.__doc__ or "").strip()))
