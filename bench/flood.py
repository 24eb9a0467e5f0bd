"""Keeps the callers of one key busy until it is stopped, for `bench.fairness`. Callers that find a limit or
no room wait for the answer's Retry-After, as SDKs do, or with `--impatient` for a second.

    python -m bench.flood URL --key ck_live_... --flood streams --callers 4000
"""

import argparse
import asyncio
from dataclasses import replace

import uvloop

from bench.client import Client
from bench.scenarios import FLOODS, Flood

WAIT_S = 1.0
TIMEOUT_S = 120.0
WAITING_STATUSES = {0, 429, 503}
ABSENT_MODEL = "absent"


async def keep_up(flood: Flood, base_url: str, key: str, arrive_in_s: float, *, is_impatient: bool) -> None:
    """Send requests for ever; do not keep the answers. The callers arrive evenly within `arrive_in_s`."""
    client, refused_client = (
        Client(
            base_url,
            key,
            model,
            is_stream=flood.is_stream,
            timeout_seconds=TIMEOUT_S,
            prompt_bytes=flood.prompt_bytes,
            choices=flood.choices,
        )
        for model in (flood.model, ABSENT_MODEL)
    )

    async def caller(number: int) -> None:
        is_refused = flood.refused_every and number % flood.refused_every == 0
        own = refused_client if is_refused else client
        await asyncio.sleep(arrive_in_s * number / flood.concurrency)
        while True:
            exchange = await own.request()
            own.exchanges.clear()
            if exchange.status in WAITING_STATUSES:
                await asyncio.sleep(WAIT_S if is_impatient else exchange.retry_after_s or WAIT_S)

    await asyncio.gather(*(caller(number) for number in range(flood.concurrency)))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_url", help="up to and including /v1")
    parser.add_argument("--key", required=True)
    parser.add_argument("--flood", choices=FLOODS, default="streams", help="see bench/scenarios.py")
    parser.add_argument("--callers", type=int, help="by default the flood's number")
    parser.add_argument("--model", help="by default the flood's; see bench/behaviour.py")
    parser.add_argument("--arrive-in-seconds", type=float, default=0, help="until all callers have come")
    parser.add_argument("--impatient", action="store_true", help="come back after a second in any case")
    asked = parser.parse_args()
    flood = FLOODS[asked.flood]
    flood = replace(flood, concurrency=asked.callers or flood.concurrency, model=asked.model or flood.model)
    uvloop.run(
        keep_up(flood, asked.base_url, asked.key, asked.arrive_in_seconds, is_impatient=asked.impatient)
    )


if __name__ == "__main__":
    main()
