"""A command that meets a database without tables, as in a wrong state folder, says so in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import DatabaseError, OperationalError, connection

from chatapi.serving import preflight
from tests.installation import ROOT


def manage(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in that state folder, with the SQLite there."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
    }
    environment |= {"CHATAPI_STATE_DIR": str(state_dir)}
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        env=environment,
        cwd=state_dir,
        capture_output=True,
        text=True,
        check=False,
    )


PERIOD = ("--from", "2026-11-01", "--to", "2026-12-01")
COMMANDS = [
    ("createkey", "--organization", "Acme"),
    ("loadcatalog", str(ROOT / "docs" / "catalog.example.toml")),
    ("grantcredit", "--organization", "Acme", "--usd", "1", "--reason", "invoice"),
    ("rerate", "--model", "small", *PERIOD),
    ("exportusage", *PERIOD, "--output", "november"),
    ("verifyledger",),
    ("exportcatalog",),
    ("createsuperuser", "--noinput", "--username", "root", "--email", ""),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda each: each[0])
def test_a_database_without_tables_is_named_in_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = manage(tmp_path, *arguments)
    shown = (
        f"chatapi: the database {tmp_path}/chatapi.sqlite3 lacks tables or columns of this version: "
        "run manage.py migrate first, or set CHATAPI_STATE_DIR or DATABASE_URL to the one that is meant.\n"
    )
    assert done.returncode == 1
    assert done.stderr.endswith(shown)
    assert "Traceback" not in done.stderr


def test_migrate_makes_them_and_then_it_works(tmp_path: Path) -> None:
    assert manage(tmp_path, "migrate", "--verbosity", "0").returncode == 0
    assert manage(tmp_path, *COMMANDS[0]).stdout.startswith("ck_live_")


def test_an_error_with_all_tables_there_is_none_of_these(db: None) -> None:
    with pytest.raises(DatabaseError, match="no_such_thing") as caught, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_thing")
    preflight.explain(caught.value)
    with pytest.raises(preflight.CannotStart, match="database is locked"):
        preflight.explain(OperationalError("database is locked"))
