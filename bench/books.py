"""What a generation costs the database: transactions per settled generation, and how many are settled a second.

    python -m bench.books                                    on SQLite
    .ci/with-postgres .venv/bin/python -m bench.books        and on that PostgreSQL, which is filled

Counted by the databases themselves, over all processes and with all that runs beside (heartbeats, reapers). Of SQLite it is the
transactions that wrote; of PostgreSQL all of them, reads too. Exit status 1: more than 3 for a generation, a wrong answer, or wrong books.
"""

import argparse
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

from bench.children import Child, ChildError
from bench.compare import progress, run_load, running_upstream
from bench.scenarios import SCENARIOS, Scenario
from bench.targets import Target, served_chatapi

MOST_TRANSACTIONS = 3
MODEL = SCENARIOS["saturate"].model
CONCURRENT = (1, 64)
SETTLED = "SELECT count(*) FROM usage_generation WHERE state = 'settled'"
CHANGE_COUNTER_OFFSET = 8
"""In the WAL index's header: the number of committed transactions (SQLite, "WAL-mode File Format", 2.1, iChange)."""
STATISTICS_LAG_S = 11
"""A PostgreSQL backend that has become idle reports its transactions after 10 s."""


class Count(NamedTuple):
    """What a database has done until now."""

    transactions: int
    settled: int


class Database(NamedTuple):
    """One of the two: how it counts, and how late."""

    name: str
    counted: Callable[[], Count]
    lag_s: float = 0


class Row(NamedTuple):
    """One line of the table."""

    database: str
    concurrent: int
    generations: int
    settled_per_second: float
    transactions: int
    is_right: bool

    @property
    def per_generation(self) -> float:
        return self.transactions / max(1, self.generations)

    def __str__(self) -> str:
        figures = f"{self.generations} | {self.settled_per_second:.0f} | {self.transactions} | {self.per_generation:.2f}"
        return f"| {self.database} | {self.concurrent} | {figures} |"


def count_sqlite(file: Path) -> Count:
    """By its WAL index, which every writer shares."""
    with Path(f"{file}-shm").open("rb") as index:
        index.seek(CHANGE_COUNTER_OFFSET)
        (transactions,) = struct.unpack("=I", index.read(4))
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        (settled,) = database.execute(SETTLED).fetchone()
    return Count(transactions, settled)


def count_postgresql(url: str) -> Count:
    """By its statistics; our own two queries are among them."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()
        settled = connection.execute(SETTLED).fetchone()
    assert row
    assert settled
    return Count(row[0], settled[0])


@contextmanager
def served(name: str, upstream_url: str, folder: Path) -> Iterator[tuple[Target, Database]]:
    """The service on that database."""
    if name == "SQLite":
        with served_chatapi(name, upstream_url, folder, {}) as target:
            yield target, Database(name, lambda: count_sqlite(folder / name / "chatapi.sqlite3"))
        return
    url = os.environ["DATABASE_URL"]
    with served_chatapi(name, upstream_url, folder, {"DATABASE_URL": url}) as target:
        yield target, Database(name, lambda: count_postgresql(url), STATISTICS_LAG_S)


def measured(target: Target, database: Database, upstream: Child, concurrent: int, seconds: float) -> Row:
    """One load, and what the database has counted meanwhile."""
    before = database.counted()
    scenario = Scenario("books", "64-token streams as fast as they go", MODEL, concurrent, warmup_requests=concurrent)
    load = run_load(scenario, target, upstream, seconds)
    time.sleep(database.lag_s)
    after = database.counted()
    is_right = bool(load.right) and not load.problems
    return Row(
        database.name,
        concurrent,
        after.settled - before.settled,
        load.answers_per_second,
        after.transactions - before.transactions,
        is_right,
    )


def measure(seconds: float) -> bool:
    """Every database under every load; True when nothing was wrong and no generation costs too much."""
    print("| database | concurrent | generations | settled/s | transactions | per generation |\n|---|---|---|---|---|---|", flush=True)
    names = ["SQLite", *(["PostgreSQL"] if os.environ.get("DATABASE_URL") else [])]
    with TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True) as folder:
        verdicts = [is_cheap_and_right(name, Path(folder), seconds) for name in names]
    return all(verdicts)


def is_cheap_and_right(name: str, folder: Path, seconds: float) -> bool:
    """Every load on that database, told line by line."""
    progress(f"starting on {name}")
    rows = []
    with running_upstream(folder) as (upstream, url), served(name, url, folder) as (target, database):
        for concurrent in CONCURRENT:
            rows.append(measured(target, database, upstream, concurrent, seconds))
            print(rows[-1], flush=True)
        assert target.verify_ledger
        differences = target.verify_ledger()
    print(differences, end="")
    return not differences and all(row.is_right and row.per_generation <= MOST_TRANSACTIONS for row in rows if row.concurrent > 1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="What a generation costs the database.")
    parser.add_argument("--seconds", type=float, default=5, help="of each load")
    try:
        is_right = measure(parser.parse_args().seconds)
    except ChildError as error:
        sys.exit(str(error))
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
