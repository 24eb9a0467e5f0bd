"""PostgreSQL crashes and recovers, hangs, or keeps everyone waiting; SQLite has no server that could
(`test_locked_database.py`).
"""

import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation, fetch, wait_for

pytestmark = [
    pytest.mark.xdist_group("postgres-trouble"),
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not os.environ.get("DATABASE_URL", "").startswith("postgres"),
        reason="needs PostgreSQL: make test-postgres",
    ),
]

TIMEOUT_S = 0.5
OUTAGE_S = 8.0
IN_TRANSACTION = "SELECT count(*) FROM pg_locks WHERE locktype = 'virtualxid' AND pid = ANY(%s)"
ENVIRONMENT = {"CHATAPI_DATABASE_TIMEOUT_MS": f"{TIMEOUT_S * 1_000:.0f}"}


@pytest.fixture(autouse=True)
def serving(installation: Installation, ask: Ask) -> None:
    """Start all processes: those of the last test have recovered, and no old connection is left."""
    for _ in range(8):  # a pool hands out its connections in turn, and each dead one refuses a request
        wait_for(
            lambda: all(answer.end().is_done for answer in [ask("five") for _ in range(4)]),
            "service",
            pause_s=0.2,
        )


@pytest.fixture
def postgres(serving: None, installation: Installation) -> Iterator[Any]:
    """Open a connection of the test's own."""
    import psycopg

    with psycopg.connect(installation.environment["DATABASE_URL"], autocommit=True) as connection:
        yield connection


def backends(postgres: Any) -> list[int]:
    """Return the server's processes that serve the installation."""
    rows = postgres.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    return [pid for (pid,) in rows]


def crash(postgres: Any) -> None:
    """Kill one backend: PostgreSQL throws all others out and recovers from its log, as after any crash."""
    os.kill(backends(postgres)[0], signal.SIGKILL)


@contextmanager
def frozen(postgres: Any) -> Iterator[None]:
    """Stop the backends, and their time limits with them, inside the block.

    None of them is in a transaction: nobody could take what it has locked.
    """
    pids = backends(postgres)
    try:
        signal_all(pids, signal.SIGSTOP)
        while postgres.execute(IN_TRANSACTION, [pids]).fetchone() != (0,):
            signal_all(pids, signal.SIGCONT)
            pids = backends(postgres)
            signal_all(pids, signal.SIGSTOP)
        yield
    finally:
        signal_all(pids, signal.SIGCONT)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def test_a_crash_in_mid_stream_harms_no_answer(installation: Installation, ask: Ask, postgres: Any) -> None:
    answers = [ask("two-seconds").heard(10) for _ in range(3)]
    crash(postgres)
    for answer in answers:
        assert (len(answer.end().words), answer.ends, answer.is_done) == (100, 1, True)
        receipt = installation.receipt(answer.generation_id)
        assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("completed", 100)


def test_a_crash_as_answers_end_delays_them_and_loses_nothing(
    installation: Installation, ask: Ask, postgres: Any
) -> None:
    answers = [ask("a-second").heard(45) for _ in range(5)]
    crash(postgres)
    for answer in answers:
        assert (len(answer.end().words), answer.ends, answer.is_done) == (60, 1, True)
        assert installation.receipt(answer.generation_id)["usage"]["completion_tokens"] == 60


def test_it_serves_again_soon_after_a_crash(installation: Installation, ask: Ask, postgres: Any) -> None:
    crash(postgres)
    crashed_at = time.monotonic()
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=10, pause_s=0.2)
    assert time.monotonic() - crashed_at < 10


def test_it_serves_again_soon_after_an_outage(installation: Installation, ask: Ask, postgres: Any) -> None:
    """The pool's pauses between its attempts to connect do not grow with the outage."""
    import psycopg

    url, name = installation.environment["DATABASE_URL"], postgres.info.dbname
    with psycopg.connect(url, dbname="postgres", autocommit=True) as other:
        other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            postgres.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [backends(postgres)])
            ends_at = time.monotonic() + OUTAGE_S
            while time.monotonic() < ends_at:
                assert not ask("five").end().is_done
        finally:
            other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    back_at = time.monotonic()
    wait_for(lambda: ask("five").end().is_done, "service", timeout_s=30, pause_s=0.2)
    assert time.monotonic() - back_at < OUTAGE_S / 2


def test_a_request_that_waits_too_long_for_a_lock_is_refused_and_charged_nothing(
    installation: Installation, ask: Ask, postgres: Any
) -> None:
    calls = len(installation.calls("five"))
    with postgres.transaction():
        postgres.execute("LOCK TABLE usage_budget IN ACCESS EXCLUSIVE MODE")
        asked_at = time.monotonic()
        refused = [ask("five") for _ in range(5)]
        assert {answer.end().status for answer in refused} == {503}
        assert time.monotonic() - asked_at < 10 * TIMEOUT_S
    assert len(installation.calls("five")) == calls
    assert ask("five").end().is_done


def test_a_backend_that_hangs_is_left_for_another(
    installation: Installation, ask: Ask, postgres: Any
) -> None:
    with frozen(postgres):
        answers = [ask("five") for _ in range(5)]
        assert {answer.end().status for answer in answers} <= {200, 503}
        wait_for(lambda: ask("five").end().is_done, "service", pause_s=0.1)


