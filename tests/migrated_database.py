"""A migrated SQLite database, made once in a run of pytest and copied wherever one is needed."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAME = "chatapi.sqlite3"
"""The database's file in a state folder."""


def copy_to(database: Path) -> None:
    """Copy the migrated database to this path. The first of pytest's processes that calls this makes it."""
    folder = Path(os.environ["MIGRATED_DATABASE_FOLDER"])
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make(folder)
    shutil.copy(folder / NAME, database)


def _make(folder: Path) -> None:
    unfinished = folder.with_suffix(".unfinished")  # pytest's time limit may end this process meanwhile
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    environment = os.environ | {"CHATAPI_STATE_DIR": str(unfinished)}
    root = Path(__file__).parent.parent
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=root, env=environment, check=True)
    unfinished.rename(folder)
