"""A problem that an operator can solve is one line of any command, and never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands

from tests.installation import ROOT, free_port

pytestmark = [pytest.mark.timeout(300)]
PERIOD = ("--from", "2026-11-01", "--to", "2026-12-01")
COMMANDS = [
    ("createkey", "--organization", "Acme"),
    ("loadcatalog", str(ROOT / "docs" / "catalog.example.toml")),
    ("exportcatalog",),
    ("verifyledger",),
    ("grantcredit", "--organization", "Acme", "--usd", "1", "--reason", "invoice"),
    ("refundcredit", "--organization", "Acme", "--usd", "1", "--reason", "invoice"),
    ("rerate", "--model", "llama-3.1-8b", *PERIOD),
    ("exportusage", *PERIOD, "--output", "november"),
    ("rollup",),
    ("dropgenerations", "--before", "2026-01-01", "--to", "old"),
    ("seedusage", "--generations", "5", "--days", "1"),
    ("migrate",),
    ("createsuperuser", "--noinput", "--username", "root", "--email", ""),
]
"""In an order in which all of them succeed on an empty installation."""
OTHERS = [
    ("doctor",),
    ("serve", "--only", "reaper"),
    ("stripecustomer", "--organization", "Acme"),
    ("reconcile", "bill.csv", *PERIOD, "--deployment", "upstream"),
    ("changepassword", "root"),
]
WITHOUT_DATABASE = "verifyexport"
OF_DJANGO = {"createsuperuser", "changepassword"}
"""Commands of Django that the documents name; `migrate` is the project's own."""


def manage(
    folder: Path,
    *arguments: str,
    stdout: int = subprocess.PIPE,
    limit: tuple[str, ...] = (),
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in that folder, which is also its state folder; `limit` is a program that runs it."""
    usual = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
    }
    return subprocess.run(
        [*limit, sys.executable, ROOT / "manage.py", *arguments],
        env=usual | {"CHATAPI_STATE_DIR": str(folder)} | environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a migrated SQLite, and files that no command can use."""
    folder = tmp_path_factory.mktemp("state")
    assert manage(folder, "migrate", "--verbosity", "0").returncode == 0
    (folder / "binary").write_bytes(b"\0\xff\xfe no text")
    (folder / "folder").mkdir()
    return folder


def test_every_command_of_the_project_is_tried() -> None:
    own = {name for name, app in get_commands().items() if app in ("accounts", "usage", "chatapi")}
    tried = [name for name, *_ in (*COMMANDS, *OTHERS)]
    assert sorted([*tried, WITHOUT_DATABASE]) == sorted(own | OF_DJANGO)


@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS], ids=lambda each: each[0])
def test_a_database_that_is_away(tmp_path: Path, command: tuple[str, ...]) -> None:
    url = f"postgres://u@127.0.0.1:{free_port()}/x"
    done = manage(tmp_path, *command, DATABASE_URL=url, CHATAPI_DATABASE_TIMEOUT_MS="200")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if command != ("doctor",):  # which goes on to what else is wrong
        line = only_line(done)
        assert line.startswith("chatapi: the database can't be reached (")
        assert line.endswith("check DATABASE_URL.")


@pytest.mark.parametrize("command", COMMANDS[:1])
@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere/x.sqlite3", "unable to open database file"), ("binary", "file is not a database")],
)
def test_a_file_that_is_no_database(folder: Path, command: tuple[str, ...], path: str, reason: str) -> None:
    done = manage(folder, *command, DATABASE_URL=f"sqlite:///{folder / path}")
    assert only_line(done).startswith(f"chatapi: the database can't be reached ({reason}): check ")


def test_a_database_that_refuses_to_write(folder: Path) -> None:
    """As on a full disk, but for any user."""
    import sqlite3

    with sqlite3.connect(folder / "chatapi.sqlite3", isolation_level=None) as lock:
        lock.execute("BEGIN IMMEDIATE")
        done = manage(folder, *COMMANDS[0], CHATAPI_DATABASE_TIMEOUT_MS="100")
    lock.close()
    line = (
        "the database refuses (database is locked). Solve this and try again; --traceback shows the details."
    )
    assert only_line(done) == f"chatapi: {line}"


