"""A rolling restart under load: every process is replaced in turn, and no request may fail. Exit 1 if one
does.

python -m tests.faults.rolling_restart --requests 5000

Two web processes, two workers and a reaper of one installation. Three kinds of clients ask for streams and
whole answers: ones that keep their connection until the server closes it or says `Connection: close`, as
behind a Kubernetes Service; ones that send `Connection: close`; and ones that open a connection for each
request. A new connection goes to a web process whose `/readyz` said 200 when the balancer looked last, which
it does every half second. With DATABASE_URL it runs on PostgreSQL.
"""

import argparse
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.chatapi.http_client import Client, Exchange
from tests.faults.soak_connections import Connections, KeepingClient
from tests.installation import Installation, wait_for

MODELS: dict[str, dict[str, Any]] = {
    "five": {},
    "half-a-second": {"tokens": 25, "rate": 50},
    "two-seconds": {"tokens": 100, "rate": 50},
}
MODEL_WEIGHTS = [70, 22, 8]
KINDS = ("keeps its connection", "sends Connection: close", "connects each time")
CLIENTS_OF_A_KIND = 8
PAUSE_S = (0.0, 0.3)
"""Between two requests of a client, in which its connection is idle."""
LOOK_S = 0.5
"""How often the balancer looks at `/readyz`."""
EXIT_S = 60.0
PATIENCE_S = 60.0
PRODUCTION = {
    "CHATAPI_LOG_LEVEL": "WARNING",
    "CHATAPI_LAME_DUCK_MS": "5000",
    "CHATAPI_DRAIN_MS": "25000",
    "CHATAPI_QUEUE_TTL_MS": "60000",
}
"""What a restart needs is as in production; leases are the test profile's."""


class Balancer:
    """Which web processes take new connections, as `/readyz` says."""

    def __init__(self, urls: list[str]) -> None:
        self.unready_answers: Counter[str] = Counter()
        """How often each web process itself said 503."""
        self._ready = dict.fromkeys(urls, True)
        self._turns = itertools.count()
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the processes until the end of the block."""
        self._watcher.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._watcher.join()

    def choose(self) -> str:
        """Return the URL of the next ready process; waits until there is one."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not (ready := [url for url, is_ready in self._ready.items() if is_ready]):
            if time.monotonic() > give_up_at:
                raise TimeoutError("no web process is ready")
            time.sleep(0.05)
        return ready[next(self._turns) % len(ready)]

    def is_ready(self, url: str) -> bool:
        """Return the result of the last check."""
        return self._ready[url]

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for url in self._ready:
                status = _status(url)
                self._ready[url] = status == 200
                self.unready_answers[url] += status == 503


@dataclass
class Tally:
    """What became of the requests, by kind of client."""

    answered: "Counter[str]" = field(default_factory=Counter)
    failed: "Counter[str]" = field(default_factory=Counter)
    """By kind and reason."""


class Caller:
    """One client of one kind: asks, pauses, and asks again while there are requests left."""

    def __init__(self, kind: str, key: str, balancer: Balancer, chance: random.Random, tally: Tally) -> None:
        self._kind, self._key, self._balancer, self._chance, self._tally = kind, key, balancer, chance, tally
        self._connections = Connections()
        self._kept_url: str | None = None
        """The web process to which the connection leads that is kept."""

    def run(self, numbers: Iterator[int]) -> None:
        """Send requests until the numbers are used up."""
        for _ in numbers:
            failure = self._ask()
            if failure:
                self._tally.failed[f"{self._kind}: {failure}"] += 1
            else:
                self._tally.answered[self._kind] += 1
            time.sleep(self._chance.uniform(*PAUSE_S))
        self._connections.close()

    def _ask(self) -> str:
        """Send one request; return the reason of its failure, if it failed."""
        (model,) = self._chance.choices(list(MODELS), MODEL_WEIGHTS)
        is_streamed = self._chance.random() < 0.6
        url = self._url()
        try:
            with self._client(url).asking(model, stream=is_streamed) as exchange:
                return _stream_failure(exchange) if is_streamed else _whole_failure(exchange)
        except (OSError, HTTPException, AssertionError, ValueError) as error:
            return f"{type(error).__name__} {str(error)[:80]}".strip()

    def _url(self) -> str:
        """Return the URL of the kept connection, or the one that the balancer chooses."""
        if self._kept_url is None or not self._connections.has_quiet(self._kept_url):
            self._kept_url = self._balancer.choose()
        return self._kept_url

    def _client(self, url: str) -> Client:
        if self._kind == "connects each time":
            return Client(url, self._key, PATIENCE_S)
        return KeepingClient(
            url, self._key, PATIENCE_S, self._connections, closes=self._kind != "keeps its connection"
        )


