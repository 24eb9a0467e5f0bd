"""The outcomes as a markdown table, and what was missed."""

from collections.abc import Iterable, Mapping

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
    """All of it."""
    lines = [row(HEADINGS), row("---" for _ in HEADINGS)]
    return "\n".join([*lines, *(row(cells(outcome)) for outcome in outcomes)])


def row(texts: Iterable[str]) -> str:
    """A line of a markdown table."""
    return f"| {' | '.join(texts)} |"


def cells(outcome: Outcome) -> list[str]:
    """One attack's row."""
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
        "pass" if not outcome.violations else f"**fail**: {', '.join(outcome.violations)}",
    ]


def counted(counts: Mapping[str, int]) -> str:
    """`8 whole`, `3 200, 1 429`; a dash for nothing."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: -each[1])) or "-"


def rule() -> str:
    """What each row must keep."""
    return (
        f"Rule: no gap between two tokens of an honest stream is more than {MAX_EXCESS_MS:.0f} ms"
        f" ({MAX_EXCESS_OF_A_CROWD_MS:.0f} ms with {CROWD} attackers) longer than in the quiet seconds before,"
        " /healthz answers within the same time more than then,"
        f" every honest stream and request is whole, and memory grows by at most {MAX_GROWTH_MB:.0f} MB."
    )
