"""The table's parts (contestants that run by turns) and its rows (a figure of a part, with its bound on each
database).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.measurement import Cost, Measurement
from bench.report import (
    DIRECT,
    Figure,
    Results,
    answers_per_second,
    cpu_ms_per_request,
    lag_p99_ms,
    own_cost,
    ttft_p50_ms,
)

DATABASES = ("sqlite", "postgresql")
FLOOR, PORTKEY = "floor", "portkey"
ACCOUNTED = "accounted"
"""The floor with the packages and the commits (`bench/accounted_floor/`)."""
ACCOUNTED_MSGSPEC = f"{ACCOUNTED} msgspec"
WITH_ACCOUNTED = ("1+1", ACCOUNTED)
WITH_BOTH = (*WITH_ACCOUNTED, ACCOUNTED_MSGSPEC)
"""The variants of parts with streams, in which parsing events takes much of the CPU time."""
OVERHEAD_S = 3.0
"""Seconds of a run beside its load: starting its process, warming up, checking the answers."""


@dataclass(frozen=True)
class Part:
    """Runs of one scenario that follow each other by turns in each round."""

    name: str
    scenario: str
    others: tuple[str, ...] = ()
    """Targets of `bench.targets`."""
    variants: tuple[str, ...] = ("1+1",)
    """Services of `bench.table.services`, on each database."""
    seconds: float | None = None
    """The duration of a run that ends with its number of requests; None if `--seconds` ends it."""
    setup_s: float = 0
    """The seconds, for each database, in which the services that no earlier part uses start."""


PARTS = (
    # First: PostgreSQL's memory counts whole, so no other service may have connections to it yet.
    Part("crowd", "crowd", (FLOOR,), ("1+1 alone",), seconds=9, setup_s=12),
    Part("streams", "saturate", (DIRECT, FLOOR, PORTKEY), WITH_BOTH, setup_s=18),
    Part("first token", "sequential", (DIRECT,), WITH_ACCOUNTED),
    Part("not streamed", "non-stream", (FLOOR, PORTKEY), WITH_ACCOUNTED),
    Part("paced", "paced", (FLOOR,), WITH_BOTH, seconds=3),
    Part("long streams", "long"),
    Part("large prompt", "prompt"),
    Part("loop", "one-prompt", variants=("1+1 probed",), setup_s=12),
    Part("keys", "saturate", variants=("one key", "10,000 keys"), setup_s=60),
    Part("books", "saturate", variants=("1+1", "full books"), setup_s=240),
    Part("processes", "saturate", variants=("1+1", "2+2"), setup_s=12),
    Part("pinned", "saturate", variants=("1+1 on one core", "1+1 on two cores", "2+2 on two cores")),
    Part("threads", "saturate", variants=("1+1 probed",)),
    Part("paced threads", "paced", variants=("1+1 probed",), seconds=3),
)

OfRounds = Callable[[Results, str], list[float]]
"""Takes the runs of a part and the database; returns the figure of each round."""


@dataclass(frozen=True)
class Row:
    """A figure and the bound that it should keep, first SQLite's, then PostgreSQL's."""

    name: str
    part: str
    words: str
    of_rounds: OfRounds
    bounds: tuple[float, float]
    is_lower_bound: bool = False
    digits: int = 2


def cpu_us_per_token(run: Measurement) -> float | None:
    """Return the CPU time a token of all of the target's processes, in µs."""
    return summed(run, lambda cost: cost.cpu_us_per_token)


def peak_pss_mb(run: Measurement) -> float | None:
    """Return the highest memory of each of the target's processes, added; None in older files of results."""
    return summed(run, lambda cost: cost.peak_pss_mb) or None


def longest_turn_ms(run: Measurement) -> float | None:
    """Return the longest turn of a loop in web and worker."""
    return max(run.longest_turn_ms.values(), default=None)


def summed(run: Measurement, figure: Callable[[Cost], float]) -> float | None:
    """Return the sum over the target's groups; None if no answer was right."""
    return sum(map(figure, own_cost(run).values())) if run.cost else None


def ratio(figure: Figure, reference: str, variant: str = "1+1") -> OfRounds:
    """Return a function that divides by another target's figure of the same round."""
    return lambda results, database: results.ratios(f"{database} {variant}", reference, figure)


