"""Measures the time to first token of a small organization, alone and beside a flood of another one.

    python -m bench.fairness              400 streams of 2 s beside 5, on 200 slots; two minutes
    python -m bench.fairness --flood prompts
                                          64 streams with prompts of 2 MB; `choices`: 32 with n = 128;
                                          `requests`: 256 callers of short answers, a quarter of them refused
    python -m bench.fairness --streams 4000 --slots 1200 --model tok20-d500-f1 --ramp-seconds 40 --rounds 3
                                          4,000 streams of 10 s beside 5; seven minutes
    python -m bench.fairness --streams 4000 --slots 1200 --model tok20-d500-f1 --most-open 1020
                                          the same with the default bound on open generations

The small organization's callers send one stream of 2 s after the other. Their upstream answers in 1 ms, so
their time to first token is what the service adds; with `--small-model tok20-d100-f200` it contains 200 ms of
the model's own, as clients see it. All of the flood's streams are accepted and wait or run, unless
`--most-open` bounds them. They come at once, or evenly within `--arrive-in-seconds`; with `--impatient`,
refused callers ignore Retry-After and come back after a second. A round is a measurement alone and one beside
the flood; the table has the medians of all rounds, and their ranges.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import astuple

from bench.children import running
from bench.command_line import run
from bench.compare import progress, run_load, running_upstream
from bench.measurement import Measurement
from bench.scenarios import FLOODS, Scenario
from bench.targets import CATALOG_MODEL, chatapi, manage, own_environment

SMALL_MODEL = "tok20-d100-f1"
MOST_TIMES = 2.0
"""The bound on the time to first token beside the flood, as a multiple of that alone (H5 in tests/README.md).
"""

REST_SECONDS = 15
"""The pause between two rounds, in which the flood's streams are cancelled and settled."""


class Round(msgspec.Struct):
    """The two measurements of a round."""

    alone: Measurement
    beside: Measurement

    def times(self, percentile: str) -> float:
        """Return the time to first token beside the flood, as a multiple of that alone; infinite if no answer
        was right.
        """
        if self.alone.ttft_ms is None or self.beside.ttft_ms is None:
            return float("inf")
        return float(getattr(self.beside.ttft_ms, percentile) / getattr(self.alone.ttft_ms, percentile))


