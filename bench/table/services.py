"""The services of the table: chatapi's, with one web and one worker process unless their name says otherwise,
and the floor with the packages and the commits.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from bench.children import PROJECT_FOLDER
from bench.processes import PROC
from bench.target import Roots, Target
from bench.targets import MSGSPEC, Service, manage, served_accounted_floor, served_chatapi

KEYS = 10_000
KEYS_FILE = "keys"
TURNS_VARIABLE = "CHATAPI_BENCH_TURNS"
ONE_AND_ONE = ("--web", "1", "--worker", "1")
TWO_AND_TWO = ("--web", "2", "--worker", "2")
INSIDE = PROJECT_FOLDER / "bench" / "table" / "inside"

Pins = Mapping[str, tuple[int, ...]]
"""The core of each process of that task; the processes of other tasks may use all."""


@dataclass(frozen=True)
class Variant:
    """A service, and how it is used."""

    service: str = "plain"
    has_keys_in_turn: bool = False
    pins: Pins | None = None


VARIANTS = {
    "1+1": Variant(),
    "1+1 alone": Variant("alone"),
    "1+1 probed": Variant("probed"),
    "accounted": Variant("accounted"),
    "accounted msgspec": Variant("accounted-msgspec"),
    "one key": Variant("keys"),
    "10,000 keys": Variant("keys", has_keys_in_turn=True),
    "full books": Variant("filled"),
    "2+2": Variant("doubled"),
    "1+1 on one core": Variant(
        pins={"web": (0,), "worker": (0,), "valkey": (0,), "reaper": (0,), "serve": (0,)}
    ),
    "1+1 on two cores": Variant(pins={"web": (0,), "worker": (1,)}),
    "2+2 on two cores": Variant("doubled", pins={"web": (0, 1), "worker": (0, 1)}),
}


@contextmanager
def served(service: str, database: str, upstream_url: str, folder: Path, rows: int) -> Iterator[Target]:
    """Run a service of the table on a new database."""
    name = f"{database}-{service}"
    with new_database(database, name) as environment:
        if service.startswith("accounted"):
            started = Service(name, environment, MSGSPEC if service.endswith("msgspec") else ())
            with served_accounted_floor(started, upstream_url, folder) as target:
                yield target
            return
        if service == "probed":
            turns = folder / f"{name}-turns"
            turns.mkdir()
            environment |= {"PYTHONPATH": str(INSIDE), TURNS_VARIABLE: str(turns)}

        def prepare(environment: Mapping[str, str], state: Path) -> None:
            if service == "keys":
                make_keys(environment, state / KEYS_FILE)
            if service == "filled":
                fill(environment, rows)

        arguments = TWO_AND_TWO if service == "doubled" else ONE_AND_ONE
        started = Service(name, environment, arguments, prepare=prepare)
        with served_chatapi(started, upstream_url, folder) as target:
            yield target


@contextmanager
def new_database(database: str, name: str) -> Iterator[dict[str, str]]:
    """Yield the setting that names a new database; drop PostgreSQL's at the end."""
    if database == "sqlite":
        yield {}
        return
    url, identifier = os.environ["DATABASE_URL"], sql.Identifier(f"bench_{os.getpid()}_{name}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(identifier))
        try:
            yield {"DATABASE_URL": urlsplit(url)._replace(path=f"/bench_{os.getpid()}_{name}").geturl()}
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))


def make_keys(environment: Mapping[str, str], file: Path) -> None:
    """Make the keys of 1,000 organizations and write them to a file, one a line."""
    code = f"from bench.table.keys import make; make({KEYS}, {str(file)!r})"
    manage(environment, "shell", "--no-imports", "-c", code)


def fill(environment: Mapping[str, str], rows: int) -> None:
    """Write this number of made-up generations and seal them, so that no such work runs beside the load."""
    manage(environment, "seedusage", "--add", "--generations", str(rows))
    # The reaper checks the books once an hour, first when it starts. A check that has just begun keeps it
    # from checking beside the load.
    code = (
        "from usage.database.clock import database_now; from usage.verification import ledger_checks; "
        "ledger_checks.begin(database_now(), [None])"
    )
    manage(environment, "shell", "--no-imports", "-c", code)
    if "DATABASE_URL" in environment:
        with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


def used_as(target: Target, variant: Variant, folder: Path) -> Target:
    """Pin the target's processes to the variant's cores, and return the target with the variant's keys."""
    pin(target.find_roots(), variant.pins or {})
    if not variant.has_keys_in_turn:
        return target
    return replace(target, keys_file=folder / target.name / KEYS_FILE)


def pin(roots: Roots, pins: Pins) -> None:
    """Let each process run on its core only, or on all without a pin; PostgreSQL's always use all."""
    every = range(os.cpu_count() or 1)
    for task, pids in roots.items():
        if task == "postgresql":
            continue
        cores = pins.get(task)
        for number, pid in enumerate(pids):
            allowed = [cores[number % len(cores)]] if cores else every
            for thread in (PROC / str(pid) / "task").glob("*"):
                os.sched_setaffinity(int(thread.name), allowed)


def longest_turns_ms(target: Target, folder: Path, began: float, ended: float) -> dict[str, float]:
    """Return the longest turn of the loop in each web and worker process between two moments."""
    turns: dict[str, float] = {}
    for task in ("web", "worker"):
        for pid in target.find_roots().get(task, []):
            file = folder / f"{target.name}-turns" / str(pid)
            if file.exists():
                lines = [line.split() for line in file.read_text().splitlines()]
                inside = [float(turn) for at, turn in lines if began < float(at) < ended]
                turns[task] = round(max([turns.get(task, 0), *(turn * 1_000 for turn in inside)]), 2)
    return turns
