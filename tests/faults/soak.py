"""Runs clients of every kind while processes die at random; exits 1 if the books are wrong in the end.

python -m tests.faults.soak --seconds 600 --seed 4         replay a run: the seed decides requests and faults
python -m tests.faults.soak --seconds 600 --at-least 3000  fail with fewer generations (default: 5 a second)
python -m tests.faults.soak --seconds 1800 --steady        nothing dies, at half of the capacity: nothing
                                                           may grow

With DATABASE_URL it runs on PostgreSQL, whose backends are killed as well.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from chatapi.serving import embedded_valkey
from tests import canaries
from tests.faults.bookkeeper import Bookkeeper
from tests.faults.soak_chaos import Chaos
from tests.faults.soak_clients import CANARY, EMBEDDING_MODELS, MODELS, Guest
from tests.faults.soak_connections import Connections
from tests.faults.soak_growth import Growth, Trends, grown
from tests.faults.soak_load import PATIENT, Load, Pace
from tests.faults.soak_report import print_report, print_steady
from tests.faults.soak_verdict import MAX_SILENCE_S, Verdict
from tests.faults.soak_visits import Visit
from tests.installation import Installation, wait_for

GUESTS = 24
"""The clients at the same time while something breaks."""
GENERATIONS_PER_SECOND = 5
"""The rate that a run must reach without `--at-least`: 3,000 in ten minutes."""
MAX_STREAM_TTL_S = 60.0
"""How long the run has to wait in the end until no text of an answer may be left: in a short run less, so
that the number of streams that are kept becomes even."""
FORGOTTEN_LATE_S = 5
POOR = """
from accounts.keys import create_key, get_or_create_project
from usage.models import BudgetLimit
row, secret = create_key(get_or_create_project("Tests", "default"), name="poor")
BudgetLimit.objects.create(scope="key", scope_id=row.pk, period="ever", limit_nanodollars=100_000_000)
print(secret)
"""
"""A key whose budget is spent before the end."""


class Soak:
    """One run: the installation, its clients and its faults."""

    def __init__(self, folder: Path, seed: int, seconds: float, *, is_steady: bool = False) -> None:
        self.seconds = seconds
        self._stream_ttl_s = min(MAX_STREAM_TTL_S, seconds / 3)
        environment = {
            "CHATAPI_LOG_LEVEL": "WARNING",
            "CHATAPI_STREAM_TTL_MS": f"{self._stream_ttl_s * 1_000:.0f}",
        }
        self.installation = Installation(folder, **environment, **(PATIENT if is_steady else {}))
        self.seed = seed
        self.load = Load(self._visit)
        self.chaos = Chaos(self.installation, random.Random(f"{seed} chaos"))
        self.trends: Trends = {}
        self.pace: Pace | None = None
        self._is_steady = is_steady

    def run(self) -> Verdict:
        """Start everything, break things unless the run is steady, let it recover, and judge."""
        installation = self.installation
        installation.start(MODELS | EMBEDDING_MODELS)
        installation.keys["poor"] = installation.shell(POOR)
        self.chaos.complete()
        if self._is_steady:
            valkeys = {"valkey": f"unix://{embedded_valkey.socket_path(installation.folder)}"}
            chance = random.Random(f"{self.seed} pace")
            growth = Growth(installation, valkeys)
            self.pace, self.trends = self.load.run_steadily(growth, self.seconds, chance)
        else:
            with self.load.callers(GUESTS):
                self.chaos.run(self.seconds)
        return self._judge()

    def stop(self) -> None:
        """End all processes."""
        self.installation.stop()

    def _visit(self, number: int, connections: Connections) -> Visit:
        chance = random.Random(f"{self.seed} {number}")
        visit = Guest(self.installation, number, chance, connections).visit()
        if visit.is_broken:
            self.chaos.is_web_up.wait(5)
        return visit

    def _judge(self) -> Verdict:
        bookkeeper = Bookkeeper(self.installation)
        try:
            bookkeeper.close_the_books(timeout_s=60)
            calls = self.installation.calls(*MODELS, *EMBEDDING_MODELS)
            verdict = Verdict.of(
                self.load.visits, bookkeeper.rows(), bookkeeper.check(), calls, self.chaos.outages
            )
            violations = [*verdict.violations, *self._traces(), *grown(self.trends)]
            violations += self.pace.violations() if self.pace else []
            return replace(verdict, violations=violations)
        finally:
            bookkeeper.stop()

    def _traces(self) -> list[str]:
        """Return the places that still contain a message when no stream is stored any more."""
        with canaries.open_valkey(self.installation) as valkey:
            wait_for(
                lambda: canaries.is_forgotten(valkey),
                "all streams to be forgotten",
                self._stream_ttl_s + FORGOTTEN_LATE_S,
                1,
            )
            return canaries.found([CANARY.encode()], self.installation, valkey)


def main() -> int:
    """Run, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--at-least",
        type=int,
        help="generations, fewer are a violation; 0: any number will do (default: 5 a second)",
    )
    parser.add_argument(
        "--max-silence-s",
        type=float,
        default=MAX_SILENCE_S,
        help="a p99 of a silence above it is a violation (default: %(default)g)",
    )
    parser.add_argument(
        "--steady",
        action="store_true",
        help="no faults, at half of the capacity: memory, descriptors, connections and keys must not grow",
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chatapi-soak-"))
    soak = Soak(folder, options.seed, options.seconds, is_steady=options.steady)
    at_least = (
        round(options.seconds * GENERATIONS_PER_SECOND) if options.at_least is None else options.at_least
    )
    try:
        verdict = soak.run()
        verdict = verdict.asking_at_least(at_least).bearing_silence(options.max_silence_s)
    finally:
        soak.stop()
    arguments = f"--seconds {options.seconds:g} --seed {options.seed} --at-least {at_least}"
    arguments += " --steady" * options.steady
    print(f"python -m tests.faults.soak {arguments}\n")
    if soak.pace:
        print_steady(soak.pace, soak.trends)
    print_report(verdict, soak.chaos.faults, soak.load.visits, folder)
    if not verdict.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
