"""The file of the table's runs, and the verdict of their rounds on a bound."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import msgspec

from bench.measurement import Measurement
from bench.report import Results
from bench.scenarios import SCENARIOS
from bench.table.rows import DATABASES, PARTS, ROWS, Row

RULE = (
    "The rule: a figure is the median over the rounds; a ratio is taken within a round, between runs a few "
    "seconds apart. Met: the median keeps the bound. Missed by less than its scatter: it misses the bound by "
    "less than the distance between the rounds' quartiles. Missed: by more."
)
MET, CLOSE, MISSED = "met", "missed by less than its scatter", "missed"


class Measured(msgspec.Struct, frozen=True):
    """A part's runs; position n of each contestant's list belongs to round n."""

    commit: str
    at: str
    command: str
    machine: str
    seconds: float
    rows_in_books: int
    runs: dict[str, list[Measurement]]
    skipped: list[str] = []
    ledger: dict[str, str] = {}
    """The differences that verifyledger has found, by service; an empty text if the books are right."""


Parts = dict[str, Measured]


class Reading(NamedTuple):
    """The rounds of a row on one database, beside its bound."""

    row: Row
    database: str
    rounds: list[float]

    @property
    def bound(self) -> float:
        return self.row.bounds[DATABASES.index(self.database)]

    @property
    def verdict(self) -> str:
        """Return `MET`, `CLOSE` or `MISSED`, by `RULE`."""
        missing = self.bound - median(self.rounds)
        if not self.row.is_lower_bound:
            missing = -missing
        if missing <= 0:
            return MET
        return CLOSE if missing < scatter(self.rounds) else MISSED

    def __str__(self) -> str:
        low, middle, high = (
            f"{value:.{self.row.digits}f}"
            for value in (min(self.rounds), median(self.rounds), max(self.rounds))
        )
        return f"{middle} ({low}–{high})"


def scatter(rounds: list[float]) -> float:
    """Return the distance between the quartiles; 0 for one round."""
    if len(rounds) < 2:
        return 0
    lower, _, upper = quantiles(rounds, n=4, method="inclusive")
    return upper - lower


def readings(parts: Parts, rows: Sequence[Row] = ROWS) -> list[Reading]:
    """Return the rows that were measured, on each database."""
    found = []
    for row in rows:
        if row.part in parts:
            results = as_results(row.part, parts[row.part])
            found += [Reading(row, database, row.of_rounds(results, database)) for database in DATABASES]
    return [reading for reading in found if reading.rounds]


def as_results(name: str, measured: Measured) -> Results:
    """Return a part's runs in the form that the report's functions take."""
    scenario = next(part.scenario for part in PARTS if part.name == name)
    return Results(SCENARIOS[scenario], measured.runs)


def problems(parts: Parts) -> list[str]:
    """Return one line for each run with a wrong answer and each service with wrong books."""
    lines = []
    for name, measured in parts.items():
        for contestant, runs in measured.runs.items():
            lines += [
                f"{name}, {contestant}, round {number}: {run.problems or 'no answer was right'}"
                for number, run in enumerate(runs, 1)
                if run.problems or not run.right
            ]
        lines += [f"{name}, ledger of {service}: {text}" for service, text in measured.ledger.items() if text]
    return lines


def load(file: Path) -> Parts:
    """Return the parts of a file of results."""
    return msgspec.json.decode(file.read_bytes(), type=Parts)


def save(parts: Parts, file: Path) -> None:
    """Write the file, one run a line."""
    text = (
        msgspec.json.encode(parts)
        .decode()
        .replace('{"model":', '\n{"model":')
        .replace('{"commit":', '\n{"commit":')
    )
    file.write_text(text + "\n")


def newest(folder: Path) -> Path:
    """Return the newest file of results, which is named by its date."""
    return max(folder.glob("*.json"))
