"""A rolling restart under load: every process is replaced in turn, and no request may fail. Exit 1 if one
does, or if the books are not what the clients got.

python -m tests.faults.rolling_restart --requests 5000
python -m tests.faults.rolling_restart --previous FOLDER    upgrade from the release in that checkout, which
                                                            has its own .venv, and go back to it

Two web processes, two workers and a reaper of one installation. The clients are the soak's, in every
protocol: they read, leave, cancel, resume, go on from a response, fetch it later. Most keep their connections
until the server closes them or says `Connection: close`, as behind a Kubernetes Service; a quarter of the
requests say so themselves; every third caller connects for each request. A new connection goes to a web
process whose `/readyz` said 200 when the balancer looked last, which it does every half second.

With `--previous`, the other release makes the installation: database, secrets, keys. Then the steps of
"Upgrading" and "Going back" (docs/operations.md) follow in their order. With DATABASE_URL all of it runs on
PostgreSQL.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults.balancer import Balancer
from tests.faults.bookkeeper import Bookkeeper, Row
from tests.faults.rolling_guests import MODELS, Guests
from tests.faults.soak_report import print_report
from tests.faults.soak_verdict import Outages, Verdict
from tests.faults.soak_visits import Heard, Visit
from tests.installation import ROOT, Installation, wait_for

EXIT_S = 60.0
METRICS_TOKEN = "metrics" * 3
PRODUCTION = {
    "CHATAPI_LOG_LEVEL": "WARNING",
    "CHATAPI_LAME_DUCK_MS": "5000",
    "CHATAPI_DRAIN_MS": "25000",
    "CHATAPI_QUEUE_TTL_MS": "60000",
    "CHATAPI_METRICS_TOKEN": METRICS_TOKEN,
}
"""What a restart needs is as in production; leases are the test profile's."""
QUEUED = re.compile(r'^chatapi_generations_in_flight\{state="queued"\} (.*)$', re.M)
STAGE_REQUESTS = 200
"""The requests that end before the next stage begins."""
INPUT_NANODOLLARS, OUTPUT_NANODOLLARS = 1_000, 2_000
"""The price of a token in the installation's catalog."""


class RollingRestart:
    """The installation and its clients; it replaces the processes."""

    def __init__(self, folder: Path, seed: int, code: Path = ROOT) -> None:
        self.installation = Installation(folder, code, **PRODUCTION)
        self.second = self.installation
        """The second web process, while there is one."""
        self.restarts: Counter[str] = Counter()
        self.stages: list[tuple[float, str]] = []
        """When each began, and its name."""
        self.violations: list[str] = []
        self._seed = seed

    def run(self, requests: int) -> tuple[list[Visit], list[Row], Verdict]:
        """Restart everything under load until this number of requests was sent; return what the books say."""
        installation = self.installation
        installation.start(MODELS)
        installation.keys["poor"] = installation.keys["live"]
        installation.start_worker("worker-2")
        installation.start_reaper()
        with installation.another_web() as self.second:
            self.balancer = Balancer()
            self.guests = Guests(installation, self.balancer, self._seed)
            urls = [installation.url, self.second.url]
            with self.balancer.watching(urls), self.guests.asking():
                self._restart_all()
                while self.guests.requests < requests:
                    self._restart_all()
        visits = self.guests.visits
        rows, verdict = self._judge(visits)
        violations = [*self.violations, *_failures(visits), *_sums(visits, rows), *verdict.violations]
        return visits, rows, replace(verdict, violations=violations)

    def _judge(self, visits: list[Visit]) -> tuple[list[Row], Verdict]:
        bookkeeper = Bookkeeper(self.installation)
        try:
            bookkeeper.close_the_books(timeout_s=60)
            rows, report = bookkeeper.rows(), bookkeeper.check()
        finally:
            bookkeeper.stop()
        self.installation.verify()
        calls = self.installation.calls(*MODELS)
        return rows, Verdict.of(visits, rows, report, calls, Outages())

    def _restart_all(self) -> None:
        """Restart each process once; the two of a kind never directly one after the other."""
        self._begin("restarts")
        self._restart_web("web 1", self.installation)
        self._restart("worker", self.installation.start_worker)
        self._restart("reaper", self.installation.start_reaper)
        self._restart_web("web 2", self.second)
        self._restart("worker-2", lambda: self.installation.start_worker("worker-2"))

    def _begin(self, stage: str) -> None:
        self.stages.append((time.monotonic(), stage))

    def _restart_web(self, name: str, installation: Installation) -> None:
        said_before = self.balancer.unready_answers[installation.url]
        self._note(name, installation.end("web", signal.SIGTERM, EXIT_S))
        if self.balancer.unready_answers[installation.url] == said_before:
            self.violations.append(f"{name} was to stop, and its /readyz said 503 at no time")
        installation.start_web()
        wait_for(lambda: self.balancer.is_ready(installation.url), f"the balancer to see {name}")

    def _restart(self, name: str, start: Callable[[], None]) -> None:
        self._note(name, self.installation.end(name, signal.SIGTERM, EXIT_S))
        start()
        wait_for(lambda: self.installation.is_ready_to_stop(name), f"{name} to start")

    def _note(self, name: str, exit_code: int | None) -> None:
        self.restarts[name] += 1
        if exit_code != 0:
            self.violations.append(f"{name} was to stop, and ended with {exit_code}")