def test_an_export_is_checked_without_a_database(folder: Path) -> None:
    assert manage(folder, "exportusage", *PERIOD, "--output", "signed").returncode == 0
    url = f"postgres://u@127.0.0.1:{free_port()}/x"
    done = manage(folder, WITHOUT_DATABASE, "signed", DATABASE_URL=url)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_command_needs_redis(folder: Path) -> None:
    """But `serve`, whose line is tested beside it."""
    redis = f"redis://127.0.0.1:{free_port()}/0"
    done = [manage(folder, *command, REDIS_URL=redis) for command in COMMANDS]
    assert {" ".join(each.args[2:]): each.stderr for each in done if each.returncode} == {}
    assert [line for each in done for line in each.stderr.splitlines() if "edis" in line] == []


@pytest.mark.parametrize("file", ["missing", "binary", "folder"])
@pytest.mark.parametrize(
    "command", [("loadcatalog",), ("verifyexport",), ("verifyexport", "folder", "--public-key")], ids=" ".join
)
def test_a_wrong_file(folder: Path, command: tuple[str, ...], file: str) -> None:
    line = only_line(manage(folder, *command, file))
    assert line.startswith("CommandError: ")
    assert file in line or command[-1] == "--public-key"


def test_a_disk_that_is_full_and_a_reader_that_leaves(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        line = only_line(manage(folder, "exportcatalog", stdout=full.fileno()))
    assert line == "chatapi: [Errno 28] No space left on device."
    reading, writing = os.pipe()
    os.close(reading)
    done = manage(folder, "exportcatalog", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_state_folder_without_room(folder: Path) -> None:
    """As on a full disk, but for this process only: no file of it may grow."""
    limit = ("prlimit", "--fsize=0")
    line = only_line(manage(folder, "serve", "--port", str(free_port()), limit=limit))
    reason = "(File too large): make room on its disk, or set CHATAPI_STATE_DIR."
    assert line == f"chatapi: can't write to {folder} {reason}"
    line = only_line(manage(folder, "verifyledger", limit=limit))
    assert line.startswith("chatapi: the database can't be reached (disk I/O error): check ")
    assert " and the room on its disk, or " in line


def test_a_question_without_a_terminal(folder: Path) -> None:
    manage(folder, "createsuperuser", "--noinput", "--username", "someone", "--email", "")
    done = manage(folder, "changepassword", "someone")
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("chatapi: this command asks for input: run it in a terminal.\n")


@pytest.mark.parametrize(
    ("hosts", "wrong"),
    [
        ("https://chat.example.com", "https://chat.example.com"),
        ("a.example,b.example:8000", "b.example:8000"),
    ],
)
def test_a_host_with_a_scheme_or_a_port_stops_the_start(folder: Path, hosts: str, wrong: str) -> None:
    line = only_line(manage(folder, "serve", "--only", "web", CHATAPI_ALLOWED_HOSTS=hosts))
    hint = "Use chat.example.com, without scheme, port and path; .example.com: also its subdomains; *: any."
    assert line == f"chatapi: CHATAPI_ALLOWED_HOSTS: {wrong!r} is no host name. {hint} (chatapi.E013)"


@pytest.mark.parametrize("command", [COMMANDS[0], ("migrate",), COMMANDS[-1]], ids=lambda each: each[0])
def test_a_wrong_setting_is_one_line_of_every_command(folder: Path, command: tuple[str, ...]) -> None:
    line = only_line(manage(folder, *command, CHATAPI_LEASE_MS="1", CHATAPI_METRICS_TOKEN="short"))
    assert line.startswith("chatapi: CHATAPI_")
    assert manage(folder, *command, "--help", CHATAPI_LEASE_MS="1").returncode == 0


def test_a_misspelt_setting_is_named_at_the_start(folder: Path) -> None:
    redis = f"redis://127.0.0.1:{free_port()}/0"
    done = manage(folder, "serve", "--only", "worker", REDIS_URL=redis, CHATAPI_WORKER_CONCURENCY="5")
    warning, error = done.stderr.splitlines()
    assert "CHATAPI_WORKER_CONCURENCY is not a setting. Did you mean CHATAPI_WORKER_CONCURRENCY?" in warning
    assert error.startswith("chatapi: Redis can't be reached")
