"""Turns the measurements of interleaved rounds into markdown: one table a scenario, and the targets met or
missed.

A ratio or difference is taken within a round, between runs a few seconds apart, and the report shows the
median over the rounds: a shared machine changes its speed by more than gateways differ.
"""

import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from bench.measurement import Cost, Measurement
from bench.scenarios import Scenario

DIRECT = "direct"
BASELINE = "passthrough-starlette"
UPSTREAM = "upstream"
OURS = "chatapi"
PREVIOUS = "previous"
TRACED = "chatapi-traced"
COMPARISONS = {
    "This release / the previous one": (OURS, PREVIOUS),
    "With traces / without": (TRACED, OURS),
}

Figure = Callable[[Measurement], float | None]

HEADINGS = (
    "target",
    "answers/s",
    "x starlette",
    "TTFT p50 / p95 / p99 ms",
    "added TTFT ms",
    "lag p50 / p99 ms",
    "CPU ms per request",
    "CPU µs per token",
    "peak / last PSS MB",
    "problems",
)


def answers_per_second(measurement: Measurement) -> float:
    """Return the right answers a second."""
    return measurement.answers_per_second


def ttft_p50_ms(measurement: Measurement) -> float | None:
    """Return the median time to first token; None if no answer was right."""
    return measurement.ttft_ms.p50 if measurement.ttft_ms else None


def ttft_p95_ms(measurement: Measurement) -> float | None:
    """Return the 95th percentile of the time to first token."""
    return measurement.ttft_ms.p95 if measurement.ttft_ms else None


def ttft_p99_ms(measurement: Measurement) -> float | None:
    """Return the 99th percentile of the time to first token."""
    return measurement.ttft_ms.p99 if measurement.ttft_ms else None


def lag_p50_ms(measurement: Measurement) -> float | None:
    """Return the median of the tokens' lag; None for streams without a pace."""
    return measurement.lag_ms.p50 if measurement.lag_ms else None


def lag_p99_ms(measurement: Measurement) -> float | None:
    """Return the 99th percentile of the tokens' lag."""
    return measurement.lag_ms.p99 if measurement.lag_ms else None


@dataclass(frozen=True)
class Results:
    """One scenario's measurements by target; position n of every list belongs to round n."""

    scenario: Scenario
    runs: dict[str, list[Measurement]] = field(default_factory=dict)

    def median(self, target: str, figure: Figure) -> float | None:
        """Return the figure's median over the rounds that have it."""
        return median_of(self.values(target, figure))

    def ratio(self, target: str, reference: str, figure: Figure) -> float | None:
        """Return the median over the rounds of target / reference."""
        return median_of(self.ratios(target, reference, figure))

    def added(self, target: str, reference: str, figure: Figure) -> float | None:
        """Return the median over the rounds of target - reference."""
        return median_of(self.differences(target, reference, figure))

    def values(self, target: str, figure: Figure) -> list[float]:
        """Return the figure of each round that has it."""
        return [value for run in self.runs.get(target, []) if (value := figure(run)) is not None]

    def ratios(self, target: str, reference: str, figure: Figure) -> list[float]:
        """Return target / reference of each round."""
        return [ours / theirs for ours, theirs in self.pairs(target, reference, figure) if theirs]

    def differences(self, target: str, reference: str, figure: Figure) -> list[float]:
        """Return target - reference of each round."""
        return [ours - theirs for ours, theirs in self.pairs(target, reference, figure)]

    def pairs(self, target: str, reference: str, figure: Figure) -> list[tuple[float, float]]:
        """Return both sides' figures of the rounds in which both have one."""
        # A comparison may lack the reference.
        runs = zip(self.runs.get(target, []), self.runs.get(reference, []), strict=False)
        figures = ((figure(ours), figure(theirs)) for ours, theirs in runs)
        return [(ours, theirs) for ours, theirs in figures if ours is not None and theirs is not None]


@dataclass(frozen=True)
class Yardstick:
    """A figure of the pass-through, here and (`there`) on the machine on which a bound in ms was set: their
    ratio compares the two machines' speeds.
    """

    words: str
    figure: Callable[[Results], float | None]
    there: float

    def reading(self, results: Results, value: float) -> str:
        """Return the value at the speed of that machine; empty if the pass-through was not measured."""
        here = self.figure(results)
        if not here:
            return ""
        there = value * self.there / here
        pass_through = f"{self.words} of the pass-through {self.there} there, {here:.1f} here"
        return f" ({there:.2f} at the speed of the bound: {pass_through})"


@dataclass(frozen=True)
class Goal:
    """A figure of chatapi in a scenario, and its bound."""

    scenario: str
    words: str
    of_rounds: Callable[[Results, str], list[float]]
    bound: float
    is_lower_bound: bool = False
    yardstick: Yardstick | None = None

    def verdict(self, results: Results, target: str) -> str:
        """Return one line: the median and the range of the rounds, the bound, met or missed. For a bound in
        ms, add the figure at the speed of the machine on which the bound was set.
        """
        values = self.of_rounds(results, target)
        if not values:
            return f"- {target}: {self.words}: not measured"
        value = median(values)
        kept = sum(map(self.is_kept_by, values))
        rounds = f"rounds {min(values):.2f} to {max(values):.2f}, {kept} of {len(values)} within the bound"
        wanted = f"wanted {'≥' if self.is_lower_bound else '≤'} {self.bound}"
        verdict = "met" if self.is_kept_by(value) else "MISSED"
        reading = self.yardstick.reading(results, value) if self.yardstick else ""
        return f"- {target}: {self.words}: **{value:.2f}** ({rounds}), {wanted}: {verdict}{reading}"

    def is_kept_by(self, value: float) -> bool:
        """Return whether the value is within the bound."""
        return value >= self.bound if self.is_lower_bound else value <= self.bound


