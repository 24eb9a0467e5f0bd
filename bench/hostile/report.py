"""The outcomes as a markdown table, with the missed bounds.

python -m bench.hostile.report after.json --before before.json      two releases beside each other
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from bench.command_line import run
from bench.hostile.measurement import CROWD, MAX_EXCESS_MS, MAX_EXCESS_OF_A_CROWD_MS, MAX_GROWTH_MB, Outcome

HEADINGS = (
    "attack",
    "by",
    "gap ms: quiet",
    "worst",
    "probe ms: p50",
    "worst",
    "8 honest streams",
    "short requests: worst ms",
    "answers to the attack",
    "sent MB",
    "attacker's CPU s",
    "memory +MB",
    "verdict",
)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the whole table."""
    lines = [row(HEADINGS), row("---" for _ in HEADINGS)]
    return "\n".join([*lines, *(row(cells(outcome)) for outcome in outcomes)])


def row(texts: Iterable[str]) -> str:
    """Return a line of a markdown table."""
    return f"| {' | '.join(texts)} |"


def cells(outcome: Outcome) -> list[str]:
    """Return the row of one attack."""
    attacked = outcome.attacked
    problems = f" ({counted(outcome.probe_problems)})" if outcome.probe_problems else ""
    requests = {problem: count for problem, count in outcome.requests.items() if problem != "whole"}
    return [
        outcome.name,
        f"{outcome.attackers} x {outcome.who}" if outcome.attackers > 1 else outcome.who,
        f"{outcome.quiet_gap_ms:.0f}",
        f"{outcome.worst_gap_ms:.0f}",
        f"{outcome.probe_p50_ms:.0f}",
        f"{outcome.probe_worst_ms:.0f}{problems}",
        counted(outcome.streams),
        f"{outcome.request_worst_ms:.0f}{f' ({counted(requests)})' if requests else ''}",
        counted(attacked.answers) + (f" {attacked.error}" if attacked.error else ""),
        f"{attacked.sent_bytes / 1e6:.1f}",
        f"{attacked.cpu_seconds:.1f}",
        f"{outcome.growth_mb:.0f}",
        verdict(outcome),
    ]


def counted(counts: Mapping[str, int]) -> str:
    """Return counts such as `8 whole` or `3 200, 1 429`; a dash for none."""
    return (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
        or "-"
    )


def rule() -> str:
    """Return the bounds of each row, as a sentence."""
    return (
        f"Rule: no gap between two tokens of an honest stream is more than {MAX_EXCESS_MS:.0f} ms"
        f" ({MAX_EXCESS_OF_A_CROWD_MS:.0f} ms with {CROWD} attackers) longer"
        " than in the quiet seconds before,"
        " /healthz answers within the same time more than then,"
        f" every honest stream and request is whole, and memory grows by at most {MAX_GROWTH_MB:.0f} MB."
    )


COMPARED_HEADINGS = (
    "attack",
    "by",
    "worst gap ms",
    "worst /healthz ms",
    "honest streams that ended early",
    "memory +MB",
    "verdict",
)


def comparison(after: Iterable[Outcome], before: Iterable[Outcome]) -> str:
    """Return a short table of two releases: each figure of the earlier one, an arrow, and the later one's."""
    earlier = {outcome.name: outcome for outcome in before}
    lines = [row(COMPARED_HEADINGS), row("---" for _ in COMPARED_HEADINGS)]
    return "\n".join([*lines, *(row(compared(outcome, earlier.get(outcome.name))) for outcome in after)])


def compared(after: Outcome, before: Outcome | None) -> list[str]:
    """Return the row of one attack."""
    figures = list(short(after))
    if before is not None:
        figures = [f"{old} → {new}" for old, new in zip(short(before), figures, strict=True)]
    return [f"{after.name}: {after.summary}", after.who, *figures, verdict(after)]


def short(outcome: Outcome) -> tuple[str, str, str, str]:
    """Return the cells for gap, probe, broken streams and memory."""
    broken = sum(count for how, count in outcome.streams.items() if how != "whole")
    return (
        f"{outcome.worst_gap_ms:.0f}",
        f"{outcome.probe_worst_ms:.0f}",
        str(broken),
        f"{outcome.growth_mb:.0f}",
    )


def verdict(outcome: Outcome) -> str:
    """Return `pass`, or the bounds that were missed."""
    return "pass" if not outcome.violations else f"**fail**: {', '.join(outcome.violations)}"


def main() -> None:
    """Run the command line: print a table of outcomes that `--json` has kept."""
    parser = argparse.ArgumentParser(
        prog="bench.hostile.report", description="Tables of kept outcomes, in markdown."
    )
    parser.add_argument("after", type=Path)
    parser.add_argument("--before", type=Path, help="of another release, to be compared with")
    arguments = parser.parse_args()
    after = msgspec.json.decode(arguments.after.read_bytes(), type=list[Outcome])
    if arguments.before is None:
        print(table(after))
    else:
        print(comparison(after, msgspec.json.decode(arguments.before.read_bytes(), type=list[Outcome])))
    print(f"\n{rule()}")


if __name__ == "__main__":
    run(main)