def test_backends_that_hang_in_mid_stream_harm_no_answer(
    installation: Installation, ask: Ask, postgres: Any
) -> None:
    answers = [ask("five-seconds").heard(10) for _ in range(3)]
    with frozen(postgres):
        for answer in answers:
            assert (len(answer.end().words), answer.ends, answer.is_done) == (250, 1, True)
    assert {installation.receipt(answer.generation_id)["outcome"] for answer in answers} == {"completed"}


def test_answers_that_run_or_end_while_the_usage_is_rebuilt_come_whole(
    installation: Installation, ask: Ask, postgres: Any
) -> None:
    # As by default, a lease is hardly longer than a refused batch, which may have heartbeats in it.
    installation.replace("worker", "manage.py", CHATAPI_DATABASE_TIMEOUT_MS="1250")
    installation.start_reaper()
    answers = [ask("steady").heard(5), *(ask("five-seconds").heard(5) for _ in range(4))]
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'usage_dailyusage'::regclass AND NOT granted"
    with postgres.transaction():
        postgres.execute("LOCK TABLE usage_dailyusage IN ACCESS EXCLUSIVE MODE")
        rollup = [sys.executable, "manage.py", "rollup"]
        installation.run("rollup", rollup, CHATAPI_DATABASE_TIMEOUT_MS="60000")
        wait_for(lambda: postgres.execute(waiting).fetchone() == (1,), "the rebuild")
        wait_for(lambda: len(answers[1].words) == 250, "an answer that ends meanwhile")
        time.sleep(3)  # by then, leases that were not prolonged have run out
    for answer, words in zip(answers, (1000, 250, 250, 250, 250), strict=True):
        assert (len(answer.end().words), answer.ends, answer.is_done) == (words, 1, True)
        assert installation.receipt(answer.generation_id)["outcome"] == "completed"
    assert installation.processes.pop("rollup").wait(20) == 0
    installation.end("worker")


def views(installation: Installation) -> list[int]:
    """Ask for a view of Django's by several connections of the pool at once; return the statuses."""
    with ThreadPoolExecutor(4) as threads:
        return list(
            threads.map(
                lambda _: installation.get("/v1/generations/none", installation.keys["live"])[0], range(16)
            )
        )


def test_no_view_gets_a_connection_that_a_restart_has_ended(
    installation: Installation, postgres: Any
) -> None:
    for _ in range(2):
        assert set(views(installation)) == {404}
        postgres.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) AS pid", [backends(postgres)]
        )
    assert set(views(installation)) == {404}


def test_no_view_waits_for_a_backend_that_hangs(installation: Installation, postgres: Any) -> None:
    views(installation)
    with frozen(postgres):
        assert set(views(installation)) <= {404, 500, 503}
        wait_for(lambda: set(views(installation)) == {404}, "views without an error")


def test_a_page_that_waits_too_long_says_so_and_the_log_in_one_line(
    installation: Installation, postgres: Any
) -> None:
    page = urllib.request.Request(f"{installation.url}/admin/", headers={"Cookie": f"sessionid={'0' * 32}"})
    before = len(installation.log("web"))
    with postgres.transaction():
        postgres.execute("LOCK TABLE django_session IN ACCESS EXCLUSIVE MODE")
        status, text = fetch(page)
    assert (status, "The database does not answer" in text) == (503, True)
    log = installation.log("web")[before:]
    assert log.count("the database is not available: canceling statement due to") == 1
    assert "Traceback" not in log


@contextmanager
def read_only(postgres: Any) -> Iterator[None]:
    """Make the database read-only, open sessions included, as an operator or a full disk does."""
    try:
        postgres.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        postgres.execute("SELECT pg_reload_conf()")
        yield
    finally:
        postgres.execute("ALTER SYSTEM RESET default_transaction_read_only")
        postgres.execute("SELECT pg_reload_conf()")


def test_while_it_may_only_be_read_requests_are_refused_and_answers_end_later(
    installation: Installation, ask: Ask, postgres: Any
) -> None:
    answers = [ask("a-second").heard(10) for _ in range(3)]
    with read_only(postgres):
        wait_for(lambda: ask("five").end().status == 503, "a refusal", pause_s=0.1)
        wait_for(lambda: all(len(answer.words) == 60 for answer in answers), "all but their ends")
        assert ask("five").end().status == 503
        assert "WRONG    database      PostgreSQL is read-only" in installation.manage("doctor").stdout
    for answer in answers:
        assert (len(answer.end().words), answer.ends, answer.is_done) == (60, 1, True)
        assert installation.receipt(answer.generation_id)["outcome"] == "completed"


def test_a_web_process_that_stood_still_in_an_admission_refuses_it(
    installation: Installation, ask: Ask
) -> None:
    armed.start(installation, "web", f"admit.before_commit=sleep:{2 * TIMEOUT_S}@1")
    assert (ask("five").end().status, ask("five").end().status) == (503, 200)


def test_a_worker_that_stood_still_in_a_settlement_settles_again(
    installation: Installation, ask: Ask
) -> None:
    armed.start(installation, "worker", f"settle.in_tx=sleep:{2 * TIMEOUT_S}@1")
    answer = ask("five").end()
    assert (len(answer.words), answer.ends, answer.is_done) == (5, 1, True)
    assert installation.receipt(answer.generation_id)["outcome"] == "completed"