GOALS = (
    Goal(
        "saturate",
        "64-token streams at 32 concurrent, ratio to the Starlette pass-through",
        lambda results, target: results.ratios(target, BASELINE, answers_per_second),
        bound=1.1,
        is_lower_bound=True,
    ),
    Goal(
        "sequential",
        "added time to first token at 1 concurrent, ms",
        lambda results, target: results.differences(target, DIRECT, ttft_p50_ms),
        bound=8,
        yardstick=Yardstick(
            "added ms", lambda results: results.added(BASELINE, DIRECT, ttft_p50_ms), there=0.9
        ),
    ),
    Goal(
        "paced",
        "lag p99 of 200 paced streams, ms",
        lambda results, target: results.values(target, lag_p99_ms),
        bound=40,
        yardstick=Yardstick("lag p99 ms", lambda results: results.median(BASELINE, lag_p99_ms), there=131),
    ),
)


def table(results: Results) -> str:
    """Return a scenario's table, with a line about the machine below it."""
    rows = [row(results, target) for target in results.runs]
    lines = [
        f"### {results.scenario.name}: {results.scenario.description}",
        "",
        markdown_row(HEADINGS),
        "|---" * len(HEADINGS) + "|",
    ]
    return "\n".join([*lines, *map(markdown_row, rows), "", machine(results), ""])


def row(results: Results, target: str) -> list[str]:
    """Return one target's cells."""
    runs = results.runs[target]
    ttft = [results.median(target, figure) for figure in (ttft_p50_ms, ttft_p95_ms, ttft_p99_ms)]
    lag = [results.median(target, figure) for figure in (lag_p50_ms, lag_p99_ms)]
    return [
        target,
        number(results.median(target, answers_per_second), 0),
        number(results.ratio(target, BASELINE, answers_per_second), 2),
        " / ".join(number(value, 2) for value in ttft),
        "" if target == DIRECT else number(results.added(target, DIRECT, ttft_p50_ms), 2),
        " / ".join(number(value, 1) for value in lag)
        if results.median(target, lag_p99_ms) is not None
        else "",
        cpu_by_process(runs),
        total(runs, lambda cost: cost.cpu_us_per_token, 1),
        f"{total(runs, lambda cost: cost.peak_pss_mb, 0)} / {total(runs, lambda cost: cost.pss_mb, 0)}",
        problems(runs),
    ]


def against(results: Results, target: str, reference: str) -> str:
    """Return a line for each figure: the target's ratio to the reference, median and range of the rounds."""
    figures: dict[str, Figure] = {
        "answers/s": answers_per_second,
        "CPU ms per request": cpu_ms_per_request,
        "TTFT p50": ttft_p50_ms,
        "lag p99": lag_p99_ms,
    }
    lines = []
    for words, figure in figures.items():
        if ratios := results.ratios(target, reference, figure):
            lines.append(
                f"- {results.scenario.name}: {words}: **{median(ratios):.3f}** "
                f"({min(ratios):.3f} to {max(ratios):.3f})"
            )
    return "\n".join(lines)


def cpu_ms_per_request(measurement: Measurement) -> float | None:
    """Return the CPU time a request of all of the target's processes; None if no answer was right."""
    costs = own_cost(measurement).values()
    return sum(cost.cpu_ms_per_request for cost in costs) if costs else None


def own_cost(run: Measurement) -> dict[str, Cost]:
    """Return the costs of the target's groups: all but the upstream's. In a run of `direct` the upstream is
    the target.
    """
    return {name: cost for name, cost in run.cost.items() if name != UPSTREAM} or run.cost


def cpu_by_process(runs: list[Measurement]) -> str:
    """Return the medians of CPU ms per request, and their sum: `3.81 = web 1.90 + worker 1.61 + ...`."""
    names = dict.fromkeys(name for run in runs for name in own_cost(run))
    parts = {
        name: median_of(run.cost[name].cpu_ms_per_request for run in runs if name in run.cost) or 0.0
        for name in names
    }
    if not parts:
        return "-"
    split = " + ".join(f"{name} {value:.2f}" for name, value in parts.items())
    return f"{sum(parts.values()):.2f} = {split}" if len(parts) > 1 else f"{sum(parts.values()):.2f}"


def total(runs: list[Measurement], figure: Callable[[Cost], float], digits: int) -> str:
    """Return the median over the rounds of the sum over the target's groups."""
    return number(median_of(sum(map(figure, own_cost(run).values())) for run in runs if run.cost), digits)


def problems(runs: list[Measurement]) -> str:
    """Return every problem of all rounds, with its number of answers."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.problems)
    return (
        "; ".join(f"{problem} x {count}" for problem, count in counts.most_common()).replace("|", "/")
        or "none"
    )


def machine(results: Results) -> str:
    """Return a line about the machine's speed and its other load, by which to judge the table."""
    runs = [run for target_runs in results.runs.values() for run in target_runs]
    calibrations = [run.calibration_ms for run in runs]
    return (
        f"Machine: CPython {platform.python_version()} of {sys.base_prefix}, "
        f"calibration {min(calibrations):.1f} to {max(calibrations):.1f} ms, load generator up to "
        f"{max(run.load_cores for run in runs):.1f} cores, "
        f"other processes up to {max(run.other_cores for run in runs):.1f} cores."
    )


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def number(value: float | None, digits: int) -> str:
    """Return a cell; a dash for a missing figure."""
    return "-" if value is None else f"{value:.{digits}f}"


def markdown_row(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return "| " + " | ".join(cells) + " |"
