"""Checks that a service under an even load does not grow: memory and descriptors of each process, keys of
each Valkey, connections of each Valkey and of PostgreSQL.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import fmean, linear_regression, median
from typing import Any, NamedTuple, cast

import psycopg
from redis import Redis

from tests.installation import Installation

SAMPLE_S = 2.0
FEWEST_SAMPLES = 6
"""The samples that a trend needs at least."""
OWN = ("upstream",)
"""The tests' own processes, which keep a record of every call."""

LEAST = {"memory MB": 4.0, "descriptors": 8.0, "connections": 4.0, "keys": 100.0}
"""The growth from the warm-up to the end that is always allowed."""
WARM_UP_PART = 1 / 3
BLOCKS = 20
"""The number of parts of the time after the warm-up; the median of each is a point of the line."""
NOISE_ERRORS = 4.0
"""A slope below this number of its standard errors may be chance; above it, one figure in 2,400 is."""

Sample = tuple[float, float]
"""When it was taken, in minutes, and the value."""


class Trend(NamedTuple):
    """The course of a figure after the warm-up."""

    middle: float
    most: float
    per_minute: float
    """The slope of the line of least squares through the blocks' medians."""
    bound: float
    """The slope above which the figure counts as grown: `LEAST` over this time, or more because of noise."""

    @classmethod
    def of(cls, samples: Sequence[Sample], least: float) -> "Trend":
        """Return the trend of the samples of a whole run."""
        began_at, ended_at = samples[0][0], samples[-1][0]
        warm_at = began_at + (ended_at - began_at) * WARM_UP_PART
        warm = [sample for sample in samples if sample[0] >= warm_at]
        values = [value for _, value in warm]
        minutes, medians = zip(*_points(warm), strict=True)
        slope, start = linear_regression(minutes, medians)
        distances = [value - start - slope * minute for minute, value in zip(minutes, medians, strict=True)]
        middle = fmean(minutes)
        spread = math.fsum((minute - middle) ** 2 for minute in minutes)
        variance = math.fsum(distance**2 for distance in distances) / (len(distances) - 2)
        noise = NOISE_ERRORS * math.sqrt(variance / spread)
        return cls(median(values), max(values), slope, max(noise, least / (ended_at - warm_at)))

    @property
    def has_grown(self) -> bool:
        """Return whether the figure grows faster than noise explains."""
        return self.per_minute > self.bound

    def __str__(self) -> str:
        return (
            f"median {self.middle:8.1f}   most {self.most:8.1f}   "
            f"a minute {self.per_minute:+9.3f}   bound {self.bound:8.3f}"
        )


Trends = dict[tuple[str, str], Trend]
"""By owner and figure."""


def _points(samples: Sequence[Sample]) -> list[Sample]:
    """Return the middle of the time and the median of the values of each block."""
    blocks = min(BLOCKS, len(samples))
    bounds = [len(samples) * number // blocks for number in range(blocks + 1)]
    return [
        (fmean(minute for minute, _ in block), median(value for _, value in block))
        for block in (samples[first:last] for first, last in pairwise(bounds))
    ]


class Growth:
    """Takes samples of an installation in a thread; `valkeys` maps their names to their URLs."""

    def __init__(self, installation: Installation, valkeys: Mapping[str, str]) -> None:
        self._installation = installation
        self._valkeys = valkeys
        self._samples: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self) -> None:
        """Take samples from now on."""
        self._thread.start()

    def stop(self) -> Trends:
        """Stop taking samples; return the trends."""
        self._is_over.set()
        self._thread.join()
        return {
            name: Trend.of(samples, LEAST[name[1]])
            for name, samples in self._samples.items()
            if len(samples) >= FEWEST_SAMPLES
        }

    def _run(self) -> None:
        database_url = self._installation.environment.get("DATABASE_URL", "")
        with ExitStack() as stack:
            valkeys = {name: stack.enter_context(Redis.from_url(url)) for name, url in self._valkeys.items()}
            database = None
            if database_url.startswith("postgres"):
                database = stack.enter_context(psycopg.connect(database_url, autocommit=True))
            while not self._is_over.wait(SAMPLE_S):
                for name, process in list(self._installation.processes.items()):
                    if name not in OWN:
                        self._add(name, _of_process(process.pid))
                for name, valkey in valkeys.items():
                    shown = cast(dict[str, Any], valkey.info())
                    self._add(name, {"connections": shown["connected_clients"], "keys": valkey.dbsize()})
                if database is not None:
                    self._add("postgresql", {"connections": _connections(database)})

    def _add(self, owner: str, figures: Mapping[str, Any]) -> None:
        minute = time.monotonic() / 60
        for name, value in figures.items():
            self._samples[owner, name].append((minute, float(value)))


def grown(trends: Trends) -> list[str]:
    """Return the figures that grow beyond their bounds."""
    return [
        f"{owner}: {figure} grows by {trend.per_minute:.3f} a minute, more than {trend.bound:.3f}"
        for (owner, figure), trend in trends.items()
        if trend.has_grown
    ]


def _of_process(pid: int) -> dict[str, float]:
    """Return the memory and descriptors of the process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = int(status.partition("VmRSS:")[2].split()[0])
    return {
        "memory MB": kilobytes / 1_024,
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def _connections(database: "psycopg.Connection[Any]") -> int:
    """Return the number of connections to the database."""
    row = database.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    [count] = row.fetchone() or [0]
    return int(count)