class RollingUpdate(RollingRestart):
    """An upgrade from the previous release to this one, and the way back, as docs/operations.md has them."""

    def _restart_all(self) -> None:
        previous = self.installation.code
        self._serve_for_a_while("all processes old")
        self._upgrade()
        self._serve_for_a_while("all processes new")
        self._go_back_to(previous)

    def _upgrade(self) -> None:
        self._run_from_now_on(ROOT)
        self._begin("migrate")
        self.installation.output_of("migrate")
        self._serve_for_a_while("old processes on new tables")
        self._begin("workers and reaper become new")
        self._restart_workers()
        self._serve_for_a_while("old web, new workers")
        self._begin("web becomes new")
        self._restart_webs()

    def _go_back_to(self, previous: Path) -> None:
        self._run_from_now_on(previous)
        self._begin("web becomes old")
        self._restart_webs()
        self._serve_for_a_while("old web, new workers, on the way back")
        wait_for(self._is_queue_empty, "an empty queue", timeout_s=60, pause_s=0.3)
        self._begin("workers and reaper become old")
        self._restart_workers()
        self._serve_for_a_while("all processes old, on new tables")

    def _run_from_now_on(self, code: Path) -> None:
        self.installation.code = self.second.code = code

    def _restart_workers(self) -> None:
        self._restart("worker", self.installation.start_worker)
        self._restart("worker-2", lambda: self.installation.start_worker("worker-2"))
        self._restart("reaper", self.installation.start_reaper)

    def _restart_webs(self) -> None:
        self._restart_web("web 1", self.installation)
        self._restart_web("web 2", self.second)

    def _serve_for_a_while(self, stage: str) -> None:
        self._begin(stage)
        until = self.guests.requests + STAGE_REQUESTS
        wait_for(lambda: self.guests.requests >= until, f"{STAGE_REQUESTS} requests", 120, pause_s=0.1)

    def _is_queue_empty(self) -> bool:
        status, text = self.installation.get("/metrics", METRICS_TOKEN)
        found = QUEUED.search(text) if status == 200 else None
        return found is not None and float(found[1]) == 0


def _failures(visits: Sequence[Visit]) -> Iterator[str]:
    """Yield the requests that failed; nothing is away during a restart, so none may fail."""
    for visit in visits:
        yield from (f"{visit}: {heard.error_codes}" for heard in visit.heard if has_failed(heard))


def has_failed(heard: Heard) -> bool:
    """Return whether the request got an error, or no whole answer although its client waited for it."""
    is_refused = heard.status not in {200, 202} and not heard.has_left
    return is_refused or heard.is_broken or bool(heard.error_codes)


def _sums(visits: Sequence[Visit], rows: Sequence[Row]) -> Iterator[str]:
    """Check the ledger's sum for the generations whose usage a client got."""
    charged, got = sums(visits, rows)
    if charged != got:
        yield f"the ledger has {charged} nanodollars for what clients got for {got}"


def sums(visits: Sequence[Visit], rows: Sequence[Row]) -> tuple[int, int]:
    """Return what the ledger has for the generations whose usage a client got, and what that usage costs."""
    usage = {each.generation_id[-32:]: each.usage for visit in visits for each in visit.heard if each.usage}
    charged = sum(row.amount_nanodollars for row in rows if row.id in usage)
    got = sum(
        each["prompt_tokens"] * INPUT_NANODOLLARS + each["completion_tokens"] * OUTPUT_NANODOLLARS
        for each in usage.values()
    )
    return charged, got


def main() -> int:
    """Run, print the counts, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests.faults.rolling_restart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--requests", type=int, default=5000, help="the least number of them (default: %(default)d)"
    )
    parser.add_argument("--previous", type=Path, metavar="FOLDER", help="a checkout of the release before")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.previous and not (options.previous / ".venv/bin/python").exists():
        sys.exit(f"--previous: {options.previous} has no .venv/bin/python; run `make .venv/.base` there.")
    folder = Path(tempfile.mkdtemp(prefix="chatapi-restart-"))
    if options.previous:
        restart: RollingRestart = RollingUpdate(folder, options.seed, options.previous.resolve())
    else:
        restart = RollingRestart(folder, options.seed)
    try:
        visits, rows, verdict = restart.run(options.requests)
    finally:
        restart.installation.stop()
    print_report(verdict, restart.restarts, visits, folder)
    _print_sums(restart, visits, rows)
    if not verdict.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if verdict.violations else 0


def _print_sums(restart: RollingRestart, visits: Sequence[Visit], rows: Sequence[Row]) -> None:
    heard = [each for visit in visits for each in visit.heard]
    failed = sum(map(has_failed, heard))
    print(f"\n{len(heard)} requests, {failed} failed; {restart.restarts.total()} restarts")
    beginnings = [began_at for began_at, _ in restart.stages]
    stages = Counter(restart.stages[max(0, bisect(beginnings, each.began_at) - 1)][1] for each in heard)
    for stage in dict.fromkeys(name for _, name in restart.stages):
        print(f"  {stage:<40}{stages[stage]:>6} requests")
    charged, got = sums(visits, rows)
    print(
        f"the ledger has {sum(row.amount_nanodollars for row in rows):,} nanodollars, {charged:,} of them for"
    )
    print(f"generations whose usage a client got; that usage costs {got:,}")


if __name__ == "__main__":
    sys.exit(main())
