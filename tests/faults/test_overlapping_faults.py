"""Two things break at once: every waiting client gets an end within 8 s, with the usual time
limits.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread

import pytest
from django.conf import settings

from tests.chatapi.http_client import Client
from tests.faults.conftest import Ask
from tests.faults.listener import Listener
from tests.faults.test_locked_database import database_locked
from tests.installation import Installation, wait_for

pytestmark = [
    pytest.mark.xdist_group("overlapping-faults"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("reaper"),
]

END_WITHIN_S = 8.0
SLACK_S = 2.0
"""For a machine that is busy with other tests."""
TIMES = ("LEASE_MS", "HEARTBEAT_MS", "REAPER_MS", "QUEUE_TTL_MS", "DATABASE_TIMEOUT_MS")
ENVIRONMENT = {f"CHATAPI_{name}": str(getattr(settings, name)) for name in TIMES}
"""Instead of the test profile's."""

Fault = Callable[[Installation, ExitStack], None]


class Resumed:
    """Follows somebody else's stream in a thread of its own, to its end."""

    def __init__(self, installation: Installation, generation_id: str) -> None:
        self.body = b""
        self.ended_at = 0.0
        self._client = Client(installation.url, installation.keys["live"], 30)
        self._path = f"/openai/v1/generations/{generation_id}/stream"
        self._thread = Thread(target=self._follow, daemon=True)
        self._thread.start()

    def heard(self, text: bytes) -> "Resumed":
        """Wait until this text has come."""
        wait_for(lambda: text in self.body, f"{text!r}")
        return self

    def end(self) -> "Resumed":
        """Wait until the answer has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive(), self.body[-500:]
        return self

    def _follow(self) -> None:
        try:
            with self._client.exchange("GET", self._path, None, {}) as exchange:
                while line := exchange.response.readline():
                    self.body += line
        finally:
            self.ended_at = time.monotonic()


@dataclass
class Waiting:
    """One client of each kind."""

    streaming: Listener
    before_first_token: Listener
    whole: Listener
    resumed: Resumed

    @property
    def listeners(self) -> list[Listener]:
        """Return the clients that have sent a request of their own."""
        return [self.streaming, self.before_first_token, self.whole]

    def ended_at(self) -> dict[str, float]:
        """Return the time at which each client's answer ended; 0.0: it has not."""
        return {name: client.ended_at for name, client in vars(self).items()}


@pytest.fixture
def waiting(installation: Installation, ask: Ask) -> Waiting:
    """Start clients that all wait for the same worker."""
    calls = {model: len(installation.calls(model)) for model in ("never-begins", "steady")}
    streaming = ask("steady").heard(10)
    before, whole = ask("never-begins"), ask("steady", stream=False)
    wait_for(lambda: len(installation.calls("never-begins")) > calls["never-begins"], "the call")
    wait_for(lambda: len(installation.calls("steady")) > calls["steady"] + 1, "the call")
    return Waiting(
        streaming, before, whole, Resumed(installation, streaming.generation_id).heard(b'"content"')
    )


def worker_dies(installation: Installation, _: ExitStack) -> None:
    installation.end("worker")


def valkey_dies(installation: Installation, _: ExitStack) -> None:
    installation.end("valkey")


def valkey_freezes(installation: Installation, after: ExitStack) -> None:
    installation.send("valkey", signal.SIGSTOP)
    after.callback(partial(installation.send, "valkey", signal.SIGCONT))


def valkey_restarts_empty(installation: Installation, _: ExitStack) -> None:
    installation.end("valkey")
    time.sleep(2)
    installation.start_valkey()


def books_are_locked(installation: Installation, after: ExitStack) -> None:
    after.enter_context(database_locked(installation))


FAULTS: dict[str, list[Fault]] = {
    "worker and Valkey die": [worker_dies, valkey_dies],
    "Valkey dies, then the worker": [valkey_dies, worker_dies],
    "the worker dies, Valkey restarts empty": [worker_dies, valkey_restarts_empty],
    "Valkey freezes, the worker dies": [valkey_freezes, worker_dies],
    "the books are locked, the worker dies": [books_are_locked, worker_dies],
    "the books are locked, Valkey dies": [books_are_locked, valkey_dies],
    "the books are locked, Valkey freezes": [books_are_locked, valkey_freezes],
}


@contextmanager
def broken(installation: Installation, faults: list[Fault]) -> Iterator[float]:
    """Cause all these faults at once, until the end of the block; yield the time of the last one."""
    with ExitStack() as after:
        for fault in faults:
            began_at = time.monotonic()
            fault(installation, after)
        yield began_at


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_every_waiting_client_gets_one_end_in_time(
    installation: Installation, waiting: Waiting, faults: list[Fault]
) -> None:
    with broken(installation, faults) as broke_at:
        wait_for(lambda: all(waiting.ended_at().values()), "all ends", 40)
    ended_after_s = {name: round(ended_at - broke_at, 1) for name, ended_at in waiting.ended_at().items()}
    for listener in waiting.listeners:
        listener.end()
        assert listener.ends == 1
        assert listener.error["code"] in {"worker_lost", "stream_unavailable"}
    resumed = waiting.resumed.end().body
    assert resumed.count(b'"error"') == 1
    assert resumed.endswith(b"data: [DONE]\n\n")
    assert max(ended_after_s.values()) < END_WITHIN_S + SLACK_S, ended_after_s
    installation.revive()
    receipt = installation.receipt(waiting.streaming.generation_id)
    charged = receipt["usage"]["completion_tokens"]
    assert charged <= max(call["tokens"] for call in installation.calls("steady"))
    if (
        valkey_dies not in faults and valkey_restarts_empty not in faults
    ):  # else the last heartbeat counts, not the log
        assert charged >= len(waiting.streaming.words)


def test_a_queued_request_gets_an_end_in_time_when_worker_and_valkey_die(
    installation: Installation, ask: Ask
) -> None:
    installation.end("worker")
    answers = [ask("five"), ask("five", stream=False)]
    wait_for(lambda: pending(installation) > 0, "the admissions")
    installation.end("valkey")
    died_at = time.monotonic()
    for answer in answers:
        answer.end()
        assert (answer.status, answer.error["code"]) == (503, "stream_unavailable")
        assert answer.ended_at - died_at < END_WITHIN_S + SLACK_S
    installation.revive()


def pending(installation: Installation) -> int:
    budgets = installation.get("/v1/key", installation.keys["live"])[1]["budgets"]
    return int(budgets[0]["pending_nanodollars"])
