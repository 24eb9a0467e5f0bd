"""Simulates machines with web processes and workers: bursts of starts, waits for a worker, a machine's loss.

    python -m bench.simulation --streams 200 --ramp-seconds 1 --cores 1.5      as the scenario `paced`
    python -m bench.simulation --machines 4 --streams 8000 --ramp-seconds 60 --seconds 120 --lose

The costs are those that `bench.compare` has measured (docs/scaling.md). A process does one thing at a time,
and the tokens of its streams slow its starts and ends down. The database and Valkey take no time.
"""

import argparse
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

WEB_START_S, CLAIM_S, END_S = 0.0007, 0.0006, 0.0003
"""CPU seconds of a request in a web process, and of its claim and its settlement in a worker."""
WEB_TOKEN_S, WORKER_TOKEN_S = 31e-6, 44e-6
"""CPU seconds of a token that comes alone."""
MOST_FOR_TOKENS = 0.5  # of a process: tokens of a late one come in batches, which cost less
BASE_S = 0.006  # the wait for a first token without load: commits, hand-overs, a tick of the publisher
LEASE_S, ABSENCE_S, RETRY_S = 6.0, 3.0, (0.5, 1.5)
"""The times after which streams of a dead worker end, runs for a dead web process end, and clients retry."""
SETTLING_S = 30.0  # from the last start to a machine's loss


@dataclass(eq=False)
class Process:
    """A web process or a worker: its queue of work, done one piece at a time, and its streams."""

    machine: int
    token_s: float
    is_alive: bool = True
    is_busy: bool = False
    work: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    streams: "set[Stream]" = field(default_factory=set)


@dataclass(eq=False)
class Stream:
    """One attempt of a client."""

    asked_at: float
    web: Process
    enqueued_at: float = 0.0
    worker: Process | None = None
    is_running: bool = False
    is_over: bool = False


