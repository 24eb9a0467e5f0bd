"""The clients of a rolling restart."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults import soak_clients
from tests.faults.balancer import Balancer
from tests.faults.soak_clients import Guest
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
"""The pause between two visits of a caller, in which its connection is idle."""


class RollingGuest(Guest):
    """A guest whose upstreams do not fail. It uses its kept connections, even to a process that is stopping;
    a new connection goes to a ready process.
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
        """Send requests until the end of the block, and wait for the end of each visit."""
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