def main() -> None:
    """Run the command line; exit status 1 when an answer, the books or the bound is wrong."""
    asked = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    flood = FLOODS[asked.flood]
    flood = replace(flood, concurrency=asked.streams or flood.concurrency, model=asked.model or flood.model)
    os.environ["CHATAPI_WORKER_CONCURRENCY"] = str(asked.slots)
    os.environ["CHATAPI_MAX_OPEN_GENERATIONS"] = str(asked.most_open or flood.concurrency + 1)
    os.environ["CHATAPI_MAX_QUEUE_AGE_MS"], os.environ["CHATAPI_QUEUE_TTL_MS"] = "0", "600000"
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True))
        )
        upstream, upstream_url = stack.enter_context(running_upstream(folder))
        large = stack.enter_context(chatapi(upstream_url, folder))
        small = replace(large, key=prepare(folder, {asked.small_model, flood.model}, upstream_url))
        scenario = Scenario(
            "small",
            "the small organization",
            asked.small_model,
            asked.small_streams,
            requests=asked.requests,
            ramp_seconds=2,
            warmup_requests=asked.small_streams,
        )
        command = [sys.executable, "-m", "bench.flood", large.base_url, "--key", large.key]
        command += ["--flood", flood.name, "--model", flood.model, "--callers", str(flood.concurrency)]
        command += ["--arrive-in-seconds", str(asked.arrive_in_seconds)]
        command += ["--impatient"] if asked.impatient else []
        rounds: list[Round] = []
        for number in range(asked.rounds):
            time.sleep(REST_SECONDS if number else 0)
            alone = run_load(scenario, small, upstream, seconds=0)
            with running("flood", command, folder, os.environ) as child:
                time.sleep(asked.ramp_seconds)
                beside = run_load(scenario, small, upstream, seconds=0)
                child.assert_alive()
            rounds.append(Round(alone, beside))
            progress(f"round {number + 1} of {asked.rounds}: done")
        assert large.verify_ledger is not None
        differences = large.verify_ledger()
    if asked.json:
        asked.json.write_bytes(msgspec.json.encode(rounds))
    print(table(rounds))
    print(f"\nLedger after the load: {differences or 'clean'}")
    runs = [run for each in rounds for run in (each.alone, each.beside)]
    is_right = not differences and all(run.right and not run.problems for run in runs)
    sys.exit(not (is_right and is_within_bound(rounds)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flood", choices=FLOODS, default="streams", help="see bench/scenarios.py")
    parser.add_argument("--streams", type=int, help="callers of the flood; by default its own number")
    parser.add_argument("--small-streams", type=int, default=5)
    parser.add_argument("--slots", type=int, default=200, help="of the worker")
    parser.add_argument("--most-open", type=int, help="CHATAPI_MAX_OPEN_GENERATIONS; by default no bound")
    parser.add_argument(
        "--arrive-in-seconds", type=float, default=0, help="until all of the flood's callers have come"
    )
    parser.add_argument("--impatient", action="store_true", help="the flood does not obey Retry-After")
    parser.add_argument("--model", help="of the flood, instead of its own; see bench/behaviour.py")
    parser.add_argument("--small-model", default=SMALL_MODEL, help="of the small organization")
    parser.add_argument("--requests", type=int, default=100, help="of the small organization, each time")
    parser.add_argument(
        "--ramp-seconds", type=float, default=5, help="from the flood's start to the measurement"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--json", type=Path, help="the file to which the measurements of all rounds are written"
    )
    return parser.parse_args()


def prepare(folder: Path, models: set[str], upstream_url: str) -> str:
    """Load the models into the running service, and return the key of another organization."""
    environment = own_environment(folder / "chatapi")
    catalog = folder / "models.toml"
    catalog.write_text(
        "\n".join(CATALOG_MODEL.format(model=model, upstream_url=upstream_url) for model in models)
    )
    manage(environment, "loadcatalog", str(catalog))
    made = manage(environment, "createkey", "--organization", "Small", "--json")
    key: str = json.loads(made)["key"]
    return key


def table(rounds: list[Round]) -> str:
    """Return a markdown table of the time to first token, and the verdict."""
    lines = [
        "| the small organization | answers | TTFT p50 ms | p95 | p99 | problems |",
        "|---|---|---|---|---|---|",
        row("alone", [each.alone for each in rounds]),
        row("beside the flood", [each.beside for each in rounds]),
    ]
    p50, p95 = ([each.times(percentile) for each in rounds] for percentile in ("p50", "p95"))
    lines.append(
        f"\np50 {spread(p50, 1)} times, p95 {spread(p95, 1)} times: "
        f"{'within' if is_within_bound(rounds) else 'beyond'} {MOST_TIMES:.0f} times."
    )
    beside = [each.beside for each in rounds]
    others = spread([run.other_cores for run in beside], 2)
    calibration = spread([run.calibration_ms for run in beside], 1)
    lines.append(f"Other processes used {others} cores, calibration {calibration} ms.")
    return "\n".join(lines)


def is_within_bound(rounds: list[Round]) -> bool:
    """Return whether the medians of both percentiles keep the bound."""
    return all(median(each.times(name) for each in rounds) <= MOST_TIMES for name in ("p50", "p95"))


def row(name: str, runs: list[Measurement]) -> str:
    """Return the table's row of these measurements."""
    found = [run.ttft_ms for run in runs if run.ttft_ms is not None]
    figures = [spread(values) for values in zip(*map(astuple, found), strict=True)] or ["-"] * 3
    problems = [run.problems for run in runs if run.problems]
    return f"| {name} | {sum(run.right for run in runs)} | {' | '.join(figures)} | {problems or 'none'} |"


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median and, of several values, the range."""
    middle, least, most = (f"{each:.{digits}f}" for each in (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({least} to {most})"


if __name__ == "__main__":
    run(main)
