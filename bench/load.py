"""The load generator: keeps a number of requests under way, checks every answer, and prints one `Measurement`
as JSON.

    python -m bench.load URL --key ck_live_... --model tok64-d0 --concurrency 32 --seconds 5
    python -m bench.load URL --model tok100-d20 --concurrency 200 --requests 200 --ramp-seconds 1
    python -m bench.load URL --model tok64-d0 --concurrency 32 --no-stream

`URL` is for example `http://127.0.0.1:8000/opentoken/v1`; the second command measures paced streams.

`--process web=123,124` (repeatable) names root processes whose trees' CPU and memory are counted.
"""

import argparse
import asyncio
import bisect
import gc
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import msgspec
import uvloop

from bench import processes
from bench.answers import AnswerError, Content, Expected, check_completion, error_code
from bench.behaviour import Behaviour, answer_tokens
from bench.client import Client, Exchange, clock
from bench.measurement import Cost, Measurement, percentiles_ms
from bench.protocols import PROTOCOLS

SETTLE_SECONDS = 0.2
"""CPU time is counted until this long after the last answer, so that deferred work is included."""


@dataclass(frozen=True)
class Load:
    """The options of one run."""

    base_url: str
    key: str
    model: str
    concurrency: int
    requests: int | None
    seconds: float
    ramp_seconds: float
    warmup_requests: int
    timeout_seconds: float
    is_stream: bool
    roots: dict[str, list[int]]
    protocol: str = "chat"
    prompt_bytes: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    keys_file: Path | None = None


@dataclass
class Timings:
    """Seconds measured on right answers; `lag` has one value a token."""

    ttft: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Reading:
    """The CPU seconds that machine, load generator and groups had used at one moment."""

    at: float
    machine: float
    own: float
    groups: dict[str, float]

    @classmethod
    def now(cls, roots: processes.Groups) -> "Reading":
        """Read /proc."""
        groups = {name: processes.cpu_seconds(pids) for name, pids in processes.process_groups(roots).items()}
        return cls(clock(), processes.machine_cpu_seconds(), time.process_time(), groups)


@dataclass(frozen=True)
class Run:
    """The readings around the load, the time from the first request to the last answer, and the machine's
    speed.
    """

    before: Reading
    after: Reading
    wall_seconds: float
    calibration_ms: float

    def spent(self, group: str) -> float:
        """Return the CPU seconds of one group."""
        return self.after.groups[group] - self.before.groups[group]

    def load_cores(self) -> float:
        """Return the number of cores that the load generator kept busy."""
        return (self.after.own - self.before.own) / (self.after.at - self.before.at)

    def other_cores(self) -> float:
        """Return the number of cores that were busy with processes that are neither the load generator nor in
        a group.
        """
        machine = (self.after.machine - self.before.machine) / (self.after.at - self.before.at)
        groups = sum(map(self.spent, self.before.groups)) / (self.after.at - self.before.at)
        return machine - groups - self.load_cores()


async def keep_under_way(client: Client, load: Load) -> None:
    """Run a closed loop: each of `concurrency` callers sends its next request when the last one is
    answered.
    """
    sent, stop_at = 0, clock() + load.seconds

    async def caller(start_after_seconds: float) -> None:
        nonlocal sent
        await asyncio.sleep(start_after_seconds)
        while clock() < stop_at and (load.requests is None or sent < load.requests):
            sent += 1
            await client.request()

    await asyncio.gather(
        *(caller(load.ramp_seconds * number / load.concurrency) for number in range(load.concurrency))
    )


async def warm_up(client: Client, load: Load) -> None:
    """Open connections and let the server fill its caches; these answers are not counted."""
    for start in range(0, load.warmup_requests, load.concurrency):
        size = min(load.concurrency, load.warmup_requests - start)
        await asyncio.gather(*(client.request() for _ in range(size)))
    client.exchanges.clear()


