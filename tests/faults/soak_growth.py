"""Whether a service that runs evenly stays as large as it is: memory and descriptors of each process,
keys of each Valkey, connections of each Valkey and of PostgreSQL.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import psycopg
from redis import Redis

from tests.installation import Installation

SAMPLE_S = 2.0
OWN = ("upstream",)
"""The tests' own processes, which keep a record of every call."""


class Bound(NamedTuple):
    """How much a figure may have grown from the first third of the samples to the last."""

    factor: float
    and_more: float


BOUNDS = {
    "memory MB": Bound(1.10, 8),
    "descriptors": Bound(1.0, 16),
    "connections": Bound(1.0, 16),
    "keys": Bound(1.2, 100),
}


class Curve(NamedTuple):
    """A figure in time: the medians of its first and its last third, and its highest value."""

    first: float
    last: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Curve":
        """Return the curve of at least three values."""
        third = len(values) // 3
        return cls(median(values[:third]), median(values[-third:]), max(values))

    def __str__(self) -> str:
        return f"first third {self.first:8.1f}   last third {self.last:8.1f}   most {self.most:8.1f}"


Curves = dict[tuple[str, str], Curve]
"""By owner and figure."""


class Growth:
    """Takes samples of an installation in a thread; `valkeys` maps their names to their URLs."""

    def __init__(self, installation: Installation, valkeys: Mapping[str, str]) -> None:
        self._installation = installation
        self._valkeys = valkeys
        self._samples: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self) -> None:
        """Take samples from now on."""
        self._thread.start()

    def stop(self) -> Curves:
        """Take no more; return the curves."""
        self._is_over.set()
        self._thread.join()
        return {name: Curve.of(values) for name, values in self._samples.items() if len(values) >= 3}

    def run_for(self, seconds: float, warm_up_s: float) -> Curves:
        """Return the curves of so long a time, without its beginning, until the first streams expire."""
        ends_at = time.monotonic() + seconds
        time.sleep(warm_up_s)
        self.watch()
        time.sleep(max(0.0, ends_at - time.monotonic()))
        return self.stop()

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
        for name, value in figures.items():
            self._samples[owner, name].append(float(value))


def print_curves(curves: Curves) -> None:
    """Print each figure in time."""
    for (owner, figure), curve in sorted(curves.items()):
        print(f"{owner + ' ' + figure:<26}{curve}")


def grown(curves: Curves) -> list[str]:
    """Return the figures that have grown beyond their bounds."""
    return [
        f"{owner}: {figure} grew from {curve.first:.1f} to {curve.last:.1f}"
        for (owner, figure), curve in curves.items()
        if curve.last > curve.first * BOUNDS[figure].factor + BOUNDS[figure].and_more
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
