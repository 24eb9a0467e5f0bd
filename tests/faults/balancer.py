"""A balancer that watches `/readyz` of each web process, as nginx, Caddy and Kubernetes do."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException

from tests.chatapi.http_client import Client

LOOK_S = 0.5
"""The pause between two looks at a process."""
ANSWER_S = 2.0
"""A process that has not answered within this time is not ready."""
PATIENCE_S = 40


class Balancer:
    """Chooses among the web processes whose `/readyz` said 200 at the last look."""

    def __init__(self, look_s: float = LOOK_S) -> None:
        self.unready_answers: Counter[str] = Counter()
        """How often each web process itself said 503."""
        self.chosen: Counter[str] = Counter()
        """How often each was chosen."""
        self._look_s = look_s
        self._ready: dict[str, bool] = {}
        self._turns = itertools.count()
        self._is_over = threading.Event()
        self._watchers: list[threading.Thread] = []

    @contextmanager
    def watching(self, urls: Iterable[str]) -> Iterator[None]:
        """Watch these processes until the end of the block."""
        for url in urls:
            self.add(url)
        try:
            yield
        finally:
            self.stop()

    def add(self, url: str) -> None:
        """Watch one more process; it is chosen once it is ready."""
        self._ready[url] = False
        watcher = threading.Thread(target=self._watch, args=(url,), daemon=True)
        self._watchers.append(watcher)
        watcher.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_over.set()
        for watcher in self._watchers:
            watcher.join()

    def choose(self) -> str:
        """Return the URL of the next ready process; waits until there is one."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not (ready := [url for url in list(self._ready) if self._ready[url]]):
            if time.monotonic() > give_up_at:
                raise TimeoutError("no web process is ready")
            time.sleep(0.05)
        url = ready[next(self._turns) % len(ready)]
        self.chosen[url] += 1
        return url

    def is_ready(self, url: str) -> bool:
        """Return the result of the last look."""
        return self._ready[url]

    def _watch(self, url: str) -> None:
        while True:
            status = _status(url)
            self._ready[url] = status == 200
            self.unready_answers[url] += status == 503
            if self._is_over.wait(self._look_s):
                return


def _status(url: str) -> int:
    """Return the status of `/readyz`; 0 if no process answers."""
    try:
        return Client(url, "", ANSWER_S).send("GET", "/readyz").status
    except (OSError, HTTPException):
        return 0
