"""Starts this release on the state of an old one (old_state/README.md): its keys work, its receipts are still
there, and its books are right.
"""

import json
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.chatapi.serve_process import SETTINGS, Serve
from tests.installation import ROOT, free_port
from tests.migrated_database import NAME
from tests.usage.old_state.make_old_state import ANSWERS, DATABASE, REPEATED, SECRETS

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif("DATABASE_URL" in os.environ, reason="the old database is one of SQLite"),
]
OLD = json.loads(ANSWERS.read_text())
SUMS = (
    "SELECT kind, COUNT(*), SUM(amount_nanodollars), SUM(prompt_tokens), SUM(completion_tokens) "
    "FROM usage_ledgerentry GROUP BY kind",
    "SELECT model, is_stream, outcome, COUNT(*), SUM(amount_nanodollars), SUM(completion_tokens) "
    "FROM usage_generation GROUP BY model, is_stream, outcome",
    "SELECT id, posted_nanodollars, pending_nanodollars FROM usage_budget ORDER BY id",
    "SELECT api_key_id, digest, request_digest, generation_id FROM usage_idempotencykey",
    "SELECT last_id, sum_nanodollars, digest FROM usage_ledgerseal ORDER BY last_id",
    "SELECT credited_nanodollars, is_required FROM usage_credit",
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return a copy of the old database, in a state folder with its secrets."""
    (tmp_path / NAME).write_bytes(lzma.decompress(DATABASE.read_bytes()))
    shutil.copy(SECRETS, tmp_path)
    (tmp_path / SECRETS.name).chmod(0o600)
    with closing(sqlite3.connect(tmp_path / NAME)) as connection, connection:
        # The books remember a key for a day.
        now = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
        connection.execute(f"UPDATE usage_idempotencykey SET created_at = {now}")
    return tmp_path / NAME


def sums(database: Path) -> list[list[tuple[Any, ...]]]:
    """Return what the books have, read without any release's code."""
    with closing(sqlite3.connect(database)) as connection:
        return [connection.execute(query).fetchall() for query in SUMS]


def environment(state_dir: Path) -> dict[str, str]:
    usual = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return usual | {"CHATAPI_STATE_DIR": str(state_dir)}


@contextmanager
def serving(state_dir: Path) -> Iterator[Serve]:
    """Run this release on the state folder."""
    serve = Serve(state_dir, free_port())
    try:
        serve.wait_until_ready()
        yield serve
        assert serve.stop() == 0
    finally:
        serve.kill()


def differences(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the values of an old answer that are others now; a member that is new is none of them."""
    if isinstance(old, dict):
        for name, value in old.items():
            yield from differences(value, new.get(name))
    elif isinstance(old, list) and len(old) == len(new):
        for pair in zip(old, new, strict=True):
            yield from differences(*pair)
    elif old != new:
        yield old, new


def test_this_release_goes_on_where_an_old_one_stopped(database: Path) -> None:
    before = sums(database)
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=environment(database.parent), check=True)
    assert sums(database) == before
    with serving(database.parent) as serve:
        clients = {name: Client(f"http://127.0.0.1:{serve.port}", key) for name, key in OLD["keys"].items()}
        live = clients["live"]
        for receipt in OLD["receipts"]:
            now = live.send("GET", f"/v1/generations/{receipt['id']}").json
            # Text completions and other dialects have prefixes of their own now.
            assert list(differences(receipt | {"id": now["id"]}, now)) == []
        for path, report in OLD["reports"].items():
            assert list(differences(report, clients["admin"].send("GET", path).json)) == []
        assert live.complete("sandbox", idempotency_key=REPEATED).error["code"] == "stream_expired"
        statuses = {name: client.complete("sandbox").status for name, client in clients.items()}
        assert statuses == dict.fromkeys(clients, 200) | {"poor": 402}
        for check in ("verifyledger", "doctor"):
            done = serve.run([sys.executable, "manage.py", check])
            assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "0 wrong" in done.stdout
