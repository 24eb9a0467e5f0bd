"""Reports from a streaming replica of PostgreSQL: what reads it, and when the primary is read instead."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error, connection, connections
from django.test import Client, override_settings
from django.utils import timezone

from accounts.models import APIKey, Project
from chatapi.api.own_writes import COOKIE
from chatapi.doctor import stores
from chatapi.models import ServedModel
from tests.admin_pages import client_of, downloaded, text
from tests.cast import Person, run
from tests.installation import ROOT, die_with_parent, free_port, wait_for
from usage.database import replica as replicas
from usage.insights import Filters, parse_range, totals

# Tests of one server, which they pause and stop.
pytestmark = [
    pytest.mark.skipif(connection.vendor != "postgresql", reason="replicas are PostgreSQL's"),
    pytest.mark.django_db(transaction=True, databases=["default", "replica"]),
    pytest.mark.xdist_group("replica"),
    pytest.mark.timeout(120),
]
SUMS = ("usage_hourlyusage", "usage_dailytotals", "usage_dailyusage")
ROWS = (*SUMS, "usage_generation", "usage_ledgerentry")
PERMISSIONS = ("auth_user", "auth_permission", "django_session", "accounts_member")


class Replica:
    """A streaming replica of the tests' server."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._bin = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        # PostgreSQL refuses to run as root.
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    def copy(self) -> None:
        """Copy the primary, as docs/operations.md does."""
        primary = connection.settings_dict
        place = [
            "--host",
            str(primary["HOST"]),
            "--port",
            str(primary["PORT"]),
            "--username",
            primary["USER"],
        ]
        data = ["--pgdata", str(self._folder / "data"), "--checkpoint=fast", "--write-recovery-conf"]
        command = [str(self._bin / "pg_basebackup"), *place, *data]
        subprocess.run(command, user=self._user, check=True, capture_output=True, cwd=self._folder)

    def start(self) -> None:
        parameters = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._folder,
            "max_connections": 300,  # not fewer than the primary's
        }
        options = [part for name, value in parameters.items() for part in ("-c", f"{name}={value}")]
        with (self._folder.parent / f"{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._folder / "data"), *options],
                user=self._user,
                cwd=self._folder,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        wait_for(self._answers, "the replica", 30)

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            self._process.wait(30)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes for a while, as a host that hangs does."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        pids = [self._process.pid, *map(int, children.split())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def execute(self, sql: str) -> Any:
        """Run a statement on a connection of its own, and return its first value."""
        user, name = connection.settings_dict["USER"], connection.settings_dict["NAME"]
        with psycopg.connect(host="127.0.0.1", port=self.port, user=user, dbname=name) as own:
            row = own.execute(sql).fetchone()
            return row and row[0]

    def catch_up(self) -> None:
        """Wait until it has replayed what the primary has."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_lsn()::text")
            [position] = cursor.fetchone()
        wait_for(
            lambda: self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"), "the replica"
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it replay nothing for a while."""
        self.catch_up()
        self.execute("SELECT pg_wal_replay_pause()")
        wait_for(lambda: self.execute("SELECT pg_get_wal_replay_pause_state()") == "paused", "the pause")
        try:
            yield
        finally:
            self.execute("SELECT pg_wal_replay_resume()")


@pytest.fixture(scope="module")
def server(django_db_setup: None) -> Iterator[Replica]:
    """Give Django a replica, as settings do."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder).chmod(0o755)
        own = Path(folder) / "replica"
        own.mkdir()
        server = Replica(own)
        server.copy()
        stack.callback(server.stop)
        server.start()
        limits = "-c statement_timeout=1000 -c default_transaction_read_only=on"
        connections.settings[replicas.REPLICA] = connection.settings_dict | {
            "PORT": str(server.port),
            "OPTIONS": {"options": limits, "connect_timeout": 2},
            "TEST": {"MIRROR": "default"},  # which tests don't empty
        }
        yield server
        forget_connection()
        del connections.settings[replicas.REPLICA]


def forget_connection() -> None:
    """Let the next statement connect with the settings of then."""
    connections[replicas.REPLICA].close()
    del connections[replicas.REPLICA]


@pytest.fixture
def replica(server: Replica, db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    """Return the replica, which keeps up, and is looked at before each report."""
    monkeypatch.setattr(replicas, "_state", replicas._State())
    monkeypatch.setattr(replicas, "CHECK_EVERY_S", 0.0)
    monkeypatch.setattr(replicas, "AWAY_S", 0.0)
    with override_settings(DATABASE_ROUTERS=["usage.database.replica.Router"]):
        server.catch_up()
        yield server
    forget_connection()


class Statements:
    """The statements that a block has sent to each of the databases."""

    def __init__(self) -> None:
        self.primary: list[str] = []
        self.replica: list[str] = []

    @classmethod
    @contextmanager
    def sent(cls) -> Iterator["Statements"]:
        made = cls()
        with (
            connection.execute_wrapper(_noting(made.primary)),
            connections[replicas.REPLICA].execute_wrapper(_noting(made.replica)),
        ):
            yield made


def _noting(found: list[str]) -> Callable[..., Any]:
    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found.append(str(sql))
        return execute(sql, params, many, context)

    return note


@pytest.fixture
def used(replica: Replica, small: ServedModel, alice: Person) -> Person:
    """Return alice with an admin key and usage that the replica has, too."""
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True)
    for _ in range(3):
        run(alice)
    replica.catch_up()
    return alice


def requests_of(person: Person) -> int:
    filters = Filters(organization_id=person.project.organization_id)
    return totals(parse_range({"days": "1"}, timezone.now()), filters).requests


# ---- what reads it


def test_pages_charts_files_and_the_usage_api_read_the_replica(used: Person, root: Client) -> None:
    place = used.project.organization_id
    own = client_of(used.user)
    pages: dict[str, Callable[[], Any]] = {
        "console overview": lambda: own.get(f"/console/{place}/overview?days=7"),
        "console usage": lambda: own.get(f"/console/{place}/usage?days=7"),
        "console requests": lambda: own.get(f"/console/{place}/requests"),
        "overview": lambda: root.get("/admin/?days=7"),
        "requests": lambda: root.get("/admin/requests/"),
        "generations": lambda: root.get("/admin/usage/generation/"),
        "ledger": lambda: root.get("/admin/usage/ledgerentry/"),
        "hours": lambda: root.get("/admin/usage/hourlyusage/"),
        "usage API": lambda: used.get("/v1/organization/usage/completions?start_time=1790000000"),
        "costs API": lambda: used.get("/v1/organization/costs?start_time=1790000000"),
    }
    for name, get in pages.items():
        with Statements.sent() as sent:
            assert get().status_code == 200, name
        assert any(table in sql for sql in sent.replica for table in ROWS), name
        assert not any(table in sql for sql in sent.replica for table in PERMISSIONS), name
        sums = [sql for sql in sent.primary if re.search(rf'FROM "?({"|".join(SUMS)})\b', sql)]
        assert len(sums) == (name == "overview"), "which has the service's health of this hour"
    for path in ("/admin/requests/export.csv", "/admin/usage/ledgerentry/export.csv"):
        with Statements.sent() as sent:
            assert downloaded(root, path).count("\n") == 4
        assert any("usage_" in sql for sql in sent.replica), path


def test_a_file_after_a_change_is_the_primarys(used: Person, root: Client) -> None:
    root.cookies[COOKIE] = "1"
    with Statements.sent() as sent:
        assert downloaded(root, "/admin/usage/ledgerentry/export.csv").count("\n") == 4
    assert sent.replica == []


def test_a_preview_of_a_statement_is_one_snapshot_of_the_replica(used: Person, replica: Replica) -> None:
    month = str(
        connections[replicas.REPLICA].cursor().execute("SELECT to_char(now(), 'YYYY-MM')").fetchone()[0]
    )
    transactions = set()

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if "usage_" in sql:
            asked = "SELECT now(), current_setting('transaction_isolation')"
            transactions.add(context["connection"].connection.execute(asked).fetchone())
        return result

    with Statements.sent() as sent, connections[replicas.REPLICA].execute_wrapper(note):
        answer = used.get(f"/v1/organization/statements/{month}")
    assert answer.status_code == 200
    assert [isolation for _, isolation in transactions] == ["repeatable read"]
    assert not any("usage_ledgerentry" in sql for sql in sent.primary)


def test_nothing_can_be_written_to_it(used: Person) -> None:
    with (
        pytest.raises(Error, match="read-only transaction"),
        connections[replicas.REPLICA].cursor() as cursor,
    ):
        cursor.execute("UPDATE accounts_project SET name = 'changed'")
    project = replicas.report(lambda: Project.objects.get(pk=used.project.pk))()
    assert project._state.db == replicas.REPLICA
    project.name = "saved"
    with Statements.sent() as sent:
        project.save()
    assert (len(sent.primary), sent.replica) == (1, [])


# ---- what people have just changed


def test_what_a_person_has_just_saved_is_shown_although_the_replica_is_late(
    used: Person, root: Client, replica: Replica
) -> None:
    place = used.project.organization_id
    grant = {"organization": place, "amount": "5", "reason": "paid", "reference": "INV-7"}
    other = Client()
    other.force_login(User.objects.create_superuser("other"))
    with replica.paused():
        token = re.findall(r'name="token" value="([^"]+)"', root.get("/admin/credit/grant").content.decode())
        booked = root.post("/admin/credit/grant", grant | {"token": token[0], "step": "book"})
        assert booked.status_code == 302, text(booked)
        ledger = "/admin/usage/ledgerentry/?kind__exact=grant"
        assert len(root.get(ledger).context["cl"].result_list) == 1
        assert len(other.get(ledger).context["cl"].result_list) == 0, "it is read from the replica"
    replica.catch_up()
    assert len(other.get(ledger).context["cl"].result_list) == 1


def test_keys_and_permissions_are_the_primarys(used: Person, replica: Replica) -> None:
    with replica.paused():
        APIKey.objects.filter(pk=used.api_key.pk).update(is_admin=False)
        assert used.get("/v1/organization/costs?start_time=1790000000").status_code == 403
        used.user.is_active = False
        used.user.save()
        page = client_of(used.user).get(f"/console/{used.project.organization_id}/overview")
        assert page.status_code == 302


def test_a_request_is_found_by_its_id_at_once(used: Person, replica: Replica, root: Client) -> None:
    with replica.paused():
        made = run(used)
        assert root.get(f"/admin/requests/?id={made}").status_code == 302
        assert str(made) not in root.get("/admin/requests/").content.decode()


def test_a_process_has_its_time_limits_there(used: Person, replica: Replica) -> None:
    shown = "current_setting('statement_timeout'), current_setting('lock_timeout'), pg_is_in_recovery()"
    code = f"""
import django
django.setup()
from django.db import connection, connections
from usage.database import replica
print(replica.measure_lag_s() < replica.MAX_LAG_S)
print(connections["replica"].cursor().execute("SELECT {shown}").fetchone())
"""
    database = connection.settings_dict
    url = f"postgres://{database['USER']}@127.0.0.1:{{}}/{database['NAME']}"
    own = {
        "DJANGO_SETTINGS_MODULE": "chatapi.settings",
        "DATABASE_URL": url.format(database["PORT"]),
        "CHATAPI_REPLICA_DATABASE_URL": url.format(replica.port),
        "CHATAPI_DATABASE_TIMEOUT_MS": "4000",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | own,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["True", "('4s', '4s', True)"]


# ---- when the primary is read instead


def test_a_late_replica_is_not_read_and_the_log_says_so_once(
    used: Person, replica: Replica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with replica.paused():
        run(used)
        assert requests_of(used) == 3, "it is late, but not too late"
        monkeypatch.setattr(replicas, "MAX_LAG_S", 0.01)
        assert [requests_of(used) for _ in range(3)] == [4, 4, 4]
        (found,) = stores.check_replica()
        assert re.fullmatch(r"127\.0\.0\.1 is \d+ s behind\.", found.text)
        assert found.level.value == "warning"
        assert found.remedy.startswith("Until then reports read the primary.")
    replica.catch_up()
    assert requests_of(used) == 4
    said = [record.getMessage() for record in caplog.records if record.name == replicas.__name__]
    assert len(said) == 2
    why = r"reports read the primary, because the replica can't be read: it is \d+ s behind"
    assert re.match(why, said[0])
    assert said[1] == "reports read the replica again"


def test_an_idle_replica_that_has_everything_is_not_late(used: Person, replica: Replica) -> None:
    assert replicas.measure_lag_s() == 0.0


def test_a_replica_that_is_away_is_not_read(
    used: Person, replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    assert requests_of(used) == 3
    replica.stop()
    try:
        run(used)
        assert [requests_of(used) for _ in range(3)] == [4, 4, 4]
        assert (
            client_of(used.user).get(f"/console/{used.project.organization_id}/overview").status_code == 200
        )
        (finding,) = stores.check_replica()
        assert (finding.level.value, "127.0.0.1 can't be read" in finding.text) == ("warning", True)
    finally:
        replica.start()
    assert len([each for each in caplog.records if each.name == replicas.__name__]) == 1
    replica.catch_up()
    with Statements.sent() as sent:
        wait_for(lambda: requests_of(used) > 0 and bool(sent.replica), "the replica", 20)


def test_a_replica_that_fails_within_a_report_is_replaced_by_the_primary(
    used: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    @replicas.report
    def failing() -> int:
        tried.append(replicas.alias())
        with connections[replicas.alias()].cursor() as cursor:
            if replicas.alias() == replicas.REPLICA:
                cursor.execute("SELECT missing FROM usage_generation")
            cursor.execute("SELECT 7")
            return int(cursor.fetchone()[0])

    assert failing() == 7
    assert tried == [replicas.REPLICA, "default"]


def test_a_replica_that_hangs_delays_a_page_for_seconds_only(
    used: Person, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert requests_of(used) == 3
    monkeypatch.setattr(settings, "DATABASE_TIMEOUT_MS", 300)
    with replica.frozen():
        assert requests_of(used) == 3


def test_a_slow_statement_has_the_time_limit_and_is_not_repeated_on_the_primary(used: Person) -> None:
    tried: list[str] = []

    @replicas.report
    def slow() -> None:
        tried.append(replicas.alias())
        with connections[replicas.alias()].cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    with pytest.raises(Error, match="statement timeout"):
        slow()
    assert tried == [replicas.REPLICA]


def test_another_database_and_the_primary_itself_are_no_replica(
    used: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = stores.check_replica()
    assert (found.level.value, found.text) == ("ok", "127.0.0.1 is 0.0 s behind.")
    primary_port, right = connection.settings_dict["PORT"], connections.settings[replicas.REPLICA]
    for changes, reason in (
        ({"PORT": primary_port}, "it is not in recovery"),
        ({"NAME": "postgres"}, "it has another database than DATABASE_URL"),
    ):
        monkeypatch.setitem(connections.settings, replicas.REPLICA, right | changes)
        forget_connection()
        with pytest.raises(replicas.NotAReplica, match=reason):
            replicas.measure_lag_s()
        assert requests_of(used) == 3
        forget_connection()
