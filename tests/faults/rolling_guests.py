"""The clients of a rolling restart, and the balancer that chooses their web process."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from tests.chatapi.http_client import Client
from tests.faults import soak_clients
from tests.faults.soak_clients import PATIENCE_S, Guest
from tests.faults.soak_connections import BalancedClient, Connections, NoConnections
from tests.faults.soak_visits import Visit
from tests.installation import Installation

TROUBLED = {"refuses", "resets", "closes", "stalls", "talks-garbage", "refuses-to-embed"}
MODELS: dict[str, dict[str, Any]] = {
    name: script
    for name, script in (soak_clients.MODELS | soak_clients.EMBEDDING_MODELS).items()
    if name not in TROUBLED
}
GUESTS = 24
PAUSE_S = (0.0, 0.3)
"""Between two visits of a caller, in which its connection is idle."""
LOOK_S = 0.5
"""How often the balancer looks at `/readyz`."""


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


def _status(url: str) -> int:
    """Return the status of `/readyz`; 0 if no process answers."""
    try:
        return Client(url, "", LOOK_S * 4).send("GET", "/readyz").status
    except (OSError, HTTPException):
        return 0


class RollingGuest(Guest):
    """A guest whose upstreams are well. It uses a connection that it keeps, also one to a process that is to
    stop; a new one goes to a ready process.
    """

    def __init__(
        self,
        installation: Installation,
        number: int,
        chance: random.Random,
        connections: Connections,
        balancer: Balancer,
    ) -> None:
        super().__init__(installation, number, chance, connections)
        self._client = BalancedClient(lambda: connections.quiet_url() or balancer.choose(), self._client)
        if self._result.model in TROUBLED:
            self._result.model = "embeds" if self._result.protocol == "embeddings" else "five"


class Guests:
    """The callers, each in a thread, and their visits. Every third one keeps no connection."""

    def __init__(self, installation: Installation, balancer: Balancer, seed: int) -> None:
        self.visits: list[Visit] = []
        self._installation, self._balancer, self._seed = installation, balancer, seed
        self._numbers = itertools.count()
        self._is_over = threading.Event()

    @property
    def requests(self) -> int:
        """Return the number of requests of all visits that are over."""
        return sum(len(visit.heard) for visit in self.visits)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask until the end of the block, and to the end of each visit."""
        threads = [
            threading.Thread(target=self._call, args=(Connections() if number % 3 else NoConnections(),))
            for number in range(GUESTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def _call(self, connections: Connections) -> None:
        while not self._is_over.is_set():
            number = next(self._numbers)
            chance = random.Random(f"{self._seed} {number}")
            guest = RollingGuest(self._installation, number, chance, connections, self._balancer)
            self.visits.append(guest.visit())
            time.sleep(chance.uniform(*PAUSE_S))
        connections.close()
