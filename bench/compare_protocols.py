"""Compares what a stream costs in each protocol: one chatapi, interleaved runs, ratios to chat completions.

python -m bench.compare_protocols --rounds 9 --seconds 3
"""

import argparse
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.command_line import run
from bench.compare import progress, run_load, running_upstream, summary
from bench.measurement import Measurement
from bench.protocols import PROTOCOLS
from bench.report import cpu_ms_per_request
from bench.scenarios import SCENARIOS
from bench.targets import TARGETS


def main() -> None:
    """Run the command line; exit status 1 if an answer or the books were wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True))
        )
        upstream, upstream_url = stack.enter_context(running_upstream(folder))
        target = stack.enter_context(TARGETS["chatapi"](upstream_url, folder))
        target = replace(target, base_url=target.base_url.replace("/opentoken", "/openai"))
        runs: dict[str, list[Measurement]] = {name: [] for name in PROTOCOLS}
        names = list(PROTOCOLS)
        for number in range(options.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                scenario = replace(SCENARIOS["saturate"], protocol=name)
                runs[name].append(run_load(scenario, target, upstream, options.seconds))
                progress(f"round {number + 1}: {name} {summary(runs[name][-1])}")
        assert target.verify_ledger is not None
        differences = target.verify_ledger()
    print(table(runs))
    print(f"\nLedger after the load: {differences or 'clean'}")
    is_any_wrong = any(run.problems or not run.right for of_one in runs.values() for run in of_one)
    sys.exit(bool(differences or is_any_wrong))


def table(runs: dict[str, list[Measurement]]) -> str:
    """Return a markdown table: medians, and the ratio to chat completions within each round."""
    lines = [
        "| protocol | answers/s | CPU ms a stream | ratio to chat: median (range) |",
        "|---|---|---|---|",
    ]
    chat = [cpu_ms_per_request(run) or 0 for run in runs["chat"]]
    for name, measurements in runs.items():
        cpu = [cpu_ms_per_request(run) or 0 for run in measurements]
        # A run without a right answer has no cost, and must not hide the others.
        ratios = [ours / theirs for ours, theirs in zip(cpu, chat, strict=True) if ours and theirs]
        answers = median(run.answers_per_second for run in measurements)
        ratio = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "–"
        lines.append(f"| {name} | {answers:.0f} | {median(cpu):.2f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
