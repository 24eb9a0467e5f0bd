"""Runs the soak's clients against four hosts, each with a web process and a worker, in network namespaces;
exits 1 if the books are wrong in the end. It needs root, `ip` and PostgreSQL.

python -m tests.faults.soak_hosts --seconds 180 --seed 4      the seed decides requests and faults
python -m tests.faults.soak_hosts --seconds 1800 --steady     nothing dies, at half of the capacity: nothing
                                                              may grow

Hosts are killed and started again, cut off, and added. The reaper is killed and started again. The broker
dies, and one of two servers of streams does, which must end its own streams only.
"""

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests import canaries
from tests.faults.bookkeeper import Bookkeeper
from tests.faults.hosts import BROKER, INSIDE, STREAMS, VALKEYS, Fleet, command_inside, web_url, why_not
from tests.faults.soak_clients import CANARY, EMBEDDING_MODELS, MODELS, QUEUE, Guest
from tests.faults.soak_connections import BalancedClient, Connections
from tests.faults.soak_growth import Growth, Trends, grown
from tests.faults.soak_load import PATIENT, Load, Pace
from tests.faults.soak_report import print_report, print_steady
from tests.faults.soak_verdict import Loss, Outages, Verdict, harmed_by_another_server
from tests.faults.soak_visits import Visit
from tests.installation import wait_for

HOSTS, MOST_HOSTS = 4, 6
GUESTS = 24
"""The clients at the same time while something breaks."""
GENERATIONS_PER_SECOND = 3
STREAM_TTL_MS = 30_000
PAUSE_S = (2.0, 5.0)
"""Between two faults."""
CUT_S = (2.0, 6.0)
FIRST_REQUESTS = 20
"""The requests that the balancer sends to a host that has joined, before the next fault."""


class Visitor(Guest):
    """A guest of the whole fleet, whose every request goes where the balancer says."""

    def __init__(self, fleet: Fleet, number: int, chance: random.Random, connections: Connections) -> None:
        super().__init__(fleet, number, chance, connections)
        self._client = BalancedClient(fleet.balancer.choose, self._client)

    def _deliver_again(self, generation_id: str) -> None:
        message = QUEUE.message(generation_id[-32:], 1)
        with suppress(RedisError), Redis.from_url(BROKER, socket_timeout=1) as redis:
            redis.lpush(QUEUE.key, message, message)