def difference(figure: Figure, reference: str, variant: str = "1+1") -> OfRounds:
    """Return a function that subtracts another target's figure of the same round."""
    return lambda results, database: results.differences(f"{database} {variant}", reference, figure)


def against(figure: Figure, variant: str, base: str) -> OfRounds:
    """Return a function that divides by another variant's figure of the same round and database."""
    return lambda results, database: results.ratios(f"{database} {variant}", f"{database} {base}", figure)


def value(figure: Figure, variant: str = "1+1") -> OfRounds:
    """Return a function that takes the figure itself."""
    return lambda results, database: results.values(f"{database} {variant}", figure)


ROWS = (
    Row(
        "streams",
        "streams",
        "64-token streams, 32 at once: answers a second, over Portkey's",
        ratio(answers_per_second, PORTKEY),
        (1.25, 1.0),
        is_lower_bound=True,
    ),
    Row(
        "cpu",
        "streams",
        "their CPU time a request, over the floor's",
        ratio(cpu_ms_per_request, FLOOR),
        (1.1, 1.4),
    ),
    Row(
        "first-token",
        "first token",
        "one at a time: time added to the first token, ms",
        difference(ttft_p50_ms, DIRECT),
        (3, 5),
    ),
    Row(
        "not-streamed",
        "not streamed",
        "not streamed, 32 at once: answers a second, over Portkey's",
        ratio(answers_per_second, PORTKEY),
        (1.3, 1.0),
        is_lower_bound=True,
    ),
    Row(
        "paced-lag",
        "paced",
        "200 streams at 50 tokens/s: lag p99, over the floor's",
        ratio(lag_p99_ms, FLOOR),
        (2, 3),
    ),
    Row(
        "paced-cpu",
        "paced",
        "their CPU time a token, over the floor's",
        ratio(cpu_us_per_token, FLOOR),
        (1.0, 1.1),
    ),
    Row(
        "crowd-lag",
        "crowd",
        "1,000 streams at 20 tokens/s: lag p99, over the floor's",
        ratio(lag_p99_ms, FLOOR, "1+1 alone"),
        (1.3, 1.3),
    ),
    Row("crowd-memory", "crowd", "their memory, MB", value(peak_pss_mb, "1+1 alone"), (400, 550), digits=0),
    Row(
        "prompt-cpu",
        "large prompt",
        "a prompt of 2 MB: CPU time a request, ms",
        value(cpu_ms_per_request),
        (20, 20),
        digits=1,
    ),
    Row(
        "prompt-turn",
        "loop",
        "a prompt of 2 MB: longest turn of a loop, ms",
        value(longest_turn_ms, "1+1 probed"),
        (5, 5),
        digits=1,
    ),
    Row(
        "keys",
        "keys",
        "10,000 keys in turn: CPU time a request, over one key's",
        against(cpu_ms_per_request, "10,000 keys", "one key"),
        (1.15, 1.15),
    ),
    Row(
        "books",
        "books",
        "{rows_in_books:,} generations in the books: CPU time a request, over empty books'",
        against(cpu_ms_per_request, "full books", "1+1"),
        (1.05, 1.05),
    ),
    Row(
        "processes",
        "processes",
        "2 web and 2 workers on the same cores: answers a second, over 1 and 1",
        against(answers_per_second, "2+2", "1+1"),
        (0.97, 0.97),
        is_lower_bound=True,
    ),
)


def bounded(variant: str) -> tuple[Row, ...]:
    """Return the rows that compare with another program, with figures of this variant."""
    of_rounds = {
        "streams": ratio(answers_per_second, PORTKEY, variant),
        "cpu": ratio(cpu_ms_per_request, FLOOR, variant),
        "first-token": difference(ttft_p50_ms, DIRECT, variant),
        "not-streamed": ratio(answers_per_second, PORTKEY, variant),
        "paced-lag": ratio(lag_p99_ms, FLOOR, variant),
        "paced-cpu": ratio(cpu_us_per_token, FLOOR, variant),
    }
    having = {part.name for part in PARTS if variant in part.variants}
    return tuple(
        replace(row, of_rounds=of_rounds[row.name])
        for row in ROWS
        if row.name in of_rounds and row.part in having
    )