async def run(client: Client, load: Load) -> Run:
    """Warm up, then run the load between two readings."""
    await warm_up(client, load)
    for pids in processes.process_groups(load.roots).values():
        processes.reset_peaks(pids)
    gc.collect()
    gc.disable()  # a collection over all stored parts would delay the times of arrival
    calibration_before_ms = calibrate_ms()
    before = Reading.now(load.roots)
    started_at = clock()
    await keep_under_way(client, load)
    wall_seconds = clock() - started_at
    await asyncio.sleep(SETTLE_SECONDS)
    after = Reading.now(load.roots)
    return Run(before, after, wall_seconds, (calibration_before_ms + calibrate_ms()) / 2)


async def measure(load: Load) -> Measurement:
    """Run the load, then check the answers."""
    client = Client(
        load.base_url,
        load.key,
        load.model,
        is_stream=load.is_stream,
        timeout_seconds=load.timeout_seconds,
        protocol=PROTOCOLS[load.protocol],
        prompt_bytes=load.prompt_bytes,
        headers=load.headers,
        keys=in_turn(load.keys_file) if load.keys_file else (),
    )
    ran = await run(client, load)
    client.close()
    problems, timings = check_all(client, load)
    right = len(timings.total)
    return Measurement(
        model=load.model,
        requests=len(client.exchanges),
        right=right,
        problems=dict(problems),
        wall_seconds=round(ran.wall_seconds, 3),
        answers_per_second=round(right / ran.wall_seconds, 2),
        ttft_ms=percentiles_ms(timings.ttft),
        total_ms=percentiles_ms(timings.total),
        lag_ms=percentiles_ms(timings.lag),
        cost=costs(ran, load, right) if right else {},
        load_cores=round(ran.load_cores(), 2),
        other_cores=round(ran.other_cores(), 2),
        calibration_ms=round(ran.calibration_ms, 1),
    )


def in_turn(keys_file: Path) -> list[str]:
    """Return the keys of the file, rotated by a random number, so that each run begins with another key."""
    keys = keys_file.read_text().split()
    first = random.randrange(len(keys))
    return keys[first:] + keys[:first]


def calibrate_ms() -> float:
    """Return the time that this machine takes at this moment for a fixed piece of Python."""
    start, total = clock(), 0
    for number in range(200_000):
        total += number * number % 7
    return (clock() - start) * 1000


def costs(ran: Run, load: Load, right: int) -> dict[str, Cost]:
    """Return the CPU time for each right answer and its tokens, and the memory, by group."""
    tokens = right * Behaviour.parse(load.model).tokens
    return {
        name: Cost(
            cpu_ms_per_request=round(ran.spent(name) * 1e3 / right, 3),
            cpu_us_per_token=round(ran.spent(name) * 1e6 / tokens, 2),
            peak_pss_mb=round(processes.peak_pss_mb(pids), 1),
            pss_mb=round(processes.pss_mb(pids), 1),
            processes=len(pids),
        )
        for name, pids in processes.process_groups(load.roots).items()
    }


def check_all(client: Client, load: Load) -> tuple[Counter[str], Timings]:
    """Return problems by their names, and the timings of the answers that have none."""
    problems: Counter[str] = Counter()
    timings = Timings()
    for exchange in client.exchanges:
        try:
            check_exchange(exchange, load, timings)
        except AnswerError as problem:
            problems[str(problem)] += 1
    if client.stray_bytes:
        problems["bytes after the end of an answer"] = client.stray_bytes
    return problems, timings


