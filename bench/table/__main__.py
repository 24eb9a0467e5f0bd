"""Prints the performance table on SQLite and PostgreSQL, and keeps its runs as JSON.

    python -m bench.table                                          all rows, nine rounds
    python -m bench.table --quick --rows streams,cpu               a look at two rows
    python -m bench.table --json bench/results/2026-11-27.json     keeps the runs, in place of older ones
    python -m bench.table --svg bench/results/2026-11-27.json      measures nothing: writes the figures
                                                                   and pictures of docs/performance.md

PostgreSQL is a server of its own with fsync on, unless DATABASE_URL names one; each service gets a database
of its own on it, which is dropped in the end. Exit status 1: an answer was wrong, or the books are.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.children import PROJECT_FOLDER, ChildError
from bench.command_line import run
from bench.compare import names_of, running_upstream
from bench.table import page
from bench.table.results import RULE, Measured, Parts, load, problems, save
from bench.table.rows import DATABASES, PARTS, ROWS
from bench.table.run import Fleet, Plan, contestants, machine, parts_named, run_part

QUICK_ROWS_IN_BOOKS = 50_000
ROWS_IN_BOOKS = 1_000_000


def main() -> None:
    """Run the command line."""
    options = parse_arguments()
    if options.svg:
        page.write(load(options.svg), PROJECT_FOLDER / "docs")
        return
    if "postgresql" in options.databases and "DATABASE_URL" not in os.environ:
        wrapper = str(PROJECT_FOLDER / ".ci" / "with-postgres")
        os.execv(wrapper, [wrapper, "--durable", sys.executable, "-m", "bench.table", *sys.argv[1:]])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an ordinary exit, so that everything is stopped
    try:
        parts = measure(options)
    except ChildError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted; everything that was started has been stopped")
    print(page.verdicts(parts), page.accounted(parts), *problems(parts), sep="\n\n")
    sys.exit(1 if problems(parts) else 0)


def measure(options: argparse.Namespace) -> Parts:
    """Run the parts and return them; write each to the file as soon as it is complete."""
    chosen = parts_named(options.parts)
    plan = Plan(options.databases, options.rounds, options.seconds, 0)
    estimated_s = plan.estimated_s(chosen)
    limit_s = options.minutes * 60 if options.minutes else estimated_s * 1.5
    print(
        f"{len(chosen)} parts, {plan.rounds} rounds: about {estimated_s / 60:.0f} minutes; "
        f"no round begins after {limit_s / 60:.0f}.\n{RULE}",
        flush=True,
    )
    plan = Plan(plan.databases, plan.rounds, plan.seconds, time.monotonic() + limit_s)
    parts: Parts = {}
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True))
        )
        upstream, upstream_url = stack.enter_context(running_upstream(folder))
        fleet = Fleet(upstream, upstream_url, folder, options.rows_in_books)
        stack.callback(fleet.stop_all_but, set())
        taking = {part.name: contestants(part, plan.databases) for part in chosen}
        while chosen:
            part = chosen.pop(0)
            runs = run_part(part, fleet, taking[part.name], plan)
            needed = {each.target for later in chosen for each in taking[later.name]}
            parts[part.name] = Measured(
                commit=commit(),
                at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                command=asked(sys.argv[1:]),
                machine=machine(),
                seconds=plan.seconds,
                rows_in_books=options.rows_in_books,
                runs=runs,
                skipped=[
                    fleet.missing[each.target] for each in taking[part.name] if each.target in fleet.missing
                ],
            )
            keep(parts, options.json)
            ledger = fleet.stop_all_but(needed)
            parts[part.name] = msgspec.structs.replace(parts[part.name], ledger=ledger)
            keep(parts, options.json)
    return parts


def keep(parts: Parts, file: Path | None) -> None:
    """Add the parts to the file."""
    if file:
        save((load(file) if file.exists() else {}) | parts, file)


def asked(arguments: list[str]) -> str:
    """Return the command without `--json` and its file."""
    if "--json" in arguments:
        at = arguments.index("--json")
        arguments = arguments[:at] + arguments[at + 2 :]
    return shlex.join(["python", "-m", "bench.table", *arguments])


def commit() -> str:
    """Return the commit that is measured, with a mark if the product's files have changed since."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=PROJECT_FOLDER, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    is_changed = bool(git("status", "--porcelain", "accounts", "chatapi", "usage"))
    return (git("rev-parse", "--short", "HEAD") or "unknown") + " with changes" * is_changed


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rows, parts = [row.name for row in ROWS], [part.name for part in PARTS]
    parser.add_argument("--quick", action="store_true", help="one round of 2 s, 50,000 rows in the books")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4, help="of each run")
    parser.add_argument(
        "--minutes", type=float, help="begin no round after this time (default: 1.5 times the estimate)"
    )
    parser.add_argument("--rows", type=names_of(rows), help=", ".join(rows))
    parser.add_argument("--parts", type=names_of(parts), help=", ".join(parts))
    parser.add_argument(
        "--databases", type=names_of(DATABASES), default=list(DATABASES), help=", ".join(DATABASES)
    )
    parser.add_argument("--rows-in-books", type=int, default=ROWS_IN_BOOKS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the runs in this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write page and pictures from these runs")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.rows_in_books = 1, 2.0, QUICK_ROWS_IN_BOOKS
    if options.rows:
        options.parts = [*(options.parts or []), *(row.part for row in ROWS if row.name in options.rows)]
    return options


if __name__ == "__main__":
    run(main)