class HostFaults:
    """The faults: each kind in turn, in a random order."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self.outages = Outages()
        self.faults: Counter[str] = Counter()
        self.joined: list[str] = []
        """Hosts that were not there in the beginning."""
        self._fleet = fleet
        self._chance = chance
        self._kinds: list[Callable[[], None]] = [
            self._kill_a_host,
            self._cut_a_link,
            self._add_a_host,
            self._kill_the_reaper,
            self._kill_the_broker,
            self._kill_a_stream_server,
        ]

    def run(self, seconds: float) -> None:
        """Break something now and then for this time, each kind at least once. In the end everything runs."""
        ends_at = time.monotonic() + seconds
        self._break_each(math.inf)
        while time.monotonic() < ends_at:
            self._break_each(ends_at)

    def _break_each(self, ends_at: float) -> None:
        for fault in self._chance.sample(self._kinds, len(self._kinds)):
            time.sleep(min(self._chance.uniform(*PAUSE_S), max(0.0, ends_at - time.monotonic())))
            if time.monotonic() >= ends_at:
                return
            fault()
            self.faults[fault.__name__.strip("_").replace("_", " ")] += 1

    @contextmanager
    def _without_a_host(self) -> Iterator[str]:
        began_at = time.monotonic()
        yield self._chance.choice(self._fleet.hosts)
        self.outages.web_kills.append((began_at, time.monotonic()))

    def _kill_a_host(self) -> None:
        with self._without_a_host() as host:
            self._fleet.kill_host(host)
            time.sleep(self._chance.uniform(*PAUSE_S))
            self._fleet.run_host(host)

    def _cut_a_link(self) -> None:
        with self._without_a_host() as host:
            ends_at = time.monotonic() + self._chance.uniform(*CUT_S)
            self._fleet.cut(host)
            time.sleep(max(0.0, ends_at - time.monotonic()))
            self._fleet.mend(host)

    def _add_a_host(self) -> None:
        host = self._fleet.add()
        self.joined.append(host)
        chosen = self._fleet.balancer.chosen
        wait_for(lambda: chosen[web_url(host)] >= FIRST_REQUESTS, f"requests for {host}", pause_s=0.1)
        if len(self._fleet.hosts) == MOST_HOSTS:
            self._kinds.remove(self._add_a_host)

    def _kill_the_reaper(self) -> None:
        self._fleet.kill_reaper()
        time.sleep(self._chance.uniform(*PAUSE_S))
        self._fleet.start_reaper()

    def _kill_the_broker(self) -> None:
        self._kill_a_store("broker", (0, 1))

    def _kill_a_stream_server(self) -> None:
        number = self._chance.randrange(len(STREAMS))
        self.outages.valkey_losses.append(Loss(time.monotonic(), str(number)))
        self._kill_a_store(f"streams-{number}", PAUSE_S)

    def _kill_a_store(self, name: str, away_s: tuple[float, float]) -> None:
        self._fleet.kill(name)
        time.sleep(self._chance.uniform(*away_s))
        self._fleet.start_store(name)


class HostsSoak:
    """One run."""

    def __init__(self, folder: Path, seed: int, *, is_steady: bool = False) -> None:
        environment = {"CHATAPI_LOG_LEVEL": "WARNING", "CHATAPI_STREAM_TTL_MS": str(STREAM_TTL_MS)}
        self.fleet = Fleet(folder, HOSTS, **environment, **(PATIENT if is_steady else {}))
        self.faults = HostFaults(self.fleet, random.Random(f"{seed} faults"))
        self.load = Load(self._visit)
        self.trends: Trends = {}
        self.pace: Pace | None = None
        self._is_steady = is_steady
        self._seed = seed

    def run(self, seconds: float) -> Verdict:
        """Start everything, break things for this time unless the run is steady, let it recover and judge."""
        self.fleet.start(MODELS | EMBEDDING_MODELS)
        self.fleet.keys["poor"] = self.fleet.keys["live"]
        if self._is_steady:
            chance = random.Random(f"{self._seed} pace")
            self.pace, self.trends = self.load.run_steadily(Growth(self.fleet, VALKEYS), seconds, chance)
        else:
            with self.load.callers(GUESTS):
                self.faults.run(seconds)
        return self._judge()

    def _visit(self, number: int, connections: Connections) -> Visit:
        return Visitor(self.fleet, number, random.Random(f"{self._seed} {number}"), connections).visit()

    def _judge(self) -> Verdict:
        bookkeeper = Bookkeeper(self.fleet)
        try:
            bookkeeper.close_the_books(timeout_s=60)
            calls = self.fleet.calls(*MODELS, *EMBEDDING_MODELS)
            rows, report = bookkeeper.rows(), bookkeeper.check()
        finally:
            bookkeeper.stop()
        visits = self.load.visits
        verdict = Verdict.of(visits, rows, report, calls, self.faults.outages)
        verdict.tables["requests by host"] = self._by_host(self.fleet.balancer.chosen)
        verdict.tables["generations by host"] = Counter(row.worker.partition(":")[0] for row in rows)
        violations = [
            *verdict.violations,
            *harmed_by_another_server(visits, self.faults.outages),
            *self._traces(),
            *grown(self.trends),
            *(self.pace.violations() if self.pace else self._unproved(verdict)),
        ]
        return replace(verdict, violations=violations)

    def _by_host(self, chosen: Mapping[str, int]) -> "Counter[str]":
        return Counter({host: chosen[web_url(host)] for host in self.fleet.hosts})

    def _unproved(self, verdict: Verdict) -> Iterator[str]:
        """Yield the faults that proved nothing."""
        for host in self.faults.joined:
            if not verdict.tables["generations by host"][host]:
                yield f"{host} joined, and its worker has run nothing"
        ends = verdict.tables["when a stream server died"]
        for place in ("on it", "on another"):
            if not any(end.startswith(f"{place}:") for end in ends):
                yield f"no stream was {place} when a stream server died"

    def _traces(self) -> list[str]:
        """Return the places that still contain a message when no stream is stored any more."""
        found = []
        canary = CANARY.encode()
        for name, url in VALKEYS.items():
            with Redis.from_url(url) as valkey:
                valkey.config_set("rdbcompression", "no")
                patience_s = STREAM_TTL_MS / 1_000 + 5
                wait_for(lambda: canaries.is_forgotten(valkey), "all streams to be forgotten", patience_s, 1)
                if name == "broker":
                    found += canaries.found([canary], self.fleet, valkey)
                elif canary in canaries.held_by(valkey):
                    found.append(f"{CANARY} in {name}")
        return found


def main() -> int:
    """Run, print the report, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests.faults.soak_hosts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at-least", type=int, help="generations (default: 3 a second)")
    parser.add_argument(
        "--steady",
        action="store_true",
        help="no faults, at half of the capacity: memory, descriptors, connections and keys must not grow",
    )
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"the fleet can't run here: {reason}.")
    if not os.environ.get(INSIDE):
        arguments = [f"--seconds={options.seconds}", f"--seed={options.seed}"]
        arguments += ["--steady"] * options.steady
        if options.at_least is not None:
            arguments.append(f"--at-least={options.at_least}")
        module = [sys.executable, "-m", "tests.faults.soak_hosts", *arguments]
        return subprocess.run(command_inside(module), check=False).returncode
    at_least = options.at_least
    if at_least is None:
        at_least = round(options.seconds * GENERATIONS_PER_SECOND)
    folder = Path(tempfile.mkdtemp(prefix="chatapi-soak-"))
    soak = HostsSoak(folder, options.seed, is_steady=options.steady)
    try:
        verdict = soak.run(options.seconds)
        verdict = verdict.asking_at_least(at_least).bearing_silence()
    finally:
        soak.fleet.stop()
    arguments = f"--seconds {options.seconds:g} --seed {options.seed}" + " --steady" * options.steady
    print(f"python -m tests.faults.soak_hosts {arguments}\n")
    if soak.pace:
        print_steady(soak.pace, soak.trends)
    print_report(verdict, soak.faults.faults, soak.load.visits, folder)
    if not verdict.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
