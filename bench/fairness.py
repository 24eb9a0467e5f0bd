"""Measures the time to first token of a small organization, alone and beside a flood of another one.

    python -m bench.fairness              400 streams of 2 s beside 5, on 200 slots; two minutes
    python -m bench.fairness --streams 4000 --slots 1200 --model tok20-d500-f1 --ramp-seconds 30
                                          4,000 streams of 10 s beside 5
    python -m bench.fairness --streams 4000 --slots 1200 --model tok20-d500-f1 --most-open 1020
                                          the same with the default bound on open generations

The small organization's callers send one stream of 2 s after the other. The flood's streams are all accepted,
so that they wait and run, unless `--most-open` bounds them.
"""

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.children import running
from bench.compare import progress, run_load, running_upstream
from bench.measurement import Measurement
from bench.scenarios import Scenario
from bench.targets import CATALOG_MODEL, chatapi, manage, own_environment

SMALL_MODEL = "tok20-d100-f1"
MOST_TIMES = 2.0
"""H5: the bound on the time to first token beside the flood, as a multiple of that alone."""


def main() -> None:
    """Run the command line; exit status 1 when an answer was wrong or the books are."""
    asked = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ["CHATAPI_WORKER_CONCURRENCY"] = str(asked.slots)
    os.environ["CHATAPI_MAX_OPEN_GENERATIONS"] = str(asked.most_open or asked.streams + 1)
    os.environ["CHATAPI_MAX_QUEUE_AGE_MS"], os.environ["CHATAPI_QUEUE_TTL_MS"] = "0", "600000"
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True))
        )
        upstream, upstream_url = stack.enter_context(running_upstream(folder))
        large = stack.enter_context(chatapi(upstream_url, folder))
        small = replace(large, key=prepare(folder, {SMALL_MODEL, asked.model}, upstream_url))
        scenario = Scenario(
            "small",
            "the small organization",
            SMALL_MODEL,
            asked.small_streams,
            requests=asked.requests,
            ramp_seconds=2,
            warmup_requests=asked.small_streams,
        )
        alone = run_load(scenario, small, upstream, seconds=0)
        progress("alone: done")
        command = [sys.executable, "-m", "bench.flood", large.base_url, "--key", large.key]
        command += ["--model", asked.model, "--streams", str(asked.streams)]
        with running("flood", command, folder, os.environ) as flood:
            time.sleep(asked.ramp_seconds)
            beside = run_load(scenario, small, upstream, seconds=0)
            flood.assert_alive()
        assert large.verify_ledger is not None
        differences = large.verify_ledger()
    print(table(alone, beside))
    print(f"\nLedger after the load: {differences or 'clean'}")
    sys.exit(bool(differences or any(run.problems or not run.right for run in (alone, beside))))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=400, help="of the flood")
    parser.add_argument("--small-streams", type=int, default=5)
    parser.add_argument("--slots", type=int, default=200, help="of the worker")
    parser.add_argument("--most-open", type=int, help="CHATAPI_MAX_OPEN_GENERATIONS; by default no bound")
    parser.add_argument("--model", default=SMALL_MODEL, help="of the flood; see bench/behaviour.py")
    parser.add_argument("--requests", type=int, default=100, help="of the small organization, each time")
    parser.add_argument(
        "--ramp-seconds", type=float, default=5, help="from the flood's start to the measurement"
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


def table(alone: Measurement, beside: Measurement) -> str:
    """Return a markdown table of the time to first token, and the verdict."""
    lines = [
        "| the small organization | answers | TTFT p50 ms | p95 | p99 | problems |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in (("alone", alone), ("beside the flood", beside)):
        ttft = run.ttft_ms
        figures = f"{ttft.p50:.0f} | {ttft.p95:.0f} | {ttft.p99:.0f}" if ttft else "- | - | -"
        lines.append(f"| {name} | {run.right} | {figures} | {run.problems or 'none'} |")
    if alone.ttft_ms and beside.ttft_ms:
        times = beside.ttft_ms.p50 / alone.ttft_ms.p50, beside.ttft_ms.p95 / alone.ttft_ms.p95
        verdict = "within" if max(times) <= MOST_TIMES else "beyond"
        lines.append(
            f"\np50 {times[0]:.1f} times, p95 {times[1]:.1f} times: {verdict} {MOST_TIMES:.0f} times."
        )
        lines.append(
            f"Other processes used {beside.other_cores} cores, calibration {beside.calibration_ms} ms."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