class RollingRestart:
    """The installation, its clients, and what replaces its processes."""

    def __init__(self, folder: Path, requests: int, seed: int) -> None:
        self.installation = Installation(folder, **PRODUCTION)
        self.tally = Tally()
        self.restarts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._numbers = iter(range(requests))  # all threads take from it: one C call each
        self._seed = seed

    def run(self) -> None:
        """Send requests until the numbers are used up."""
        installation = self.installation
        installation.start(MODELS)
        installation.start_worker("worker-2")
        installation.start_reaper()
        with installation.another_web() as second:
            balancer = Balancer([installation.url, second.url])
            with balancer.watching():
                callers = self._callers(balancer)
                while any(caller.is_alive() for caller in callers):
                    self._restart_all(second, balancer)
                for caller in callers:
                    caller.join()
        installation.verify()
        self.violations += [f"{count} x {failure}" for failure, count in self.tally.failed.most_common()]

    def _callers(self, balancer: Balancer) -> list[threading.Thread]:
        threads = []
        for number, kind in enumerate(KINDS * CLIENTS_OF_A_KIND):
            chance = random.Random(f"{self._seed} {number}")
            caller = Caller(kind, self.installation.keys["live"], balancer, chance, self.tally)
            threads.append(threading.Thread(target=caller.run, args=(self._numbers,), daemon=True))
            threads[-1].start()
        return threads

    def _restart_all(self, second: Installation, balancer: Balancer) -> None:
        """Restart each process once; the two of a kind never directly one after the other."""
        self._restart_web("web 1", self.installation, balancer)
        self._restart("worker", self.installation.start_worker)
        self._restart("reaper", self.installation.start_reaper)
        self._restart_web("web 2", second, balancer)
        self._restart("worker-2", lambda: self.installation.start_worker("worker-2"))

    def _restart_web(self, name: str, installation: Installation, balancer: Balancer) -> None:
        said_before = balancer.unready_answers[installation.url]
        self._note(name, installation.end("web", signal.SIGTERM, EXIT_S))
        if balancer.unready_answers[installation.url] == said_before:
            self.violations.append(f"{name} was to stop, and its /readyz said 503 at no time")
        installation.start_web()
        wait_for(lambda: balancer.is_ready(installation.url), f"the balancer to see {name}")

    def _restart(self, name: str, start: Callable[[], None]) -> None:
        self._note(name, self.installation.end(name, signal.SIGTERM, EXIT_S))
        start()
        wait_for(lambda: self.installation.is_ready_to_stop(name), f"{name} to start")

    def _note(self, name: str, exit_code: int | None) -> None:
        self.restarts[name] += 1
        if exit_code != 0:
            self.violations.append(f"{name} was to stop, and ended with {exit_code}")


def _status(url: str) -> int:
    """Return the status of `/readyz`; 0 if no process answers."""
    try:
        return Client(url, "", LOOK_S * 4).send("GET", "/readyz").status
    except (OSError, HTTPException):
        return 0


def _stream_failure(exchange: Exchange) -> str:
    """Return what is wrong with a stream; empty if it is right."""
    if exchange.response.status != 200:
        return _refusal(exchange)
    finish, usage = None, None
    for chunk in exchange.chunks():
        if "error" in chunk:
            return f"error frame {chunk['error'].get('code')}"
        finish = next(
            (choice["finish_reason"] for choice in chunk["choices"] if choice["finish_reason"]), finish
        )
        usage = chunk.get("usage") or usage
    return "" if finish and usage else "the stream ends early"


def _whole_failure(exchange: Exchange) -> str:
    """Return what is wrong with a whole answer; empty if it is right."""
    if exchange.response.status != 200:
        return _refusal(exchange)
    document = exchange.read().json
    return "" if document["choices"][0]["finish_reason"] and document["usage"] else "the answer is not whole"


def _refusal(exchange: Exchange) -> str:
    body = exchange.response.read()
    try:
        return f"{exchange.response.status} {json.loads(body)['error']['code']}"
    except (ValueError, LookupError, TypeError):
        return f"{exchange.response.status} {body[:40]!r}"


def main() -> int:
    """Run, print what was counted, and answer the exit code."""
    parser = argparse.ArgumentParser(prog="tests.faults.rolling_restart", description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chatapi-restart-"))
    restart = RollingRestart(folder, options.requests, options.seed)
    try:
        restart.run()
    finally:
        restart.installation.stop()
    failed = restart.tally.failed.total()
    answered, restarts = restart.tally.answered.total(), restart.restarts.total()
    print(f"{answered} requests answered, {failed} failed; {restarts} restarts")
    for title, counts in {"answered": restart.tally.answered, "restarts": restart.restarts}.items():
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    for violation in restart.violations:
        print(f"VIOLATION  {violation}")
    print("the logs stay in " + str(folder) if restart.violations else "all is well")
    if not restart.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if restart.violations else 0


if __name__ == "__main__":
    sys.exit(main())
