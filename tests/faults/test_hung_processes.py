"""A loop that never returns: its process ends itself, the supervisor starts a new one, and what it had is
closed.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatapi.serving.watchdog import HUNG_EXIT_CODE
from tests.chatapi.http_client import Client
from tests.chatapi.serve_process import Serve
from tests.installation import free_port

pytestmark = pytest.mark.timeout(180)

HUNG_S = 3
SLOW_PROSE = [{"role": "user", "content": "[sandbox tokens=1000 delay_ms=50]"}]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Serve]]:
    """Yield a function that starts all processes under one supervisor, with failpoints."""
    started: list[Serve] = []

    def begin(failpoints: str) -> Serve:
        serve = Serve(
            tmp_path, free_port(), CHATAPI_HUNG_MS=str(HUNG_S * 1_000), CHATAPI_FAILPOINTS=failpoints
        )
        started.append(serve)
        serve.wait_until_ready()
        serve.wait_until(lambda: serve.child("reaper") != 0)
        return serve

    yield begin
    for serve in started:
        serve.kill()


def receipt(serve: Serve, client: Client, generation_id: str) -> dict[str, Any]:
    """Return the receipt of the generation, once it is settled."""
    found: dict[str, Any] = {}

    def is_settled() -> bool:
        nonlocal found
        try:
            found = client.send("GET", f"/v1/generations/{generation_id}").json
        except OSError:
            return False
        return found.get("state") == "settled"

    serve.wait_until(is_settled)
    return found


def test_a_web_process_whose_loop_never_returns_ends_and_is_started_again(
    start: Callable[[str], Serve],
) -> None:
    serve = start("view.before_first_byte=sleep:600@2")
    hung, client = serve.child("web"), Client(f"http://127.0.0.1:{serve.port}", serve.key)
    with client.asking("sandbox", stream=True, messages=SLOW_PROSE) as exchange:
        generation_id = json.loads(next(exchange.data()))["id"]
        threading.Thread(target=_ask_in_vain, args=(client,), daemon=True).start()
        serve.wait_until(
            lambda: f"web ended with exit code {HUNG_EXIT_CODE}; it is started again" in serve.text
        )
    serve.wait_until(lambda: serve.child("web") not in {0, hung})
    assert f"the event loop has not turned for {HUNG_S} s: this process ends" in serve.text
    assert receipt(serve, client, generation_id)["outcome"] == "client_cancelled"
    assert serve.run([sys.executable, "manage.py", "verifyledger"]).returncode == 0


def test_a_worker_whose_loop_never_returns_ends_and_its_clients_get_errors(
    start: Callable[[str], Serve],
) -> None:
    serve = start("delta.after_publish=sleep:600@40")
    hung, client = serve.child("worker"), Client(f"http://127.0.0.1:{serve.port}", serve.key)
    with client.asking("sandbox", stream=True, messages=SLOW_PROSE) as exchange:
        first, *_, error, end = exchange.data()
    assert (json.loads(error)["error"]["code"], end) == ("worker_lost", "[DONE]")
    assert f"worker ended with exit code {HUNG_EXIT_CODE}; it is started again" in serve.text
    serve.wait_until(lambda: serve.child("worker") not in {0, hung})
    found = receipt(serve, client, json.loads(first)["id"])
    assert (found["outcome"], found["usage_source"]) == ("worker_lost", "counted")
    assert serve.run([sys.executable, "manage.py", "verifyledger"]).returncode == 0


def _ask_in_vain(client: Client) -> None:
    try:
        client.complete("sandbox")
    except OSError:
        return
