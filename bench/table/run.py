"""Runs the parts of the table: starts their targets, loads the contestants by turns, verifies the books."""

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench import processes
from bench.children import Child
from bench.compare import progress, run_load, summary
from bench.measurement import Measurement
from bench.scenarios import SCENARIOS
from bench.table.rows import OVERHEAD_S, PARTS, Part
from bench.table.services import VARIANTS, longest_turns_ms, served, used_as
from bench.target import Target, Unavailable
from bench.targets import TARGETS


@dataclass(frozen=True)
class Contestant:
    """A target in a part, with the variant in which it is used."""

    name: str
    target: str
    variant: str | None = None


@dataclass
class Fleet:
    """The running targets: each runs from its first use to the end of the last part that uses it."""

    upstream: Child
    upstream_url: str
    folder: Path
    rows_in_books: int
    running: dict[str, tuple[ExitStack, Target]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def target(self, contestant: Contestant) -> Target | None:
        """Return the running target, and start it before its first use; None if it is unavailable."""
        name = contestant.target
        if name not in self.running and name not in self.missing:
            progress(f"starting {name}")
            with ExitStack() as stack:
                try:
                    target = stack.enter_context(self.started(contestant))
                    self.running[name] = (stack.pop_all(), target)
                except Unavailable as error:
                    self.missing[name] = str(error)
                    progress(str(error))
        return self.running[name][1] if name in self.running else None

    @contextmanager
    def started(self, contestant: Contestant) -> Iterator[Target]:
        if contestant.variant is None:
            with TARGETS[contestant.target](self.upstream_url, self.folder) as target:
                yield target
            return
        database, _, service = contestant.target.partition(" ")
        with served(service, database, self.upstream_url, self.folder, self.rows_in_books) as target:
            yield target

    def stop_all_but(self, needed: set[str]) -> dict[str, str]:
        """Stop all other targets; return the differences in the books of each, by name."""
        return {name: self.stop(name) for name in list(self.running) if name not in needed}

    def stop(self, name: str) -> str:
        """Verify the books of a target and stop it; return the differences."""
        stack, target = self.running.pop(name)
        with stack:
            return target.verify_ledger() if target.verify_ledger else ""


def contestants(part: Part, databases: list[str]) -> list[Contestant]:
    """Return the contestants of a part."""
    ours = [
        Contestant(f"{database} {name}", f"{database} {VARIANTS[name].service}", name)
        for name in part.variants
        for database in databases
    ]
    return [*(Contestant(name, name) for name in part.others), *ours]


def run_part(
    part: Part, fleet: Fleet, taking: list[Contestant], plan: "Plan"
) -> dict[str, list[Measurement]]:
    """Run all rounds of a part; the order rotates, and no round begins after the time is over."""
    running = [each for each in taking if fleet.target(each)]
    runs: dict[str, list[Measurement]] = {each.name: [] for each in running}
    for number in range(plan.rounds):
        if number and time.monotonic() > plan.ends_at:
            progress(f"{part.name}: the time is over after {number} of {plan.rounds} rounds")
            break
        first = number % len(running)
        for each in running[first:] + running[:first]:
            runs[each.name].append(run_once(part, fleet, each, plan.seconds))
            progress(f"{part.name}, round {number + 1}: {each.name} {summary(runs[each.name][-1])}")
    return runs


@dataclass(frozen=True)
class Plan:
    """The databases, the number of rounds, the seconds of a run, and the time after which no round begins."""

    databases: list[str]
    rounds: int
    seconds: float
    ends_at: float

    def estimated_s(self, parts: list[Part]) -> float:
        """Return an estimate of the seconds that these parts take."""
        total = 15.0
        for part in parts:
            runs = len(contestants(part, self.databases)) * self.rounds
            total += runs * (OVERHEAD_S + (part.seconds or self.seconds)) + part.setup_s * len(self.databases)
        return total


def run_once(part: Part, fleet: Fleet, contestant: Contestant, seconds: float) -> Measurement:
    """Run the load once; of a probed service, add the figures of its threads and turns."""
    target = fleet.target(contestant)
    assert target is not None
    variant = VARIANTS[contestant.variant] if contestant.variant else None
    if variant:
        target = used_as(target, variant, fleet.folder)
    groups = processes.process_groups(target.find_roots())
    rest_pss_mb = round(sum(map(processes.pss_mb, groups.values())), 1)
    is_probed = bool(variant and variant.service == "probed")
    before, began = thread_seconds(target) if is_probed else {}, time.perf_counter()
    scenario = SCENARIOS[part.scenario]
    run = run_load(scenario, target, fleet.upstream, seconds)
    spent = {
        name: round((now - before.get(name, 0)) * 1_000 / (run.requests + scenario.warmup_requests), 4)
        for name, now in (thread_seconds(target) if is_probed else {}).items()
    }
    turns = longest_turns_ms(target, fleet.folder, began, time.perf_counter()) if is_probed else {}
    return msgspec.structs.replace(run, rest_pss_mb=rest_pss_mb, thread_cpu_ms=spent, longest_turn_ms=turns)


def thread_seconds(target: Target) -> dict[str, float]:
    """Return the CPU time of each thread of the target's web and worker processes."""
    return {
        f"{task} {thread}": seconds
        for task, pids in target.find_roots().items()
        if task in ("web", "worker")
        for pid in pids
        for thread, seconds in processes.thread_seconds(pid).items()
    }


def machine() -> str:
    """Return a description of this machine: cores, Python and kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")
    cores = sum(line.startswith("processor") for line in lines)
    return f"{cores} cores of {model}, CPython {platform.python_version()}, Linux {platform.release()}"


def parts_named(names: list[str] | None) -> list[Part]:
    """Return these parts in the order of the table, or all."""
    return [part for part in PARTS if names is None or part.name in names]
