"""What a soak's verdict holds against a run, beside its books: clients that failed, and too few generations."""

import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.faults.bookkeeper import Row
from tests.faults.soak_clients import Guest, Visit
from tests.faults.soak_verdict import Verdict
from tests.installation import Installation

REPORT: dict[str, list[str]] = {"differences": [], "over limit": [], "pending": []}


class Garbled(BaseHTTPRequestHandler):
    """Answers whatever is asked with a chunk that is none."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: {}\n\n")

    def log_message(self, *_: object) -> None:
        """Nothing: nobody reads it."""


def row(number: int) -> Row:
    return Row(f"{number:032x}", "completed", "upstream", 9, 0, charges=1, overages=0, amount_nanodollars=9_000, seconds=0.1)


def visit(number: int, **changes: str) -> Visit:
    return Visit("reads", "five", f"guest {number}", 0.0, 1.0, 200, f"chatcmpl-{number:032x}", ends=1, is_done=True, **changes)  # type: ignore[arg-type]


def verdict(*visits: Visit) -> Verdict:
    return Verdict.of(visits, [row(number) for number in range(3)], REPORT, [], [])


def test_a_run_in_which_nothing_is_wrong_has_no_violation() -> None:
    assert verdict(visit(0), visit(1)).asking_at_least(3).violations == []


def test_too_few_generations_are_a_violation() -> None:
    assert verdict().asking_at_least(4).violations == ["only 3 generations, at least 4 were asked for"]


def test_a_client_that_failed_is_a_violation() -> None:
    (violation,) = verdict(visit(0), visit(1, failure="KeyError('choices')")).violations
    assert "the client failed: KeyError('choices')" in violation


def test_a_guest_that_fails_says_so_and_does_not_end_its_thread(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    installation.keys = {"live": "", "poor": ""}
    with ThreadingHTTPServer(("127.0.0.1", 0), Garbled) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        installation.port = server.server_port
        found = Guest(installation, 1, random.Random(1)).visit()
        server.shutdown()
    assert found.failure == "KeyError('choices')"