def check_exchange(exchange: Exchange, load: Load, timings: Timings) -> None:
    """Add a right answer to the timings; raises AnswerError for any other."""
    body = b"".join(part for _, part in exchange.parts)
    if exchange.status not in (0, 200):
        raise AnswerError(f"status {exchange.status} {error_code(body, 'error')}".rstrip())
    if exchange.failure:
        raise AnswerError(exchange.failure)
    behaviour = Behaviour.parse(load.model)
    expected = Expected(
        expected_text(exchange.letter, behaviour.tokens), behaviour.tokens, behaviour.prompt_tokens
    )
    media_type = b"text/event-stream" if load.is_stream else b"application/json"
    if exchange.content_type.partition(b";")[0] != media_type:
        raise AnswerError(f"content type {exchange.content_type.decode(errors='replace')}")
    if load.is_stream:
        contents = PROTOCOLS[load.protocol].check_stream(body, expected)
        arrivals = token_arrivals(exchange, contents)
        timings.ttft.append(arrivals[0] - exchange.sent_at)
        timings.lag += lags(arrivals, behaviour.delay_ms / 1000)
    else:
        check_completion(body, expected)
        timings.ttft.append(exchange.parts[0][0] - exchange.sent_at)
    timings.total.append(exchange.ended_at - exchange.sent_at)


@lru_cache
def expected_text(letter: str, tokens: int) -> str:
    """Return the text of the right answer."""
    return "".join(answer_tokens(letter, tokens))


def token_arrivals(exchange: Exchange, contents: list[Content]) -> list[float]:
    """Return the arrival time of each token of the checked text: that of the part of the body which completed
    its event.
    """
    part_ends = list(accumulate(len(part) for _, part in exchange.parts))
    arrivals: list[float] = []
    for content in contents:
        arrived_at = exchange.parts[bisect.bisect_left(part_ends, content.end_bytes)][0]
        arrivals += [arrived_at] * content.text.count(exchange.letter)
    return arrivals


def lags(arrivals: list[float], interval_seconds: float) -> list[float]:
    """Return the delay of each token against an even pace from the first; empty for a stream
    without a pace.
    """
    if not interval_seconds:
        return []
    return [
        arrived_at - arrivals[0] - position * interval_seconds for position, arrived_at in enumerate(arrivals)
    ]


def parse_arguments(arguments: list[str]) -> Load:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Load generator and checker for OpenAI-compatible chat completions."
    )
    parser.add_argument("base_url", help="up to and including /v1")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="tok64-d0", help="see bench/behaviour.py")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, help="most requests; by default only the time ends the run")
    parser.add_argument("--seconds", type=float, default=5, help="send no new request after this long")
    parser.add_argument(
        "--ramp-seconds", type=float, default=0, help="spread the callers' first requests over this long"
    )
    parser.add_argument("--warmup-requests", type=int, default=32)
    parser.add_argument("--timeout-seconds", type=float, default=60)
    parser.add_argument("--no-stream", dest="is_stream", action="store_false")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="chat", help="others are streamed only")
    parser.add_argument("--prompt-bytes", type=int, default=0, help="least length (default: about 200)")
    parser.add_argument("--header", dest="headers", action="append", default=[], metavar="NAME:VALUE")
    parser.add_argument("--keys-file", type=Path, help="keys to use in turn, one a line, instead of --key")
    parser.add_argument(
        "--process", dest="roots", action="append", default=[], type=named_processes, metavar="NAME=PID[,PID]"
    )
    values = vars(parser.parse_args(arguments))
    headers = dict(header.split(":", 1) for header in values["headers"])
    return Load(**values | {"roots": dict(values["roots"]), "headers": headers})


def named_processes(text: str) -> tuple[str, list[int]]:
    """Parse `web=123,124`; raises ValueError."""
    name, _, pids = text.partition("=")
    return name, [int(pid) for pid in pids.split(",")]


def main() -> None:
    """Run the command line; exit status 1 when an answer was wrong or none was right."""
    measurement = uvloop.run(measure(parse_arguments(sys.argv[1:])))
    sys.stdout.write(msgspec.json.encode(measurement).decode() + "\n")
    sys.exit(0 if measurement.right and not measurement.problems else 1)


if __name__ == "__main__":
    main()
