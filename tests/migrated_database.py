"""A migrated database, made once in a run of pytest and copied wherever one is needed: a file of SQLite, or
a template on the PostgreSQL server.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

NAME = "chatapi.sqlite3"
"""The database's file in a state folder."""
TEMPLATE = "template"
"""The file with the name of PostgreSQL's database."""


def copy_to(database: Path) -> None:
    """Copy the migrated database of SQLite to this path."""
    folder = Path(os.environ["MIGRATED_DATABASE_FOLDER"])
    _make_once(folder, lambda unfinished: _migrate(CHATAPI_STATE_DIR=str(unfinished)))
    shutil.copy(folder / NAME, database)


def template(url: str) -> str:
    """Return the name of the migrated database on this PostgreSQL server."""

    def make(unfinished: Path) -> None:
        migrated = create_on(url)
        _migrate(CHATAPI_STATE_DIR=str(unfinished), DATABASE_URL=migrated)
        (unfinished / TEMPLATE).write_text(urlsplit(migrated).path[1:])

    folder = Path(os.environ["MIGRATED_DATABASE_FOLDER"]).with_name("migrated-on-postgresql")
    _make_once(folder, make)
    return (folder / TEMPLATE).read_text()


def create_on(url: str, template: str = "template1") -> str:
    """Create a database on this PostgreSQL server and return its URL."""
    import psycopg

    name = f"chatapi_{uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        # A tests' server may lose its last commits in a crash, but here crashes are tested.
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = on")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Make the folder, unless another one of pytest's processes has made it."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            # pytest's time limit may end this process meanwhile.
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)


def _migrate(**environment: str) -> None:
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    root = Path(__file__).parent.parent
    subprocess.run(command, cwd=root, env=os.environ | environment, check=True)
