"""The database is locked for longer than a lease: a worker that can't write its heartbeat is not dead, and
gets the time to say so.
"""

import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from redis import Redis

from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("locked-database"), pytest.mark.timeout(120)]

LEASE_MS = 2_500
ENVIRONMENT = {
    "CHATAPI_LEASE_MS": str(LEASE_MS),
    "CHATAPI_REAPER_MS": "100",
    "CHATAPI_DATABASE_TIMEOUT_MS": "1000",
}
"""So that a lock makes heartbeats fail, and not only wait; and a reaper is there before the next heartbeat,
half a second later.
"""


def test_answers_that_run_or_end_meanwhile_come_whole(installation: Installation, ask: Ask) -> None:
    installation.start_reaper()
    ending = [ask("five-seconds") for _ in range(3)]
    for answer in ending:
        answer.heard(140)
    running = ask("five-seconds").heard(5)
    with database_locked(installation):
        time.sleep(LEASE_MS / 1_000)  # by then all leases have run out, and the first answers have ended
        failed = heartbeats_failed(installation)
        wait_for(lambda: heartbeats_failed(installation) > failed, "a heartbeat to fail")
        unlocked_at = time.monotonic()
    for answer in ending:
        assert answer.end().ended_at > unlocked_at
    for answer in [*ending, running]:
        assert (len(answer.end().words), answer.is_done, "error" in answer.chunks[-1]) == (250, True, False)
        receipt = installation.receipt(answer.generation_id)
        assert (receipt["outcome"], receipt["usage_source"], receipt["usage"]["completion_tokens"]) == (
            "completed",
            "upstream",
            250,
        )


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_waits_too_long_in_the_queue_ends_meanwhile(
    installation: Installation, ask: Ask, stream: bool
) -> None:
    """Its request can't be closed in the books, and starts nothing later."""
    calls = len(installation.calls("five"))
    for name in ("worker", "reaper"):
        installation.end(name, signal.SIGTERM)
    answer = ask("five", stream=stream)
    wait_for(lambda: held(installation) > 0, "its admission")
    with database_locked(installation, "EXCLUSIVE"):
        assert answer.end().error["code"] == "stream_unavailable"
        assert (answer.status, answer.ends) == (503, 1)
    installation.start_worker()
    installation.receipt(answer.generation_id)
    assert len(installation.calls("five")) == calls


def test_a_worker_that_gets_it_after_that_asks_no_upstream(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    """Not even if its deployment continues without a client."""
    calls = len(installation.calls("continues"))
    installation.end("reaper", signal.SIGTERM)
    installation.send("worker", signal.SIGSTOP)
    answer = ask("continues")
    wait_for(lambda: held(installation) > 0, "its admission")
    with database_locked(installation, "EXCLUSIVE"):
        assert answer.end().error["code"] == "stream_unavailable"
        wait_for(lambda: not valkey.keys(f"*job:{answer.generation_id[-32:]}"), "its request to be deleted")
    installation.send("worker", signal.SIGCONT)
    assert installation.receipt(answer.generation_id)["usage"]["total_tokens"] == 0
    assert len(installation.calls("continues")) == calls


def held(installation: Installation) -> int:
    """Return the amount that open requests hold, in nanodollars."""
    _, key = installation.get("/v1/key", installation.keys["live"])
    return sum(budget["pending_nanodollars"] for budget in key["budgets"])


def heartbeats_failed(installation: Installation) -> int:
    return installation.log("worker").count("heartbeat: DatabaseUnavailable")


@contextmanager
def database_locked(installation: Installation, mode: str = "ACCESS EXCLUSIVE") -> Iterator[None]:
    """Lock the database for all other writers inside the block, by default also for PostgreSQL's readers."""
    url = installation.environment.get("DATABASE_URL", "")
    if url.startswith("postgres"):
        import psycopg

        with psycopg.connect(url) as postgres:
            postgres.execute(f"LOCK TABLE usage_generation IN {mode} MODE")
            yield
        return
    with closing(sqlite3.connect(installation.folder / "chatapi.sqlite3", isolation_level=None)) as sqlite:
        sqlite.execute("BEGIN IMMEDIATE")
        yield
        sqlite.execute("ROLLBACK")
