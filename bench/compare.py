"""Compares chatapi with the upstream called directly and with a pass-through written by hand; prints
markdown.

Every round visits every target in rotated order (A B C, B C A, ...). After the load the ledger is verified.
Everything that was started is stopped at the end. Exit status 1 when an answer was wrong or the books are.

    python -m bench.compare --quick
    python -m bench.compare --rounds 5 --scenarios saturate,paced --targets direct,floor,portkey,chatapi
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.children import PROJECT_FOLDER, Child, ChildError, free_port, mortal, running, wait_until_ready
from bench.command_line import run
from bench.measurement import Measurement
from bench.report import COMPARISONS, GOALS, UPSTREAM, Results, against, table
from bench.scenarios import COMPARED, SCENARIOS, Scenario
from bench.target import Target, Unavailable
from bench.targets import DATABASE_URL_VARIABLE, TARGETS

UPSTREAM_SECONDS = 2 * 3600
"""The upstream ends by itself after this long."""


def main() -> None:
    """Run the command line."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an ordinary exit, so that everything is stopped
    try:
        is_right = compare(options)
    except ChildError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted; everything that was started has been stopped")
    sys.exit(0 if is_right else 1)


def compare(options: argparse.Namespace) -> bool:
    """Run the whole comparison; return whether every answer was right and all books are."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True))
        )
        upstream, upstream_url = stack.enter_context(running_upstream(folder))
        targets = []
        for name in options.targets:
            progress(f"starting {name}")
            try:
                targets.append(stack.enter_context(TARGETS[name](upstream_url, folder)))
            except Unavailable as error:
                print(error, flush=True)
        all_results = []
        for name in options.scenarios:
            results = run_rounds(SCENARIOS[name], targets, upstream, options)
            print(table(results), flush=True)
            all_results.append(results)
        print_verdicts(all_results, options.targets)
        are_books_right = print_ledgers(targets)
    measurements = [run for results in all_results for runs in results.runs.values() for run in runs]
    return are_books_right and all(run.right and not run.problems for run in measurements)


@contextmanager
def running_upstream(folder: Path) -> Iterator[tuple[Child, str]]:
    """Yield the scripted upstream and its base URL."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "bench.upstream",
        "--port",
        str(port),
        "--seconds",
        str(UPSTREAM_SECONDS),
    ]
    with running(UPSTREAM, command, folder, os.environ) as child:
        wait_until_ready(child, port, "/v1/models")
        yield child, f"http://127.0.0.1:{port}/v1"


def run_rounds(
    scenario: Scenario, targets: list[Target], upstream: Child, options: argparse.Namespace
) -> Results:
    """Run all rounds of one scenario; the order rotates, so that no target always follows the same one."""
    results = Results(scenario, {target.name: [] for target in targets})
    for number in range(options.rounds):
        first = number % len(targets)
        for target in targets[first:] + targets[:first]:
            measurement = run_load(scenario, target, upstream, options.seconds)
            results.runs[target.name].append(measurement)
            progress(f"{scenario.name}, round {number + 1}: {target.name} {summary(measurement)}")
    return results


def run_load(scenario: Scenario, target: Target, upstream: Child, seconds: float) -> Measurement:
    """Run the load generator once, in a process of its own; raises ChildError when it or the target ends."""
    roots = {UPSTREAM: [upstream.pid]} | target.find_roots()
    groups = [f"--process={name}={','.join(map(str, pids))}" for name, pids in roots.items()]
    command = [
        sys.executable,
        "-m",
        "bench.load",
        target.base_url,
        "--key",
        target.key,
        *groups,
        *(f"--header={name}:{value}" for name, value in target.headers.items()),
        *(["--keys-file", str(target.keys_file)] if target.keys_file else []),
        *scenario.load_arguments(seconds),
    ]
    done = subprocess.run(mortal(command), cwd=PROJECT_FOLDER, capture_output=True, timeout=600, check=False)
    for child in filter(None, (upstream, target.child)):
        child.assert_alive()
    try:
        return msgspec.json.decode(done.stdout, type=Measurement)
    except msgspec.DecodeError as error:
        raise ChildError(
            f"the load generator failed:\n{done.stderr.decode(errors='replace')[-3000:]}"
        ) from error


def summary(measurement: Measurement) -> str:
    """Return one line that shows the progress."""
    problems = f", problems: {measurement.problems}" if measurement.problems else ""
    right = f"{measurement.right} of {measurement.requests} right"
    return f"{measurement.answers_per_second:.0f}/s, {right}{problems}"


def print_verdicts(all_results: list[Results], names: list[str]) -> None:
    """Print the goals of chatapi, and whether it reaches them."""
    by_scenario = {results.scenario.name: results for results in all_results}
    ours = [name for name in names if name.startswith("chatapi")]
    lines = [
        goal.verdict(by_scenario[goal.scenario], name)
        for name in ours
        for goal in GOALS
        if goal.scenario in by_scenario
    ]
    if lines:
        print("### Targets\n", *lines, "", sep="\n", flush=True)
    for title, (target, reference) in COMPARISONS.items():
        ratios = [against(results, target, reference) for results in all_results]
        if any(ratios):
            print(f"### {title}\n", *filter(None, ratios), "", sep="\n", flush=True)


def print_ledgers(targets: list[Target]) -> bool:
    """Verify the books of every target that has some; return whether all are right."""
    are_right = True
    for target in targets:
        if target.verify_ledger is None:
            continue
        differences = target.verify_ledger()
        print(
            f"Ledger of {target.name} after the load: {'NOT ' if differences else ''}clean",
            differences,
            sep="\n",
            flush=True,
        )
        are_right = are_right and not differences
    return are_right


def progress(words: str) -> None:
    """Print progress to standard error; standard output has the report alone."""
    print(words, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    targets = ["direct", "passthrough-starlette", "chatapi"]
    if os.environ.get(DATABASE_URL_VARIABLE):
        targets.append("chatapi-postgresql")
    parser = argparse.ArgumentParser(
        description="Compares chatapi with a pass-through written by hand, on this machine."
    )
    parser.add_argument("--quick", action="store_true", help="about a minute: one round of 3 s each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each run")
    parser.add_argument(
        "--scenarios", type=names_of(SCENARIOS), default=list(COMPARED), help=", ".join(SCENARIOS)
    )
    parser.add_argument("--targets", type=names_of(TARGETS), default=targets, help=", ".join(TARGETS))
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 3.0
    return options


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a type for argparse that reads `a,b` as a list of known names."""

    def names(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not one of {', '.join(known)}")
        return text.split(",")

    return names


if __name__ == "__main__":
    run(main)
