"""Attacks a service of its own beside honest streams, one attack after the other, and prints the effect on
the honest streams.

    python -m bench.hostile                                        every attack, some 45 minutes
    python -m bench.hostile --attacks one-byte-*,'no key'          some: by name or by means, with wildcards
    python -m bench.hostile --root ../release-1 --json before.json the service of another checkout
    python -m bench.hostile --list                                 the attacks

Exit status 1: a bound was missed. Everything is on loopback and ends by itself.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.children import PROJECT_FOLDER
from bench.command_line import run
from bench.hostile import report
from bench.hostile.attacks import Attack, select
from bench.hostile.harness import Plan, harness
from bench.hostile.measurement import Outcome


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="bench.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--attacks",
        default="",
        metavar="NAME[,NAME]",
        help="names, patterns of names, or kinds of attackers (default: all)",
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each attack, at most")
    parser.add_argument(
        "--attackers", type=int, default=1, help="the number at once, each with its own address and keys"
    )
    parser.add_argument(
        "--shared-address", action="store_true", help="the attackers come from the honest clients' address"
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=PROJECT_FOLDER,
        help="the checkout whose service is attacked (default: this one)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the outcomes there")
    parser.add_argument("--list", action="store_true", help="name the attacks and end")
    return parser.parse_args()


def run_all(plan: Plan, attacks: list[Attack], json_file: Path | None) -> list[Outcome]:
    """Run one attack after the other; each outcome is printed and written as soon as it is known."""
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="chatapi-hostile-") as folder,
        harness(plan, Path(folder)) as prepared,
    ):
        for number, attack in enumerate(attacks, 1):
            outcomes.append(prepared.run(attack))
            print(
                f"{number}/{len(attacks)} {report.row(report.cells(outcomes[-1]))}",
                file=sys.stderr,
                flush=True,
            )
            if json_file is not None:
                json_file.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    return outcomes


def main() -> None:
    """Run the command line."""
    arguments = parse_arguments()
    try:
        attacks = select([pattern for pattern in arguments.attacks.split(",") if pattern])
    except ValueError as error:
        sys.exit(str(error))
    if arguments.list:
        for attack in attacks:
            print(f"{attack.name:<36}{attack.who:<10}{attack.summary}")
        return
    plan = Plan(arguments.root.resolve(), arguments.seconds, arguments.attackers, arguments.shared_address)
    outcomes = run_all(plan, attacks, arguments.json)
    missed = [outcome for outcome in outcomes if outcome.violations]
    print(
        f"{report.table(outcomes)}\n\n{report.rule()}\n"
        f"{len(outcomes) - len(missed)} of {len(outcomes)} passed."
    )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    run(main)