class Simulation:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.now = options, 0.0
        self._cores: float = options.cores
        self._tokens_per_second: float = options.tokens_per_second
        self.first_token_s: list[float] = []
        self.queued_s: list[float] = []
        self.running = self.ended_early = self._goal = 0
        self.recovered_s: float | None = None
        machines = range(options.machines)
        self.webs = [Process(each, WEB_TOKEN_S) for each in machines for _ in range(options.web)]
        self.workers = [Process(each, WORKER_TOKEN_S) for each in machines for _ in range(options.workers)]
        self._chance = random.Random(options.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._queue: deque[Stream] = deque()

    def run(self) -> None:
        """Start all streams, lose a machine with the option `lose`, and go on until no event is left."""
        for _ in range(self.options.streams):
            self._after(self._chance.uniform(0, self.options.ramp_seconds), self._start)
        if self.options.lose:
            self._after(self.options.ramp_seconds + SETTLING_S, self._lose)
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _start(self) -> None:
        stream = Stream(self.now, self._chance.choice([each for each in self.webs if each.is_alive]))
        stream.web.streams.add(stream)
        self._work(stream.web, WEB_START_S, partial(self._enqueue, stream))

    def _enqueue(self, stream: Stream) -> None:
        stream.enqueued_at = self.now
        self._queue.append(stream)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give queued streams to workers with free slots, first to the one with the least to do."""
        alive = [each for each in self.workers if each.is_alive]
        while self._queue:
            free = [each for each in alive if len(each.streams) < self.options.slots]
            if not free:
                return
            worker = min(free, key=lambda each: (len(each.work), len(each.streams)))
            stream = self._queue.popleft()
            self.queued_s.append(self.now - stream.enqueued_at)
            stream.worker = worker
            worker.streams.add(stream)
            self._work(worker, CLAIM_S, partial(self._begin, stream))

    def _begin(self, stream: Stream) -> None:
        if stream.is_over:
            return
        stream.is_running = True
        self.running += 1
        self.first_token_s.append(self.now + BASE_S - stream.asked_at)
        if self._goal and self.running >= self._goal and self.recovered_s is None:
            self.recovered_s = self.now - self.options.ramp_seconds - SETTLING_S
        self._after(self.options.seconds, partial(self._finish, stream))

    def _finish(self, stream: Stream) -> None:
        if not stream.is_over and stream.worker is not None:
            self._end(stream)
            self._work(stream.worker, END_S, partial(self._free, stream))

    def _end(self, stream: Stream) -> None:
        self.running -= stream.is_running
        stream.is_running, stream.is_over = False, True
        stream.web.streams.discard(stream)

    def _free(self, stream: Stream) -> None:
        if stream.worker is not None:
            stream.worker.streams.discard(stream)
            self._dispatch()

    def _lose(self) -> None:
        """Kill the processes of machine 0; the clients of its streams come back."""
        self._goal = round(self.running * 0.99)
        for process in (each for each in [*self.webs, *self.workers] if each.machine == 0):
            process.is_alive = False
            process.work.clear()
            for stream in list(process.streams):
                self.running -= stream.is_running
                stream.is_running = False
                self._after(0.0 if process in self.webs else LEASE_S, partial(self._break, stream))

    def _break(self, stream: Stream) -> None:
        if stream.is_over:
            return
        self.ended_early += 1
        self._end(stream)
        self._after(ABSENCE_S, partial(self._free, stream))
        self._after(self._chance.uniform(*RETRY_S), self._start)

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def _work(self, process: Process, cpu_s: float, then: Callable[[], None]) -> None:
        if process.is_alive:
            process.work.append((cpu_s, then))
            if not process.is_busy:
                self._go_on(process)

    def _go_on(self, process: Process, done: Callable[[], None] | None = None) -> None:
        if not process.is_alive:
            return
        # Set before `done`, which may start work of other processes: their `_speed` depends on it.
        process.is_busy = has_more = bool(process.work)
        if done is not None:
            done()
        if has_more:
            cpu_s, then = process.work.popleft()
            self._after(cpu_s / self._speed(process), partial(self._go_on, process, then))

    def _speed(self, process: Process) -> float:
        """Return the part of a core that this process has now for starts and ends of streams."""
        beside = [each for each in [*self.webs, *self.workers] if each.machine == process.machine]
        wanted = sum(1.0 if each.is_busy else self._for_tokens(each) for each in beside)
        return min(1.0, self._cores / max(wanted, 1e-9)) * (1 - self._for_tokens(process))

    def _for_tokens(self, process: Process) -> float:
        return min(MOST_FOR_TOKENS, len(process.streams) * self._tokens_per_second * process.token_s)


def main() -> None:
    """Simulate, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    numbers = {"machines": 1, "web": 1, "workers": 1, "slots": 4000, "streams": 1000, "seed": 1}
    times = {"cores": 4.0, "tokens-per-second": 50.0, "seconds": 60.0, "ramp-seconds": 1.0}
    for name, default in (numbers | times).items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--lose", action="store_true", help="lose a machine when all streams run")
    options = parser.parse_args()
    if min(options.machines, options.web, options.workers, options.slots, options.streams) < 1:
        parser.error("--machines, --web, --workers, --slots and --streams must be at least 1")
    if options.lose and options.machines < 2:
        parser.error("--lose needs a machine that stays: use --machines 2 or more")
    simulation = Simulation(options)
    simulation.run()
    for name, seconds in (("first token", simulation.first_token_s), ("queue", simulation.queued_s)):
        ordered = sorted(seconds)
        p50, p95, p99 = (ordered[len(ordered) * percent // 100] * 1e3 for percent in (50, 95, 99))
        print(f"{name} ms: p50 {p50:.0f}, p95 {p95:.0f}, p99 {p99:.0f}, most {ordered[-1] * 1e3:.0f}")
    if options.lose:
        print(f"ended early: {simulation.ended_early}; all again after s: {simulation.recovered_s}")


if __name__ == "__main__":
    main()
