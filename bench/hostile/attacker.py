"""The attacking process: waits for a line on its standard input, runs one attack, and writes its counts as
JSON.

python -m bench.hostile.attacker --attack tls-hello --port 8000 --attackers 1 --seconds 10 --keys KEYS.json
--output FILE
"""

import argparse
import asyncio
import os
import resource
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from bench.hostile.attacks import ATTACKS
from bench.hostile.measurement import Attacked
from bench.hostile.raw_client import Attacker, Keys, Tally, within_budget
from bench.hostile.registry import Attack

MAX_BYTES = 2_000_000_000
"""The most bytes that all attackers together send in one run."""
NICENESS = 10
"""The attacker gives way to the server, so that honest streams are delayed by the server's work alone."""


async def run(attack: Attack, attackers: list[Attacker], seconds: float) -> None:
    """Run all attackers at once, until their time or their bytes are spent."""
    await asyncio.gather(
        *(within_budget(asyncio.ensure_future(attack.run(each)), seconds) for each in attackers)
    )


def address(number: int, *, is_shared: bool) -> str:
    """Return the attacker's source IP: one of its own, unless all share that of the honest clients."""
    return "127.0.0.1" if is_shared else f"127.0.{1 + number // 250}.{2 + number % 250}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Send one attack beside other load.")
    parser.add_argument("--attack", required=True, choices=list(ATTACKS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--attackers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--keys", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shared-address", action="store_true")
    arguments = parser.parse_args()
    os.nice(NICENESS)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    keys = msgspec.json.decode(arguments.keys.read_bytes(), type=list[Keys])
    tally = Tally(MAX_BYTES)
    attackers = [
        Attacker(
            arguments.port,
            address(number, is_shared=arguments.shared_address),
            keys[number % len(keys)],
            tally,
            arguments.seconds,
            arguments.attackers,
        )
        for number in range(arguments.attackers)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    before, error = time.process_time(), ""
    try:
        uvloop.run(run(ATTACKS[arguments.attack], attackers, arguments.seconds))
    except Exception as problem:
        error = repr(problem)
    done = Attacked(
        dict(tally.answers),
        tally.sent_bytes,
        tally.received_bytes,
        round(time.process_time() - before, 2),
        error,
    )
    arguments.output.write_bytes(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
