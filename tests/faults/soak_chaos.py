"""The faults of a soak: processes die, freeze and stop at random moments, and are started again, as a
supervisor does it.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.faults.soak_verdict import Loss, Outages
from tests.installation import Installation

PAUSE_S = (1.0, 4.0)
"""The pause between two faults."""
SUPERVISOR_S = (0.0, 1.0)
"""The time until a dead process is started again."""
WORKERS = ("worker", "worker-2")


class Chaos:
    """The faults of one run, in the order that `chance` decides."""

    def __init__(self, installation: Installation, chance: random.Random) -> None:
        self.outages = Outages()
        self.is_web_up = threading.Event()
        self.faults: Counter[str] = Counter()
        self._installation = installation
        self._chance = chance
        self._choices: list[Callable[[], None]] = [
            self._kill_web,
            self._kill_a_worker,
            self._kill_a_worker,
            self._kill_the_reaper,
            self._kill_valkey,
            self._freeze_a_worker,
            self._freeze_valkey,
            self._stop_a_worker,
            self._stop_web,
        ]
        if installation.environment.get("DATABASE_URL", "").startswith("postgres"):
            self._choices.append(self._crash_postgres)

    def complete(self) -> None:
        """Start a second worker and a reaper, unless they are there."""
        self._installation.start_worker("worker-2")
        self._installation.start_reaper()
        self.is_web_up.set()

    def run(self, seconds: float) -> None:
        """Break something now and then for this time; in the end all processes run."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(min(self._chance.uniform(*PAUSE_S), max(0.0, ends_at - time.monotonic())))
            fault = self._chance.choice(self._choices)
            fault()
            self.faults[fault.__name__.strip("_").replace("_", " ")] += 1

    def _kill_web(self) -> None:
        began_at = time.monotonic()
        self._end_web(signal.SIGKILL)
        self.outages.web_kills.append((began_at, time.monotonic()))

    def _stop_web(self) -> None:
        began_at = time.monotonic()
        code = self._end_web(signal.SIGTERM)
        self.outages.web_stops.append((began_at, time.monotonic()))
        if code != 0:
            self.outages.bad_exits.append(f"web was to stop, and ended with {code}")

    def _end_web(self, a_signal: signal.Signals) -> int | None:
        self.is_web_up.clear()
        code = self._installation.end("web", a_signal)
        self._supervisor_notices()
        self._installation.start_web()
        self.is_web_up.set()
        return code

    def _kill_a_worker(self) -> None:
        self._end_a_worker(signal.SIGKILL)

    def _stop_a_worker(self) -> None:
        self._end_a_worker(signal.SIGTERM)

    def _end_a_worker(self, a_signal: signal.Signals) -> None:
        name = self._chance.choice(WORKERS)
        self._installation.end(name, a_signal)
        self._supervisor_notices()
        self._installation.start_worker(name)

    def _kill_the_reaper(self) -> None:
        self._installation.end("reaper")
        self._supervisor_notices()
        self._installation.start_reaper()

    def _kill_valkey(self) -> None:
        self.outages.valkey_losses.append(Loss(time.monotonic()))
        self._installation.end("valkey")
        self._supervisor_notices()
        self._installation.start_valkey()

    def _freeze_a_worker(self) -> None:
        self._freeze(self._chance.choice(WORKERS), self._chance.uniform(0.5, 3))

    def _freeze_valkey(self) -> None:
        self._freeze("valkey", self._chance.uniform(0.5, 4))

    def _freeze(self, name: str, seconds: float) -> None:
        self._installation.send(name, signal.SIGSTOP)
        time.sleep(seconds)
        self._installation.send(name, signal.SIGCONT)

    def _crash_postgres(self) -> None:
        """Kill one backend: all others end with it, and PostgreSQL recovers as after a crash."""
        import psycopg

        with psycopg.connect(self._installation.environment["DATABASE_URL"], autocommit=True) as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            pids = [pid for (pid,) in found]
        if pids:
            os.kill(self._chance.choice(sorted(pids)), signal.SIGKILL)

    def _supervisor_notices(self) -> None:
        time.sleep(self._chance.uniform(*SUPERVISOR_S))
