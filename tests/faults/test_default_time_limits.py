"""With the lease, heartbeat and reaper that everybody has by default, a client gets an error within
8 s of its worker's death.

The other tests of faults shorten these times. Most of these tests' time is waiting, and each has an
installation of its own.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.chatapi.http_client import Client
from tests.chatapi.serve_process import Serve
from tests.faults.conftest import Ask
from tests.installation import Installation, free_port, wait_for

pytestmark = pytest.mark.timeout(120)

TOLD_WITHIN_S = 8
TIMES = ("LEASE_MS", "HEARTBEAT_MS", "REAPER_MS", "QUEUE_TTL_MS", "DATABASE_TIMEOUT_MS")
ENVIRONMENT = {f"CHATAPI_{name}": str(getattr(settings, name)) for name in TIMES}
"""Instead of the test profile's."""

SLOW_PROSE = [{"role": "user", "content": "[sandbox tokens=1000 delay_ms=50]"}]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start all processes under one supervisor, as `make run` does."""
    serve = Serve(tmp_path, free_port())
    try:
        serve.wait_until_ready()
        serve.wait_until(lambda: serve.child("reaper") != 0)
        yield serve
    finally:
        serve.kill()


def test_a_reaper_closes_what_the_only_worker_left_open(installation: Installation, ask: Ask) -> None:
    installation.start_reaper()
    answer = ask("steady").heard(20)
    installation.end("worker")
    killed_at = time.monotonic()
    answer.end()
    assert answer.ended_at - killed_at < TOLD_WITHIN_S
    assert (answer.error["code"], answer.is_done) == ("worker_lost", True)
    receipt = installation.receipt(answer.generation_id)
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("worker_lost", len(answer.words))


def test_a_worker_that_is_started_again_closes_what_the_dead_one_left_open(serve: Serve) -> None:
    os.kill(serve.child("reaper"), signal.SIGSTOP)
    client = Client(f"http://127.0.0.1:{serve.port}", serve.key)
    with client.asking("sandbox", stream=True, messages=SLOW_PROSE) as exchange:
        chunks = exchange.data()
        first, *_ = [next(chunks) for _ in range(20)]
        os.kill(serve.child("worker"), signal.SIGKILL)
        killed_at = time.monotonic()
        *_, error, end = chunks
    assert time.monotonic() - killed_at < TOLD_WITHIN_S
    assert (json.loads(error)["error"]["code"], end) == ("worker_lost", "[DONE]")
    path = f"/v1/generations/{json.loads(first)['id']}"
    # The web process may tell the client before the new worker, which is still starting, has settled.
    wait_for(lambda: client.send("GET", path).json["state"] == "settled", "the settlement")
    receipt = client.send("GET", path).json
    assert (receipt["state"], receipt["outcome"], receipt["usage_source"]) == (
        "settled",
        "worker_lost",
        "counted",
    )
    assert serve.run([sys.executable, "manage.py", "verifyledger"]).returncode == 0
