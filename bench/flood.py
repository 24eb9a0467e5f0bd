"""Keeps a number of streams of one key running until it is stopped, for `bench.fairness`. A refused caller
waits for the answer's Retry-After, as SDKs do, or with `--impatient` for a second.

    python -m bench.flood URL --key ck_live_... --model tok20-d100-f1 --streams 400
"""

import argparse
import asyncio

import uvloop

from bench.client import Client

WAIT_S = 1.0
TIMEOUT_S = 120.0


async def flood(client: Client, streams: int, arrive_in_s: float, *, is_impatient: bool) -> None:
    """Send requests for ever; do not keep the answers. The callers arrive evenly within `arrive_in_s`."""

    async def caller(number: int) -> None:
        await asyncio.sleep(arrive_in_s * number / streams)
        while True:
            exchange = await client.request()
            client.exchanges.clear()
            if exchange.status != 200:
                await asyncio.sleep(WAIT_S if is_impatient else exchange.retry_after_s or WAIT_S)

    await asyncio.gather(*(caller(number) for number in range(streams)))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_url", help="up to and including /v1")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True, help="see bench/behaviour.py")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--arrive-in-seconds", type=float, default=0, help="until all callers have come")
    parser.add_argument("--impatient", action="store_true", help="come back after a second in any case")
    asked = parser.parse_args()
    client = Client(asked.base_url, asked.key, asked.model, is_stream=True, timeout_seconds=TIMEOUT_S)
    uvloop.run(flood(client, asked.streams, asked.arrive_in_seconds, is_impatient=asked.impatient))


if __name__ == "__main__":
    main()
