"""The load of a soak: a constant number of clients or, in a steady soak, half of the service's capacity."""

import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults.soak_connections import Connections, NoConnections
from tests.faults.soak_growth import Growth, Trends
from tests.faults.soak_visits import Visit

FEWEST, MOST = 24, 384
"""The clients at once while the capacity is measured."""
PART = 0.5
"""The part of the capacity at which a steady run sends requests."""
KEEPING = 48
"""The callers that keep their connections in a steady run; clients beyond them close theirs."""
GAIN = 1.1
"""The service is at its capacity when twice as many clients are served less than this factor more."""
LOOK_S, MEASURE_S = (3.0, 5.0), (10.0, 20.0)
"""Until it counts, and how long it does: for each number of clients, and for the one that got most."""
PATIENT = {
    "CHATAPI_LEASE_MS": "6000",
    "CHATAPI_HEARTBEAT_MS": "2000",
    "CHATAPI_REAPER_MS": "1000",
    "CHATAPI_QUEUE_TTL_MS": "60000",
}
"""The product's defaults: at its capacity, a machine is too late for the short leases of the other tests."""
OWN_ERRORS = {
    "internal_error",
    "overloaded",
    "queue_timeout",
    "request_lost",
    "service_unavailable",
    "stream_unavailable",
    "worker_lost",
}
LATE_S = 1.0
LATE_PART = 0.01
"""The part of the visits that may begin later than `LATE_S` after their time."""


class Capacity(NamedTuple):
    """The most that the service did in a second without an error of its own."""

    visits_per_second: float
    clients: int
    busy_part: float
    """The part of all processors' time that was not idle."""

    def __str__(self) -> str:
        return (
            f"capacity: {self.visits_per_second:.1f} visits a second, {self.clients} clients at once, "
            f"processors {self.busy_part:.0%} busy"
        )


class Pace(NamedTuple):
    """The course of a load whose clients do not wait for each other."""

    capacity: Capacity
    visits_per_second: float
    visits: int
    late: int
    """The visits that began more than `LATE_S` after their time."""
    busy_part: float
    errors: "Counter[str]"
    """The service's own errors, which no client may get while nothing is broken."""

    def __str__(self) -> str:
        return (
            f"{self.capacity}\n"
            f"load: {self.visits_per_second:.1f} visits a second, {self.visits} in all, {self.late} late, "
            f"processors {self.busy_part:.0%} busy"
        )

    def violations(self) -> Iterator[str]:
        """Yield the reasons why the load was not the intended one."""
        if self.late > self.visits * LATE_PART:
            yield f"{self.late} of {self.visits} visits began more than {LATE_S:g} s late: not the load meant"
        yield from (
            f"{count} clients got {code}, and nothing was broken" for code, count in self.errors.items()
        )


class Load:
    """The clients of a soak; `visit` does the visit of a number, over its caller's connections."""

    def __init__(self, visit: Callable[[int, Connections], Visit]) -> None:
        self.visits: list[Visit] = []
        self._visit = visit
        self._numbers = itertools.count()

    @contextmanager
    def callers(self, count: int) -> Iterator[Callable[[int], None]]:
        """Let this number of callers do one visit after the other until the end of the block. The function
        that it yields adds callers.
        """
        is_over = threading.Event()
        threads: list[threading.Thread] = []

        def add(more: int) -> None:
            for _ in range(more):
                threads.append(threading.Thread(target=self._call, args=(is_over,), daemon=True))
                threads[-1].start()

        add(count)
        try:
            yield add
        finally:
            is_over.set()
            for thread in threads:
                thread.join()

    def capacity(self) -> Capacity:
        """Measure the capacity, with the number of clients that is served most."""
        clients = self._clients_that_get_most()
        with self.callers(clients):
            return self._measure(clients, *MEASURE_S)

    def _clients_that_get_most(self) -> int:
        """Double the number of clients until that gains less than a tenth; return the best number."""
        best, clients = Capacity(0.0, 0, 0.0), FEWEST
        with self.callers(clients) as add:
            while True:
                found = self._measure(clients, *LOOK_S)
                if found.visits_per_second < best.visits_per_second * GAIN:
                    return best.clients
                best = found
                if clients >= MOST:
                    return clients
                add(clients)
                clients *= 2

    def _measure(self, clients: int, settle_s: float, measure_s: float) -> Capacity:
        time.sleep(settle_s)
        first, clock = len(self.visits), _Clock()
        time.sleep(measure_s)
        served = sum(not OWN_ERRORS & {*_error_codes(visit)} for visit in self.visits[first:])
        return Capacity(served / clock.seconds, clients, clock.busy_part)

    def run_steadily(self, growth: Growth, seconds: float, chance: random.Random) -> tuple[Pace, Trends]:
        """Run at half of the capacity for this time; return the pace and the trends of all figures."""
        capacity = self.capacity()
        growth.watch()
        return self.keep_pace(capacity, seconds, chance), growth.stop()

    def keep_pace(self, capacity: Capacity, seconds: float, chance: random.Random) -> Pace:
        """Begin visits at half of this rate, at random moments, however long those before them take."""
        clock, visits_per_second = _Clock(), capacity.visits_per_second * PART
        # Used in turn, so that all of them soon have opened their connections: after that, the service's
        # descriptors must not grow.
        idle = deque(Connections() for _ in range(KEEPING))
        late: list[float] = []

        def visit(due_at: float) -> None:
            if time.monotonic() > due_at + LATE_S:
                late.append(due_at)
            try:
                connections = idle.popleft()
            except IndexError:
                connections = NoConnections()
            self.visits.append(self._visit(next(self._numbers), connections))
            if not isinstance(connections, NoConnections):
                idle.append(connections)

        first, due_at = len(self.visits), time.monotonic()
        ends_at = due_at + seconds
        begun = []
        with ThreadPoolExecutor(MOST) as pool:
            while (due_at := due_at + chance.expovariate(visits_per_second)) < ends_at:
                time.sleep(max(0.0, due_at - time.monotonic()))
                begun.append(pool.submit(visit, due_at))
            for each in begun:
                each.result()
        for connections in idle:
            connections.close()
        codes = (code for each in self.visits[first:] for code in _error_codes(each))
        errors = Counter(code for code in codes if code in OWN_ERRORS)
        return Pace(capacity, visits_per_second, len(begun), len(late), clock.busy_part, errors)

    def _call(self, is_over: threading.Event) -> None:
        connections = Connections()
        while not is_over.is_set():
            self.visits.append(self._visit(next(self._numbers), connections))
        connections.close()


class _Clock:
    """Measures time, and the load of the machine's processors, since it was made."""

    def __init__(self) -> None:
        self._began_at, self._ticks = time.monotonic(), _ticks()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at

    @property
    def busy_part(self) -> float:
        idle, all_ticks = (now - then for now, then in zip(_ticks(), self._ticks, strict=True))
        return 1 - idle / max(1, all_ticks)


def _error_codes(visit: Visit) -> Iterator[str]:
    return (code for heard in visit.heard for code in heard.error_codes)


def _ticks() -> tuple[int, int]:
    """Return the idle time of all processors, and all of their time."""
    user, nice, system, idle, waiting, *interrupts = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return idle + waiting, user + nice + system + idle + waiting + sum(interrupts)
