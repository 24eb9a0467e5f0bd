"""Numbers that only a process itself knows: its latencies, its event loop, its memory.

Each process counts in memory and writes all its numbers every few seconds into one hash in Redis; `/metrics`
of any web process reads the hash, so that one address is enough to scrape.
"""

import os
import resource
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from redis import Redis as ThreadRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts.loop_clock import clock
from accounts.redis_time_limit import in_time
from chatapi import identity
from chatapi.concurrency import repeat

PUBLISH_S: Final = 5.0
# A process that has written nothing for this long has ended.
FORGET_S: Final = 20.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# The time is that of Redis: the clocks of processes may differ.
_WRITE: Final = """
redis.call('HSET', KEYS[1], ARGV[1], redis.call('TIME')[1] .. ' ' .. ARGV[2])
redis.call('EXPIRE', KEYS[1], 3600)
"""

# Upper bounds in seconds.
LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
PER_TOKEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    """Counts observations by upper bound, for each value of one label."""

    def __init__(self, name: str, meaning: str, bounds: tuple[float, ...], label: str = "") -> None:
        self.name, self.meaning, self.label, self.bounds = name, meaning, label, bounds
        self.series: dict[str, list[float]] = {}
        """For each label: the number within each bound, the number beyond, and the sum in seconds."""

    def observe(self, seconds: float, label: str = "") -> None:
        """Count one observation. Takes a fraction of a microsecond."""
        row = self.series.get(label)
        if row is None:
            row = self.series[label] = [0.0] * (len(self.bounds) + 2)
        row[bisect_left(self.bounds, seconds)] += 1
        row[-1] += seconds


class Counter:
    """Counts events for each combination of its labels' values, which contain no spaces."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.series: dict[str, float] = {}
        """The counts by the values of the labels, joined by spaces."""

    def add(self, *values: str, number: int = 1) -> None:
        """Add to a series. Zero creates it: Prometheus sees the first increase only of one that exists."""
        key = " ".join(values)
        self.series[key] = self.series.get(key, 0.0) + number


# Each is defined inside the tuple, because `publish_forever` writes only those in it.
HISTOGRAMS: Final = (
    ADMISSION := Histogram(
        "chatapi_admission_seconds",
        "Our own time before the queue: from a request's head to its job in the queue.",
        LATENCY_S,
    ),
    QUEUE_WAIT := Histogram(
        "chatapi_queue_wait_seconds", "From admission until a worker has claimed a generation.", LATENCY_S
    ),
    FIRST_TOKEN := Histogram(
        "chatapi_first_token_seconds", "From the claim to the first token.", LATENCY_S, "model"
    ),
    CLIENT_FIRST_TOKEN := Histogram(
        "chatapi_client_first_token_seconds",
        "How long a client waits for the first content of a stream, from its request's head.",
        LATENCY_S,
        "model",
    ),
    BETWEEN_TOKENS := Histogram(
        "chatapi_between_tokens_seconds", "Mean time between a generation's tokens.", PER_TOKEN_S, "model"
    ),
    LONGEST_TOKEN_GAP := Histogram(
        "chatapi_longest_token_gap_seconds",
        "Longest silence between two pieces of a generation's visible content.",
        LATENCY_S,
        "model",
    ),
    SETTLEMENT := Histogram(
        "chatapi_settlement_seconds",
        "Our own time after the answer: from the upstream's end to the commit of the charge.",
        LATENCY_S,
    ),
)
COUNTERS: Final = (
    DELIVERY_ATTEMPTS := Counter(
        "chatapi_delivery_attempts", "Attempts to deliver an event, by how they ended.", "kind", "outcome"
    ),
)


class Gauge(NamedTuple):
    """A number that is read when the process writes its numbers."""

    name: str
    meaning: str
    read: Callable[[int], float]
    """Takes the number of requests or generations in the process, and returns the gauge's value."""
    only_grows: bool = False


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES


GAUGES: Final = (
    Gauge(
        "chatapi_process_active",
        "Open streams of a web process, running generations of a worker.",
        lambda active: active,
    ),
    Gauge(
        "chatapi_process_event_loop_lag_seconds",
        "The latest turn of the event loop in the last seconds.",
        lambda _: clock.take_lag_s(),
    ),
    Gauge("chatapi_process_resident_bytes", "Memory.", lambda _: _resident_bytes()),
    Gauge(
        "chatapi_process_cpu_seconds",
        "Processor time since the process began.",
        lambda _: _cpu_s(),
        only_grows=True,
    ),
    Gauge(
        "chatapi_process_open_descriptors",
        "Open files and sockets.",
        lambda _: len(os.listdir("/proc/self/fd")),
    ),
)


class Snapshot(msgspec.Struct):
    """All numbers of one process."""

    role: str
    gauges: dict[str, float]
    histograms: dict[str, dict[str, list[float]]]
    counters: dict[str, dict[str, float]] = {}
    """Empty if a process of an older release wrote the snapshot."""


async def publish_forever(redis: Redis, prefix: str, role: str, active: Callable[[], int]) -> None:
    """Write this process's numbers every `PUBLISH_S`; `active` counts what it works on."""
    name = identity.process_name()

    async def publish() -> None:
        count = active()
        gauges = {gauge.name: float(gauge.read(count)) for gauge in GAUGES}
        histograms = {each.name: each.series for each in HISTOGRAMS if each.series}
        counters = {each.name: each.series for each in COUNTERS if each.series}
        text = msgspec.json.encode(Snapshot(role, gauges, histograms, counters))
        async with in_time():
            await redis.eval(_WRITE, 1, f"{prefix}metrics", name, text)

    await repeat(PUBLISH_S, "metrics", publish, expected=(RedisError,))


def read(redis: ThreadRedis, prefix: str) -> Mapping[str, Snapshot]:
    """Return the numbers of living processes by name; delete those of ended ones. Raises `RedisError`."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.hgetall(f"{prefix}metrics")
        (now_s, _), rows = pipe.execute()
    living, ended = {}, []
    for name, value in rows.items():
        written_at_s, _, text = value.partition(b" ")
        if now_s - int(written_at_s) > FORGET_S:
            ended.append(name)
        elif (snapshot := _decode(text)) is not None:
            living[name.decode()] = snapshot
    if ended:
        redis.hdel(f"{prefix}metrics", *ended)
    return living


def _decode(text: bytes) -> Snapshot | None:
    """Return the snapshot; None for one of a release with other numbers."""
    try:
        return msgspec.json.decode(text, type=Snapshot)
    except msgspec.DecodeError:
        return None


def buckets(histogram: Histogram, row: list[float]) -> tuple[list[tuple[str, float]], float] | None:
    """Return Prometheus's cumulative buckets and the sum; None if another release has other bounds."""
    if len(row) != len(histogram.bounds) + 2:
        return None
    total, found = 0.0, []
    for bound, number in zip([*map(str, histogram.bounds), "+Inf"], row, strict=False):
        total += number
        found.append((bound, total))
    return found, row[-1]
