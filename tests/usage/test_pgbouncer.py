"""PgBouncer in transaction mode, set up as docs/operations.md says: the time limits are in force."""

import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from tests.chatapi.http_client import Client
from tests.installation import ROOT, Installation, die_with_parent, free_port, wait_for

pytestmark = [
    pytest.mark.skipif(connection.vendor != "postgresql", reason="PgBouncer is for PostgreSQL"),
    pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="apt-get install pgbouncer"),
    pytest.mark.django_db(transaction=True),
]
DOCUMENT = (ROOT / "docs" / "operations.md").read_text()
Pooled = Callable[[], "psycopg.Connection[Any]"]
# Clients take turns, so the transactions of one are not all on the same connection to the server.
SERVER_CONNECTIONS = 3
# Signs an operator in, and returns the session.
SIGN_IN = """
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_superuser("op"))
print(client.cookies["sessionid"].value)
"""
PAGES = ("", "requests/", "live/", "budgets/", "accounts/apikey/")
LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
def role() -> Iterator[None]:
    """Give the role the document's settings, in the tests' database only."""
    name, user = connection.settings_dict["NAME"], connection.settings_dict["USER"]
    statements = re.findall(r"^ *ALTER ROLE chatapi IN DATABASE chatapi (SET .+);$", DOCUMENT, re.MULTILINE)
    assert len(statements) == 5
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(f'ALTER ROLE "{user}" IN DATABASE "{name}" {statement}')
        yield
        cursor.execute(f'ALTER ROLE "{user}" IN DATABASE "{name}" RESET ALL')


@pytest.fixture
def bouncer() -> Iterator[int]:
    """Return the port of a PgBouncer with few connections to each database of the tests' server."""
    database, port = connection.settings_dict, free_port()
    section = DOCUMENT.partition("### PgBouncer")[2].partition("\n### ")[0]
    assert "\n    [" not in section, "a second heading puts all options of Debian's file back"
    options = dict(re.findall(r"^ {4}(\w+) = (\w+)$", section, re.MULTILINE))
    assert options == {
        "listen_port": "6432",
        "pool_mode": "transaction",
        "ignore_startup_parameters": "options",
        "server_login_retry": "1",
    }
    options |= {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
    }
    options["default_pool_size"] = str(SERVER_CONNECTIONS)
    behind = f"* = host=127.0.0.1 port={database['PORT']} user={database['USER']}\n"
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    user = "postgres" if os.getuid() == 0 else None  # PgBouncer refuses to run as root
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        folder.chmod(0o755)
        ini, said = folder / "ini", folder / "log"
        ini.write_text(f"[databases]\n{behind}[pgbouncer]\n{lines}")
        log = stack.enter_context(said.open("w"))
        process = subprocess.Popen(
            ["pgbouncer", str(ini)],
            user=user,
            stderr=log,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        wait_for(lambda: "process up" in said.read_text() or process.poll() is not None, "PgBouncer")
        assert process.poll() is None, said.read_text()
        yield port


@pytest.fixture
def pooled(role: None, bouncer: int) -> Iterator[Pooled]:
    """Return a function that makes a connection through PgBouncer."""
    # Not a connection of Django's: the tests lift a limit of those (`conftest.py`).
    parameters = connection.get_connection_params() | {"host": "127.0.0.1", "port": bouncer}
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(**parameters))


def test_every_connection_has_the_limits_and_durable_commits(pooled: Pooled) -> None:
    assert settings.DATABASE_TIMEOUT_MS == 5_000
    for made in [pooled() for _ in range(2 * SERVER_CONNECTIONS)]:
        shown = [made.execute(f"SHOW {name}").fetchone() for name in (*LIMITS, "synchronous_commit", "jit")]
        made.commit()
        assert shown == [("5s",), ("5s",), ("5s",), ("on",), ("off",)]


def test_a_statement_that_takes_too_long_is_ended(pooled: Pooled) -> None:
    name, user = connection.settings_dict["NAME"], connection.settings_dict["USER"]
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER ROLE "{user}" IN DATABASE "{name}" SET statement_timeout = 200')
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        pooled().execute("SELECT pg_sleep(20)")


@pytest.mark.parametrize("dropped", [(*LIMITS, "synchronous_commit"), ("lock_timeout",), ()])
def test_doctor_names_what_a_pooler_drops_and_what_can_lose_the_books(
    bouncer: int, role: None, tmp_path: Path, dropped: tuple[str, ...]
) -> None:
    name, user = connection.settings_dict["NAME"], connection.settings_dict["USER"]
    service = Installation(tmp_path)
    service.environment["DATABASE_URL"] = f"postgres://{user}@127.0.0.1:{bouncer}/{name}"
    with connection.cursor() as cursor:
        cursor.execute("SHOW fsync")
        [fsync] = cursor.fetchone()
        for each in dropped:
            cursor.execute(f'ALTER ROLE "{user}" IN DATABASE "{name}" RESET {each}')
        cursor.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        try:
            done = service.manage("doctor", "--no-upstreams")
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" RESET synchronous_commit')
    found = re.findall(r"^(?:WRONG|warning) +database +([^:]+):", done.stdout, re.MULTILINE)
    lost = ["fsync is off"] * (fsync == "off") + ["synchronous_commit is off"] * (len(dropped) == 4)
    limits = ", ".join(each for each in LIMITS if each in dropped)
    assert found == lost + [f"CHATAPI_DATABASE_TIMEOUT_MS is not in force ({limits})"] * bool(limits)


@pytest.mark.timeout(120)
def test_a_service_behind_it_answers_and_its_books_are_right(bouncer: int, tmp_path: Path) -> None:
    with Installation(tmp_path) as service:
        direct = urlsplit(service.environment["DATABASE_URL"])
        service.start({"answers": {"tokens": 5}})  # which migrates without PgBouncer
        service.end("web", signal.SIGTERM)
        service.end("worker", signal.SIGTERM)
        behind = direct._replace(netloc=f"{direct.username}@127.0.0.1:{bouncer}")
        service.environment["DATABASE_URL"] = urlunsplit(behind)
        service.start_worker()
        service.start_web()
        client = Client(service.url, service.keys["live"], 30)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: client.complete("answers").status, range(24)))
        assert answers == [200] * 24
        session = service.shell(SIGN_IN)
        with ThreadPoolExecutor(8) as threads:
            pages = threads.map(partial(page, service, session), PAGES * 3)
            exports = threads.map(partial(page, service, session), ["requests/export.csv"] * 8)
        assert all("</html>" in each for each in pages)
        assert [each.count("answers") for each in exports] == [24] * 8
        service.verify()


def page(service: Installation, session: str, path: str) -> str:
    """Return a page of the admin, for the person of that session."""
    request = urllib.request.Request(
        f"{service.url}/admin/{path}", headers={"Cookie": f"sessionid={session}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())
