"""Measures the cost of a generation in the database: transactions that write and that only read, per settled
generation, and generations settled a second.

    python -m bench.books                                    on SQLite
    .ci/with-postgres .venv/bin/python -m bench.books        and on that PostgreSQL, which is filled

The databases count, over all processes, so heartbeats and reapers are included. Transactions that only read
are those that PostgreSQL has committed less those that wrote; SQLite does not count them. Exit status 1: a
generation took more than 3 transactions that write, with 1 or 64 concurrent (heartbeats and reapers may add 2
a second); an answer was wrong; or the books are.
"""

import argparse
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

from bench.children import Child, ChildError
from bench.command_line import run
from bench.compare import progress, run_load, running_upstream
from bench.measurement import Measurement
from bench.scenarios import SCENARIOS, Scenario
from bench.target import Target
from bench.targets import Service, served_chatapi

MOST_WRITING = 3
"""Transactions that write, per generation: admission, claim, settlement. Those that only read are not
bounded, because they wait neither for the disk nor for each other.
"""
MOST_BESIDE_PER_SECOND = 2
"""Transactions that write, whatever the number of generations: a worker's heartbeat every two seconds, the
reaper's rounds every second.
"""
MODEL = SCENARIOS["saturate"].model
CONCURRENT = (1, 64)
SETTLED = "SELECT count(*) FROM usage_generation WHERE state = 'settled'"
COMMITS = """SELECT sum(count) FROM pg_get_wal_stats(%s, pg_current_wal_flush_lsn() - 1, true)
WHERE "resource_manager/record_type" = 'Transaction/COMMIT'"""
CHANGE_COUNTER_OFFSET = 8
"""In the WAL index's header: the number of committed transactions (SQLite, "WAL-mode File Format", 2.1,
iChange).
"""
STATISTICS_LAG_S = 11
"""A PostgreSQL backend that has become idle reports its transactions after 10 s."""


class Count(NamedTuple):
    """A database's counts at one moment."""

    writing: int
    """Transactions that wrote."""
    committed: int | None
    """All transactions; None where the database does not count those that read."""
    settled: int
    at_s: float
    """Seconds of this process's monotonic clock."""


class Database(NamedTuple):
    """SQLite or PostgreSQL: how to read its counts, and the delay of these counts in seconds."""

    name: str
    counted: Callable[[], Count]
    lag_s: float = 0


class Row(NamedTuple):
    """One line of the table."""

    database: str
    concurrent: int
    generations: int
    settled_per_second: float
    writing: float
    """Transactions that write, per generation; `reading` has those that only read, None if not counted."""
    reading: float | None
    is_cheap: bool
    is_right: bool

    @classmethod
    def of(cls, database: str, concurrent: int, load: Measurement, before: Count, after: Count) -> "Row":
        """Return the row of a load, from the counts before and after it."""
        generations = after.settled - before.settled
        writing = after.writing - before.writing
        reading = None
        if before.committed is not None and after.committed is not None:
            reading = (after.committed - before.committed - writing) / max(1, generations)
        is_cheap = writing <= MOST_WRITING * generations + MOST_BESIDE_PER_SECOND * (after.at_s - before.at_s)
        is_right = bool(load.right) and not load.problems
        return cls(
            database,
            concurrent,
            generations,
            load.answers_per_second,
            writing / max(1, generations),
            reading,
            is_cheap,
            is_right,
        )

    def __str__(self) -> str:
        reading = "not counted" if self.reading is None else f"{self.reading:.2f}"
        return (
            f"| {self.database} | {self.concurrent} | {self.generations} "
            f"| {self.settled_per_second:.0f} | {self.writing:.2f} | {reading} |"
        )


def count_sqlite(file: Path) -> Count:
    """Return SQLite's counts; those of transactions are in the WAL index, which all writers share."""
    with Path(f"{file}-shm").open("rb") as index:
        index.seek(CHANGE_COUNTER_OFFSET)
        (writing,) = struct.unpack("=I", index.read(4))
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        (settled,) = database.execute(SETTLED).fetchone()
    return Count(writing, None, settled, time.monotonic())


def count_postgresql(url: str, since: str) -> Count:
    """Return PostgreSQL's counts: the commits in the write-ahead log since the position `since`, and the
    transactions in its statistics. The queries of this function count as reads.

    Transaction ids would count too many: an admission's savepoint has an id of its own.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        committed = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        writing = connection.execute(COMMITS, [since]).fetchone()
        settled = connection.execute(SETTLED).fetchone()
    assert committed
    assert writing
    assert settled
    return Count(int(writing[0]), committed[0], settled[0], time.monotonic())


def log_position(url: str) -> str:
    """Return the end of PostgreSQL's write-ahead log. Install the extension that reads the log; this needs a
    superuser.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row
    return str(row[0])


@contextmanager
def served(name: str, upstream_url: str, folder: Path) -> Iterator[tuple[Target, Database]]:
    """Yield the service on that database."""
    if name == "SQLite":
        with served_chatapi(Service(name), upstream_url, folder) as target:
            yield target, Database(name, lambda: count_sqlite(folder / name / "chatapi.sqlite3"))
        return
    url = os.environ["DATABASE_URL"]
    since = log_position(url)
    with served_chatapi(Service(name, {"DATABASE_URL": url}), upstream_url, folder) as target:
        yield target, Database(name, partial(count_postgresql, url, since), STATISTICS_LAG_S)


def measured(target: Target, database: Database, upstream: Child, concurrent: int, seconds: float) -> Row:
    """Run one load, and return it with the database's counts of that time."""
    before = database.counted()
    scenario = Scenario(
        "books", "64-token streams as fast as they go", MODEL, concurrent, warmup_requests=concurrent
    )
    load = run_load(scenario, target, upstream, seconds)
    time.sleep(database.lag_s)
    after = database.counted()
    return Row.of(database.name, concurrent, load, before, after)


def measure(seconds: float) -> bool:
    """Run every load on every database; return whether all are right and within the bound."""
    print(
        "Transactions per generation:\n\n"
        "| database | concurrent | generations | settled/s | writing | reading |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    names = ["SQLite", *(["PostgreSQL"] if os.environ.get("DATABASE_URL") else [])]
    with TemporaryDirectory(prefix="chatapi-bench-", ignore_cleanup_errors=True) as folder:
        verdicts = [is_cheap_and_right(name, Path(folder), seconds) for name in names]
    return all(verdicts)


def is_cheap_and_right(name: str, folder: Path, seconds: float) -> bool:
    """Run every load on one database and print a line for each; return whether all were right and within the
    bound.
    """
    progress(f"starting on {name}")
    rows = []
    with running_upstream(folder) as (upstream, url), served(name, url, folder) as (target, database):
        for concurrent in CONCURRENT:
            rows.append(measured(target, database, upstream, concurrent, seconds))
            print(rows[-1], flush=True)
        assert target.verify_ledger
        differences = target.verify_ledger()
    print(differences, end="")
    return not differences and all(row.is_right and row.is_cheap for row in rows)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="What a generation costs the database.")
    parser.add_argument("--seconds", type=float, default=5, help="of each load")
    try:
        is_right = measure(parser.parse_args().seconds)
    except ChildError as error:
        sys.exit(str(error))
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    run(main)
