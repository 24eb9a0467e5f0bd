"""The result of one run of the load generator, which `bench.load` prints and `bench.compare` reads."""

from collections.abc import Sequence

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Nearest-rank percentiles, in milliseconds."""

    p50: float
    p95: float
    p99: float


class Cost(msgspec.Struct, frozen=True):
    """CPU time and memory of one group of processes during the run."""

    cpu_ms_per_request: float
    cpu_us_per_token: float
    pss_mb: float
    processes: int
    peak_pss_mb: float = 0
    """The highest memory; 0 in older files of results."""


class Measurement(msgspec.Struct, frozen=True):
    """One run. Latencies and costs count right answers only; everything else is in `problems`."""

    model: str
    requests: int
    right: int
    problems: dict[str, int]
    wall_seconds: float
    answers_per_second: float
    ttft_ms: Percentiles | None
    """From the sent request to the first text; for an answer that is not streamed, to its first byte."""
    total_ms: Percentiles | None
    lag_ms: Percentiles | None
    """The delay of tokens against the upstream's pace, counted from the stream's first token; None without a
    pace.
    """
    cost: dict[str, Cost]
    """By group of processes; empty when no answer was right."""
    load_cores: float
    """Cores that the load generator kept busy; near 1 it is the bottleneck."""
    other_cores: float
    """Cores that all other processes outside the groups kept busy; near 0 on a quiet machine."""
    calibration_ms: float
    """The mean time of a fixed piece of Python before and after the load, which shows the machine's speed."""
    # `bench.table` fills in the following members.
    rest_pss_mb: float = 0
    """The target's memory before the run."""
    thread_cpu_ms: dict[str, float] = {}
    """CPU time a request by process and thread; empty unless the service is probed."""
    longest_turn_ms: dict[str, float] = {}
    """The longest turn of the event loop by process; empty unless the service is probed."""


def percentiles_ms(seconds: Sequence[float]) -> Percentiles | None:
    """Return percentiles of durations in seconds; None when there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(percent: int) -> float:
        return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000, 3)

    return Percentiles(rank(50), rank(95), rank(99))
